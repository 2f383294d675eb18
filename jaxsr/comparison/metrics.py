"""How far two tensors lie apart, in figures that do not depend on their scale."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jaxsr.comparison.statistics import LIMIT


@dataclass(frozen=True)
class ErrorMetrics:
    """The difference of a pair; infinite figures where the two cannot be subtracted."""

    relative: float
    """Root mean square of the difference over that of the first."""
    peak: float
    """Largest of |difference| over (|first| + root mean square of the first)."""
    largest: float
    """Largest absolute difference."""
    unlike: int = 0
    """Elements that are infinite, masked or not a number in one of the two only, or integers or
    truth values that are not equal."""
    compared: int = 0
    """Elements looked at."""

    @property
    def worst(self) -> float:
        """The larger of the scale-free figures."""
        return max(self.relative, self.peak)

    def as_row(self) -> dict[str, Any]:
        """For a file; JSON has no infinity."""
        return {k: v if np.isfinite(v) else "inf" for k, v in asdict(self).items()}


EQUAL = ErrorMetrics(0.0, 0.0, 0.0)
INCOMPARABLE = ErrorMetrics(float("inf"), float("inf"), float("inf"))


def error_metrics(
    first: np.ndarray, second: np.ndarray, *, rms: float | None = None
) -> ErrorMetrics:
    """The difference of two arrays of one shape, in float64.

    Args:
      first: sets the scale.
      second: compared with it.
      rms: root mean square to scale by. Default: the first's own; a sample's would be a guess.
    """
    if first.shape != second.shape:
        return INCOMPARABLE
    if not first.size:
        return EQUAL
    exact = first.dtype.kind in "biu" and second.dtype.kind in "biu"
    a, b = first.astype(np.float64).reshape(-1), second.astype(np.float64).reshape(-1)
    if exact:
        unlike = int(np.count_nonzero(a != b))
        share = unlike / a.size
        largest = float(np.abs(a - b).max())
        # One wrong index is a wrong result: no share of them is rounding.
        return ErrorMetrics(share**0.5, 1.0 if unlike else 0.0, largest, unlike, a.size)
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    unlike = int(np.count_nonzero(kinds_a != kinds_b))
    inside = (kinds_a == 0) & (kinds_b == 0)
    if unlike:
        return ErrorMetrics(float("inf"), float("inf"), float("inf"), unlike, a.size)
    a, b = a[inside], b[inside]
    if not a.size:
        return ErrorMetrics(0.0, 0.0, 0.0, 0, first.size)
    difference = np.abs(a - b)
    largest = float(difference.max())
    if largest == 0:
        return ErrorMetrics(0.0, 0.0, 0.0, 0, first.size)
    scale = float(np.sqrt(np.square(a).mean())) if rms is None else rms
    if scale == 0:
        return ErrorMetrics(float("inf"), float("inf"), largest, 0, first.size)
    relative = float(np.sqrt(np.square(difference).mean())) / scale
    peak = float((difference / (np.abs(a) + scale)).max())
    return ErrorMetrics(relative, peak, largest, 0, first.size)


def worst_of(pairs: list[ErrorMetrics]) -> ErrorMetrics:
    """The worst of a call's several results."""
    return max(pairs, key=lambda pair: pair.worst, default=EQUAL)


def _kinds(values: np.ndarray) -> np.ndarray:
    """0 for ordinary numbers, ±1 beyond ±`LIMIT`, 2 for NaN."""
    kinds = np.zeros(values.shape, np.int8)
    kinds[values > LIMIT] = 1
    kinds[values < -LIMIT] = -1
    kinds[np.isnan(values)] = 2
    return kinds
