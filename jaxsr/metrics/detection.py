"""Figures of infrared small-target detection: IoU, nIoU, precision, recall, F1, Pd, Fa, ROC, AUC.

Logits and masks are (n, height, width). A pixel is predicted where its logit is above that of the
threshold: above 0 for a probability of 0.5.

- IoU, precision, recall and F1 are over all pixels of the data set together (MSHNet's code and
  paper call that IoU "mIoU"). nIoU is the mean of each image's IoU.
- Pd is found targets over targets, Fa the pixels of predictions without a target over all pixels;
  `components.py` defines a found target. Fa is a fraction here and is printed ×1e-6.
- The table of the curve is over pixels, at thresholds 0, 1/n, …, (n − 1)/n of the probability, with
  Pd and Fa at each.
- ROC and AUC have all thresholds: pixels are counted by the upper 16 bits of their logit, which
  tell values apart to 1 part in 128. The area under the ROC by the trapezoidal rule is the AUC.

A quotient 0/0 counts as 0, as in BasicIRSTD and `pyirstdmetrics`, whose figures these equal. That
makes the IoU of an image 0 where there is nothing to find and nothing is predicted: `empty` chooses
another convention for nIoU, and the report counts the images without a target.

A `DetectionMetrics` is for one pass over one data set: there is nothing to forget to reset.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.metrics.components import components, match

Empty = Literal["zero", "one", "skip"]

_RANKS = 1 << 16


def pixel_figures(counts: Shaped[np.ndarray, "n 3"], *, empty: Empty = "zero") -> dict[str, float]:
    """IoU, nIoU, precision, recall and F1 of all images.

    Args:
      counts: true positive, false positive and false negative pixels of each image.
      empty: nIoU of an image without targets, marked or true; or skip leaves it out.
    """
    counts = np.asarray(counts, np.int64).reshape(-1, 3)
    right, wrong, missed = (int(total) for total in counts.sum(axis=0))
    union = counts.sum(axis=1)
    each = np.where(union > 0, counts[:, 0] / np.maximum(union, 1), float(empty == "one"))
    each = each[union > 0] if empty == "skip" else each
    return {
        "iou": _ratio(right, right + wrong + missed),
        "niou": float(each.mean()) if len(each) else 0.0,
        "precision": _ratio(right, right + wrong),
        "recall": _ratio(right, right + missed),
        "f1": _ratio(2 * right, 2 * right + wrong + missed),
    }


def logit(probability: float) -> float:
    """The logit of a probability in [0, 1); minus infinity for 0."""
    if not 0 <= probability < 1:
        raise InputError(f"a threshold must be at least 0 and below 1, got {probability}")
    return float(np.log(probability / (1 - probability))) if probability > 0 else float("-inf")


@dataclass(frozen=True)
class ImageFigures:
    """One row of the per-image table."""

    name: str
    iou: float
    targets: int
    found: int
    false_detections: int
    false_pixels: int
    true_positive_pixels: int
    false_positive_pixels: int
    false_negative_pixels: int
    pixels: int


@dataclass(frozen=True)
class Curve:
    """Figures at each threshold, the thresholds ascending."""

    threshold: tuple[float, ...]
    true_positive_rate: tuple[float, ...]
    false_positive_rate: tuple[float, ...]
    pd: tuple[float, ...]
    fa: tuple[float, ...]


@dataclass(frozen=True)
class Roc:
    """Corners of the pixels' ROC over all thresholds, from (0, 0) to (1, 1)."""

    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]


