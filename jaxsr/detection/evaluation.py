"""Writes the report of a detector's evaluation into a folder.

- `report.json`: every figure, with what it is of (see `jaxsr.metrics.evaluation`);
- `images.csv`: a row for each image, the worst first;
- `roc.png`: pixels' ROC, and Pd against Fa.
"""

import csv
import io
import json
from dataclasses import asdict, fields
from pathlib import Path

from jaxsr.metrics.detection import ImageFigures
from jaxsr.metrics.evaluation import Evaluation


def write_report(evaluation: Evaluation, folder: Path) -> None:
    """Writes `report.json`, `images.csv` and `roc.png` into a folder, created if absent.

    Raises:
      OSError: it cannot be written.
    """
    from jaxsr.detection.roc_plot import draw_curves
    from jaxsr.interop.atomic_write import atomic_write

    folder.mkdir(parents=True, exist_ok=True)
    described = evaluation.as_dict()
    atomic_write(folder / "report.json", (json.dumps(described, indent=2) + "\n").encode())
    rows = sorted(evaluation.figures.per_image, key=lambda row: (row.iou, row.name))
    atomic_write(folder / "images.csv", _table(rows).encode())
    atomic_write(folder / "roc.png", draw_curves(evaluation))


def _table(rows: list[ImageFigures]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in fields(ImageFigures)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()
