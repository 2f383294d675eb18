"""Targets in an image: boxes and centroids, a mask, an overlay.

Coordinates are in the image's pixels, from its top left. A box is its first column, first row,
width and height. A centroid is the mean of its pixels' indices: (10.0, 4.0) is the middle of
a pixel.
"""

from dataclasses import asdict, dataclass

import cv2
import numpy as np
from jaxtyping import Float32, UInt8

from jaxsr.interop.annotations import JsonObject
from jaxsr.metrics.components import components

_BOX = (255, 64, 32)  # red, green, blue
_TINT = np.array(_BOX, np.float32)
_MARGIN_PX = 4


@dataclass(frozen=True)
class Target:
    """One connected component of the predicted mask."""

    x: float
    y: float
    left: int
    top: int
    width: int
    height: int
    area_px: int
    score: float
    """Highest probability within it."""


@dataclass(frozen=True)
class Findings:
    """All targets of one image or frame, without its mask: those of a long video fit in memory."""

    name: str
    frame: int | None
    height: int
    width: int
    targets: tuple[Target, ...]

    @property
    def source(self) -> JsonObject:
        """The file, and the frame of a video."""
        return {"file": self.name} | ({} if self.frame is None else {"frame": self.frame})

    def rows(self) -> list[JsonObject]:
        """A row for each target, for a table."""
        return [self.source | asdict(target) for target in self.targets]

    def as_dict(self) -> JsonObject:
        """Plain data for JSON; an image without targets has an empty list."""
        targets = [asdict(target) for target in self.targets]
        return self.source | {"height": self.height, "width": self.width, "targets": targets}


def find_targets(
    name: str,
    probability: Float32[np.ndarray, "h w"],
    *,
    threshold: float = 0.5,
    least_px: int = 1,
    frame: int | None = None,
) -> tuple[Findings, UInt8[np.ndarray, "h w"]]:
    """The targets in an image's probabilities, and their mask, which is 255 on targets.

    Args:
      name: of the image, for the tables.
      probability: at each of its pixels.
      threshold: pixels above it belong to targets.
      least_px: components of fewer pixels are left out.
      frame: its number, in a video.
    """
    regions = components(probability > threshold)
    targets, mask = [], np.zeros(probability.shape, np.uint8)
    for number, (rows, columns) in enumerate(regions.boxes):
        inside = regions.labels[rows, columns] == number + 1
        if regions.areas[number] < least_px:
            continue
        mask[rows, columns][inside] = 255
        y, x = regions.centroids[number].tolist()
        targets.append(
            Target(
                x=x,
                y=y,
                left=columns.start,
                top=rows.start,
                width=columns.stop - columns.start,
                height=rows.stop - rows.start,
                area_px=int(regions.areas[number]),
                score=float(probability[rows, columns][inside].max()),
            )
        )
    height, width = probability.shape
    findings = Findings(name=name, frame=frame, height=height, width=width, targets=tuple(targets))
    return findings, mask


def overlay(
    image: UInt8[np.ndarray, "h w 3"], findings: Findings, mask: UInt8[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "h w 3"]:
    """The image with targets tinted and boxed, a few pixels clear of them."""
    inside = mask[..., None] > 0
    tinted = np.where(inside, 0.5 * image + 0.5 * _TINT, image).astype(np.uint8)
    canvas = np.ascontiguousarray(tinted)
    for target in findings.targets:
        left, top = target.left - _MARGIN_PX, target.top - _MARGIN_PX
        box = (left, top, target.width + 2 * _MARGIN_PX, target.height + 2 * _MARGIN_PX)
        cv2.rectangle(canvas, box, _BOX, 1)
        label, text = (left, max(top - 3, 9)), f"{target.score:.2f}"
        cv2.putText(canvas, text, label, cv2.FONT_HERSHEY_SIMPLEX, 0.35, _BOX, 1, cv2.LINE_AA)
    return canvas