@dataclass(frozen=True)
class DetectionReport:
    """All figures of a data set."""

    iou: float
    niou: float
    precision: float
    recall: float
    f1: float
    pd: float
    fa: float
    """A fraction of all pixels; multiply by 1e6 for the papers' figure."""
    auc: float | None
    """None where all pixels are of one kind."""
    threshold: float
    distance_px: float
    empty: Empty
    images: int
    images_without_target: int
    targets: int
    found: int
    false_detections: int
    curve: Curve
    roc: Roc = field(repr=False)
    """Empty where all pixels are of one kind. Not in `as_dict`: it may have 65,536 corners."""
    per_image: tuple[ImageFigures, ...] = field(repr=False)

    def as_dict(self) -> JsonObject:
        """The report as plain data for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "roc"}

    def __str__(self) -> str:
        auc = "–" if self.auc is None else f"{self.auc:.4f}"
        return (
            f"IoU {100 * self.iou:.2f}  nIoU {100 * self.niou:.2f}  "
            f"precision {100 * self.precision:.2f}  recall {100 * self.recall:.2f}  "
            f"F1 {100 * self.f1:.2f}  Pd {100 * self.pd:.2f}  Fa {1e6 * self.fa:.2f}e-6  AUC {auc}"
        )


class DetectionMetrics:
    """Gathers the figures of one data set, batch by batch."""

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        distance_px: float = 3.0,
        curve_points: int = 10,
        empty: Empty = "zero",
    ) -> None:
        """Args:
          threshold: probability above which a pixel is predicted.
          distance_px: centroids closer than this match.
          curve_points: thresholds of the curve.
          empty: IoU of an image without target and prediction: "zero" (`pyirstdmetrics`), "one", or
            "skip" to leave it out of the mean.

        Raises:
          ValueError: an argument is out of range.
        """
        if empty not in ("zero", "one", "skip"):
            raise InputError(f"empty must be 'zero', 'one' or 'skip', got {empty!r}")
        if curve_points < 1:
            raise InputError(f"curve_points must be at least 1, got {curve_points}")
        if not distance_px > 0:
            raise InputError(f"distance_px must be positive, got {distance_px}")
        self._cut = logit(threshold)
        self._threshold, self._distance = threshold, distance_px
        self._empty: Empty = empty
        self._curve = np.linspace(0, 1, curve_points, endpoint=False)
        self._cuts = np.array([logit(float(t)) for t in self._curve])
        self._rows: list[ImageFigures] = []
        # Per threshold: found targets, pixels of unmatched predictions, true and false positives.
        self._at = np.zeros((curve_points, 4), np.int64)
        self._ranked = np.zeros((2, _RANKS), np.int64)

    def update(
        self,
        names: Sequence[str],
        logits: Float[np.ndarray, "n h w"],
        masks: Shaped[np.ndarray, "n h w"],
    ) -> None:
        """Adds a batch.

        Raises:
          ValueError: the shapes differ, or a logit is NaN.
        """
        logits, masks = np.asarray(logits), np.asarray(masks)
        if logits.ndim != 3 or logits.shape != masks.shape or len(names) != len(logits):
            raise InputError(
                f"logits {logits.shape} and masks {masks.shape} must both be (n, height, width) "
                f"with a name for each; got {len(names)} name(s)"
            )
        if np.isnan(logits).any():
            worst = names[int(np.isnan(logits).any(axis=(1, 2)).argmax())]
            raise InputError(f"the prediction for {worst} has NaN; the weights are not usable")
        for name, scores, mask in zip(names, logits, masks != 0, strict=True):
            self._add(name, scores, mask)

    def _add(self, name: str, scores: np.ndarray, mask: np.ndarray) -> None:
        targets = components(mask)
        predicted = scores > self._cut
        matched = match(components(predicted), targets, distance_px=self._distance)
        right, wrong = int((predicted & mask).sum()), int((predicted & ~mask).sum())
        missed = int(mask.sum()) - right
        self._rows.append(
            ImageFigures(
                name=name,
                iou=_ratio(right, right + wrong + missed),
                targets=matched.targets,
                found=matched.found,
                false_detections=matched.predictions - matched.found,
                false_pixels=matched.false_pixels,
                true_positive_pixels=right,
                false_positive_pixels=wrong,
                false_negative_pixels=missed,
                pixels=mask.size,
            )
        )
        for point, cut in enumerate(self._cuts):
            above = scores > cut
            at = match(components(above), targets, distance_px=self._distance)
            hits = int((above & mask).sum())
            self._at[point] += (at.found, at.false_pixels, hits, int(above.sum()) - hits)
        ranks = _rank(scores)
        for kind, which in enumerate((~mask, mask)):
            self._ranked[kind] += np.bincount(ranks[which], minlength=_RANKS)

    def report(self) -> DetectionReport:
        """The figures of everything added so far.

        Raises:
          ValueError: no image was added.
        """
        rows = self._rows
        if not rows:
            raise InputError("no image was evaluated; give a split with at least one")
        kinds = ("true_positive_pixels", "false_positive_pixels", "false_negative_pixels")
        counts = np.array([[getattr(row, kind) for kind in kinds] for row in rows])
        sums = ("targets", "found", "pixels", "false_pixels", "false_detections")
        total = {name: sum(getattr(row, name) for row in rows) for name in sums}
        background, foreground = (int(kind.sum()) for kind in self._ranked)
        hits_at, false_pixels_at, true_at, false_at = self._at.T.tolist()
        return DetectionReport(
            **pixel_figures(counts, empty=self._empty),
            pd=_ratio(total["found"], total["targets"]),
            fa=_ratio(total["false_pixels"], total["pixels"]),
            auc=_auc(self._ranked),
            threshold=self._threshold,
            distance_px=self._distance,
            empty=self._empty,
            images=len(rows),
            images_without_target=sum(r.targets == 0 for r in rows),
            targets=total["targets"],
            found=total["found"],
            false_detections=total["false_detections"],
            curve=Curve(
                threshold=tuple(self._curve.tolist()),
                true_positive_rate=tuple(_ratio(n, foreground) for n in true_at),
                false_positive_rate=tuple(_ratio(n, background) for n in false_at),
                pd=tuple(_ratio(n, total["targets"]) for n in hits_at),
                fa=tuple(_ratio(n, total["pixels"]) for n in false_pixels_at),
            ),
            roc=_roc(self._ranked),
            per_image=tuple(rows),
        )


def _ratio(part: int, total: int) -> float:
    return part / total if total else 0.0


def _rank(scores: np.ndarray) -> np.ndarray:
    """The upper 16 bits of each float32, made to count upwards with its value."""
    # + 0: the zeros of both signs are equal.
    bits = (np.ascontiguousarray(scores, np.float32) + 0).view(np.uint32)
    negative = bits >> 31 == 1
    return (np.where(negative, ~bits, bits | np.uint32(1 << 31)) >> np.uint32(16)).astype(np.int64)


def _auc(ranked: np.ndarray) -> float | None:
    """Chance that a target's pixel ranks above a background pixel, equals counting half."""
    background, foreground = (kind.astype(np.float64) for kind in ranked)
    pairs = background.sum() * foreground.sum()
    if not pairs:
        return None
    below = np.cumsum(background) - background
    return float((foreground * (below + background / 2)).sum() / pairs)


def _roc(ranked: np.ndarray) -> Roc:
    """The ROC's corners, the highest threshold first."""
    if not ranked.sum(axis=1).all():
        return Roc((), ())
    counts = ranked[:, ranked.any(axis=0)][:, ::-1]
    rates = np.pad(counts.cumsum(axis=1), ((0, 0), (1, 0))) / ranked.sum(axis=1, keepdims=True)
    false_rate, true_rate = rates.tolist()
    return Roc(tuple(false_rate), tuple(true_rate))
