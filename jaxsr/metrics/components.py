"""Targets as connected components, and which of them a prediction finds.

Masks are (height, width), anything but 0 being a target. Pixels that touch by a side or a corner
belong together (8-connected). A predicted component and a target match if their centroids lie less
than a distance apart; each target in turn, from the top left, takes the first prediction in the
same order that is left, so that one prediction never counts for two targets. That is the rule of
the public codes of DNA-Net, MSHNet and BasicIRSTD, and of `pyirstdmetrics`.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float64, Int64, Shaped
from scipy import ndimage

from jaxsr.errors import InputError

_EIGHT = np.ones((3, 3), bool)


@dataclass(frozen=True, eq=False)
class MaskComponents:
    """Connected components in the order of their first pixel, row by row."""

    centroids: Float64[np.ndarray, "n 2"]
    """Mean row and column of each one's pixels."""
    areas: Int64[np.ndarray, " n"]
    """Pixels of each."""
    boxes: tuple[tuple[slice, slice], ...]
    """Rows and columns of each."""
    labels: Shaped[np.ndarray, "h w"]
    """Number of each pixel's component, from 1; 0 for none."""

    def __len__(self) -> int:
        return len(self.areas)


@dataclass(frozen=True, eq=False)
class Match:
    """How the targets and predictions of one image match."""

    targets: int
    found: int
    """Targets matched with a prediction; also the number of matched predictions."""
    predictions: int
    false_pixels: int
    """Pixels of all the predictions without a target, however many have the same area."""
    pairs: tuple[tuple[int, int], ...]
    """(target, prediction) of each match, by their place in their `MaskComponents`."""


def components(mask: Shaped[np.ndarray, "h w"]) -> MaskComponents:
    """The components of a mask."""
    if mask.ndim != 2:
        raise InputError(f"a mask must be (height, width), got shape {mask.shape}")
    labels, count = cast(tuple[np.ndarray, int], ndimage.label(mask != 0, structure=_EIGHT))
    flat = labels.ravel()
    # SciPy counts by first pixel today, which it does not promise and the matching relies on.
    numbers, first = np.unique(flat, return_index=True)
    inside = numbers > 0
    order = numbers[inside][np.argsort(first[inside])]
    renumber = np.zeros(count + 1, labels.dtype)
    renumber[order] = np.arange(1, count + 1)
    labels = renumber[labels]
    areas = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    rows, columns = np.nonzero(labels)
    number = labels[rows, columns]
    sums = [np.bincount(number, weights=at, minlength=count + 1)[1:] for at in (rows, columns)]
    return MaskComponents(
        centroids=np.stack(sums, axis=1) / np.maximum(areas, 1)[:, None],
        areas=areas.astype(np.int64),
        boxes=tuple(ndimage.find_objects(labels, max_label=count)),
        labels=labels,
    )


def match(predicted: MaskComponents, targets: MaskComponents, *, distance_px: float = 3.0) -> Match:
    """Matches predictions with targets as the module's docstring says.

    Raises:
      ValueError: the distance is not positive.
    """
    if not distance_px > 0:
        raise InputError(f"distance_px must be positive, got {distance_px}")
    free = np.ones(len(predicted), bool)
    pairs: list[tuple[int, int]] = []
    for number, centroid in enumerate(targets.centroids):
        offset = predicted.centroids - centroid
        near = free & (np.sqrt((offset**2).sum(axis=1)) < distance_px)
        if near.any():
            chosen = int(near.argmax())
            free[chosen] = False
            pairs.append((number, chosen))
    return Match(
        targets=len(targets),
        found=len(pairs),
        predictions=len(predicted),
        false_pixels=int(predicted.areas[free].sum()),
        pairs=tuple(pairs),
    )
