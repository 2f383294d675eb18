"""Writes the report of a detector's evaluation into a folder.

- `report.json`: every figure, with its data set and settings (see `jaxsr.metrics.evaluation`);
- `images.csv`: a row for each image, the worst first;
- `roc.png`: pixels' ROC, and Pd against Fa.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.metrics.detection import ImageFigures
from jaxsr.metrics.evaluation import Evaluation
from jaxsr.metrics.plot import as_png, in_default_style, new_figure

RESULTS = ("report.json", "images.csv", "roc.png")
"""Files of a report."""


def write_report(evaluation: Evaluation, folder: Path) -> None:
    """Writes `report.json`, `images.csv` and `roc.png` into a folder, created if absent.

    Raises:
      OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    described = evaluation.as_dict()
    atomic_write(folder / "report.json", (json.dumps(described, indent=2) + "\n").encode())
    rows = sorted(evaluation.figures.per_image, key=lambda row: (row.iou, row.name))
    columns = [field.name for field in fields(ImageFigures)]
    write_csv(folder / "images.csv", columns, (asdict(row) for row in rows))
    atomic_write(folder / "roc.png", _draw_curves(evaluation))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[JsonObject]) -> None:
    """Writes a table with a heading."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    # Names that are not UTF-8 stay as they are.
    atomic_write(path, text.getvalue().encode("utf-8", "surrogateescape"))


@in_default_style
def _draw_curves(evaluation: Evaluation) -> bytes:
    """PNG of the pixels' ROC beside Pd against Fa, over logarithmic axes.

    The ROC has all thresholds that the AUC has: the area under the drawn curve, over a linear axis,
    is the AUC of its title. Pd and Fa are at the thresholds of the report's table.
    """
    figures = evaluation.figures
    figure = new_figure(11.0, 5.0)
    pixels, targets = figure.subplots(1, 2)
    title = f"{evaluation.source}, {evaluation.split}: {evaluation.images} images"
    figure.suptitle(title, parse_math=False)  # a path may have $

    lowest = 1 / max(sum(row.pixels for row in figures.per_image), 1)
    false_rate = [max(rate, lowest) for rate in figures.roc.false_positive_rate]
    auc = "undefined, all pixels are of one kind" if figures.auc is None else f"{figures.auc:.4f}"
    pixels.plot(false_rate, figures.roc.true_positive_rate, color="C0", linewidth=2)
    pixels.set(
        title=f"Pixels: AUC {auc}",
        xlabel="false positive rate (left edge: none)",
        ylabel="true positive rate",
        xscale="log",
        xlim=(lowest, 1),
    )

    curve = figures.curve
    fa_1e6 = [max(1e6 * fa, 1e6 * lowest) for fa in curve.fa]
    targets.plot(fa_1e6, curve.pd, color="C0", marker="o", label="thresholds of the report")
    targets.plot(
        max(1e6 * figures.fa, 1e6 * lowest),
        figures.pd,
        color="C3",
        marker="D",
        markersize=8,
        linestyle="none",
        label=f"threshold {figures.threshold:g}",
    )
    targets.set(
        title=f"Targets: Pd {100 * figures.pd:.1f} % at Fa {1e6 * figures.fa:.1f}·10⁻⁶",
        xlabel="Fa, false pixels per million (left edge: none)",
        ylabel="Pd, share of targets found",
        xscale="log",
        xlim=(1e6 * lowest, 1e6),
    )
    targets.legend(loc="lower left")
    for axes in (pixels, targets):
        axes.set_ylim(-0.02, 1.02)
        axes.margins(x=0.02)
        axes.grid(color="0.9")
    return as_png(figure)
