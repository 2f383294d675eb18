"""How far two tensors lie apart, in figures that do not depend on their scale."""

from dataclasses import dataclass, replace

import numpy as np

from jaxsr.comparison.statistics import LIMIT, widened


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
    result: int = 0
    """Number of the result, of a call's several ones."""
    worst_at: int = -1
    """Flat index of the element that differs most, or of the first that is unlike; -1 if all are
    equal."""
    worst_pair: tuple[float, float] = (0.0, 0.0)
    """Its value on either side."""

    @property
    def worst(self) -> float:
        """The larger of the scale-free figures."""
        return max(self.relative, self.peak)


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
    a, b = widened(first).reshape(-1), widened(second).reshape(-1)
    equal = replace(EQUAL, compared=a.size)
    if exact:
        unlike = int(np.count_nonzero(a != b))
        # One wrong index is a wrong result: no share of them is rounding.
        share = (unlike / a.size) ** 0.5
        error = ErrorMetrics(share, float(unlike > 0), float(np.abs(a - b).max()), unlike, a.size)
        return _at(error, int(np.argmax(a != b)), a, b) if unlike else error
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    if unlike := int(np.count_nonzero(kinds_a != kinds_b)):
        error = replace(INCOMPARABLE, unlike=unlike, compared=a.size)
        return _at(error, int(np.argmax(kinds_a != kinds_b)), a, b)
    inside = (kinds_a == 0) & (kinds_b == 0)
    places = np.flatnonzero(inside)
    a, b = a[inside], b[inside]
    difference = np.abs(a - b)
    largest = float(difference.max(initial=0.0))
    if largest == 0:
        return equal
    scale = float(np.sqrt(np.square(a).mean())) if rms is None else rms
    if scale == 0:
        worst = int(difference.argmax())
        error = replace(INCOMPARABLE, largest=largest, compared=first.size)
    else:
        share = difference / (np.abs(a) + scale)
        worst = int(share.argmax())
        relative = float(np.sqrt(np.square(difference).mean())) / scale
        error = replace(equal, relative=relative, peak=float(share[worst]), largest=largest)
    return replace(
        error, worst_at=int(places[worst]), worst_pair=(float(a[worst]), float(b[worst]))
    )


def _at(error: ErrorMetrics, place: int, a: np.ndarray, b: np.ndarray) -> ErrorMetrics:
    return replace(error, worst_at=place, worst_pair=(float(a[place]), float(b[place])))


def worst_of(pairs: list[ErrorMetrics]) -> ErrorMetrics:
    """The worst of a call's several results."""
    numbered = (replace(pair, result=number) for number, pair in enumerate(pairs))
    return max(numbered, key=lambda pair: pair.worst, default=EQUAL)


def _kinds(values: np.ndarray) -> np.ndarray:
    """0 for ordinary numbers, ±1 beyond ±`LIMIT`, 2 for NaN."""
    kinds = (values > LIMIT).astype(np.int8) - (values < -LIMIT)
    kinds[np.isnan(values)] = 2
    return kinds
