"""Difference maps and histograms of the comparison of resizes, as one picture.

A row shows one pair: the middle of the first picture as the first library made it; where the two
differ there (brighter is more; white is the largest difference over the whole picture); and how
often each difference occurs over all pictures, on a logarithmic scale.
"""

from collections.abc import Sequence

import numpy as np

from jaxsr.comparison.compare_ops import Group
from jaxsr.metrics.plot import as_png, new_figure

_PART_PX = 300
_BINS = 60


def draw_comparison(groups: Sequence[Group]) -> bytes:
    """PNG with one row for every pair that holds jaxsr."""
    pairs = [(g, pair) for g in groups for pair in g.pairs if pair[0].startswith("jaxsr")]
    figure = new_figure(11.0, 3.6 * max(len(pairs), 1))
    rows = figure.subfigures(max(len(pairs), 1), 1, squeeze=False)[:, 0]
    for row, (group, (first, second)) in zip(rows, pairs, strict=False):
        levels = group.pairs[first, second][0]
        row.suptitle(
            f"{group.method}: {first} against {second}; difference on 0…255: "
            f"max {levels.largest:.4g}, mean {levels.mean:.4g}, {levels.unequal:,} unequal",
            fontsize=10,
        )
        photo, heat, histogram = row.subplots(1, 3)
        results = zip(group.results[first], group.results[second], strict=True)
        distances = [np.abs(a - b) for a, b in results]
        levels_of_first = np.clip(np.rint(_middle(group.results[first][0])), 0, 255)
        photo.imshow(levels_of_first.astype(np.uint8), interpolation="nearest")
        worst = distances[0].max(-1)
        shown = heat.imshow(
            _middle(worst), cmap="hot", vmin=0, vmax=worst.max() or 1, interpolation="nearest"
        )
        row.colorbar(shown, ax=heat, shrink=0.8)
        for axes, title in ((photo, first), (heat, "difference, of 255")):
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
        largest = max(float(d.max()) for d in distances)
        histogram.set_title("how often", fontsize=9)
        if largest == 0:
            histogram.set_axis_off()
            histogram.text(0.5, 0.5, "no value differs", ha="center", va="center")
            continue
        counts = np.sum([np.histogram(d, _BINS, (0, largest))[0] for d in distances], 0)
        edges = np.linspace(0, largest, _BINS + 1)
        histogram.stairs(counts, edges, fill=True)
        histogram.set(xlabel="difference, of 255", ylabel="values", yscale="log", ylim=(0.5, None))
    return as_png(figure, dpi=100)


def _middle(values: np.ndarray) -> np.ndarray:
    top, left = (max(0, (extent - _PART_PX) // 2) for extent in values.shape[:2])
    return values[top : top + _PART_PX, left : left + _PART_PX]
