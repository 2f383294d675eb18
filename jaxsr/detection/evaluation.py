"""Testing a detector on a split: figures, a table by image, a curve, all with what they are of.

`evaluate` computes; `write_report` puts into a folder

- `report.json`: every figure, with the split's name, the SHA-256 of its sorted list of names, and
  how pictures were sized and thresholded. "NUAA-SIRST" is 213/214 images in one toolbox and 341/86
  in another: without these a figure means little;
- `images.csv`: a row for each image, the worst first;
- `roc.png`: pixels' ROC, and Pd against Fa.
"""

import csv
import io
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from jaxsr.data.infrared import Infrared
from jaxsr.detection.detector import Detector
from jaxsr.metrics.detection import DetectionMetrics, DetectionReport, Empty, ImageFigures


@dataclass(frozen=True)
class Evaluation:
    """The figures of a detector on a split, with what they are of."""

    source: str
    split: str
    images: int
    list_sha256: str
    """Of the sorted names, a line each: two figures with one hash are of the same images."""
    sized: str
    """How pictures and masks were sized."""
    figures: DetectionReport

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; Fa also as the papers print it."""
        whole = {name: value for name, value in asdict(self).items() if name != "figures"}
        figures = self.figures.as_dict()
        rows = figures.pop("per_image")
        return {**whole, "figures": {**figures, "fa_1e6": 1e6 * self.figures.fa}, "rows": rows}

    def __str__(self) -> str:
        return (
            f"{self.figures}\n{self.images} images of {self.source}, {self.split} "
            f"(list {self.list_sha256[:12]}…), {self.sized}, threshold {self.figures.threshold:g}"
        )


def evaluate(
    detector: Detector,
    data: Infrared,
    *,
    threshold: float = 0.5,
    distance_px: float = 3.0,
    curve_points: int = 10,
    empty: Empty = "zero",
) -> Evaluation:
    """Runs the detector over a split and takes all figures.

    Args:
      detector: sizes pictures as it was trained to; figures are taken at that size.
      data: the split.
      threshold, distance_px, curve_points, empty: see `DetectionMetrics`.

    Raises:
      ValueError: an argument is out of range, or the network gives NaN.
      RuntimeError: an image changed or went away since the split was checked.
    """
    metrics = DetectionMetrics(
        threshold=threshold, distance_px=distance_px, curve_points=curve_points, empty=empty
    )
    form = detector.form
    sizes = [(int(height), int(width)) for height, width in data.sizes]
    for together, pairs, logits in detector.run(detector.plan(sizes), data.read):
        for number, (_, mask), scores in zip(together.numbers, pairs, logits, strict=True):
            metrics.update([data.names[number]], scores[None], form.mask(mask)[None])
    figures = metrics.report()
    place = {name: number for number, name in enumerate(data.names)}
    in_order = sorted(figures.per_image, key=lambda row: place[row.name])
    return Evaluation(
        source=data.source,
        split=data.split,
        images=len(data),
        list_sha256=data.list_hash,
        sized=f"{form.base}×{form.base} px" if form.evaluate == "base" else "native size",
        figures=replace(figures, per_image=tuple(in_order)),
    )


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
