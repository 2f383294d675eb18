"""Evaluates a detector on a split: all figures, with the split and settings they refer to.

"NUAA-SIRST" is 213/214 images in one toolbox and 341/86 in another, so figures carry the split's
name, the SHA-256 of its sorted list of names, and how images were sized and thresholded.
"""

from dataclasses import dataclass, replace
from typing import Any

from jaxsr.data.infrared import Infrared
from jaxsr.interop.annotations import JsonObject
from jaxsr.metrics.detection import DetectionMetrics, DetectionReport


@dataclass(frozen=True)
class Evaluation:
    """The figures of a network on a split, with the split and settings they refer to."""

    source: str
    split: str
    images: int
    list_sha256: str
    """Hash of the sorted names, a line each: figures with one hash are of the same images."""
    sized: str
    """How images and masks were sized."""
    figures: DetectionReport

    def as_dict(self) -> JsonObject:
        """Plain data for JSON; Fa also as the papers print it."""
        described = {k: v for k, v in vars(self).items() if k != "figures"}
        figures = self.figures.as_dict()
        rows = figures.pop("per_image")
        return {**described, "figures": {**figures, "fa_1e6": 1e6 * self.figures.fa}, "rows": rows}

    def __str__(self) -> str:
        return (
            f"{self.figures}\n{self.images} images of {self.source}, {self.split} "
            f"(list {self.list_sha256[:12]}…), {self.sized}, threshold {self.figures.threshold:g}"
        )


def evaluate(detector: Any, data: Infrared, **options: Any) -> Evaluation:
    """Runs the network over a split and takes all figures.

    Args:
      detector: a `jaxsr.detection.detector.Detector`, which sizes images as its network was
        trained to; figures are taken at that size.
      data: the split.
      **options: see `DetectionMetrics`.

    Raises:
      ValueError: an argument is out of range, or the network gives NaN.
      RuntimeError: an image changed or went away since the split was checked.
    """
    metrics, form = DetectionMetrics(**options), detector.form
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
