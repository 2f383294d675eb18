"""Means of figures over images."""

import math
import statistics
from collections.abc import Mapping, Sequence


def mean_figures(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """The mean of each figure; of PSNR over the images that are not exact, if there are any.

    One black image that is restored exactly would make the mean infinite.

    Args:
      rows: figures of each image, by name; None where it has none.
    """
    exact = [any("psnr" in n and v == math.inf for n, v in row.items()) for row in rows]
    others = [row for row, is_exact in zip(rows, exact, strict=True) if not is_exact] or rows
    means = {}
    for name in rows[0]:
        values = [v for row in (others if "psnr" in name else rows) if (v := row[name]) is not None]
        if values:
            means[name] = statistics.fmean(values)
    return means
