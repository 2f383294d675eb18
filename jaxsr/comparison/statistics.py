"""Statistics of a tensor, and a sample of its elements, for traces that do not store it.

The sample's places are drawn once for each size and are the same on every machine, so two traces
can be compared element by element. Statistics cover the elements within ±`LIMIT`. The others
(infinities, NaN, the large negative numbers of attention masks) are counted.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from jaxsr.errors import InputError
from jaxsr.field_values import checked
from jaxsr.interop.annotations import JsonObject

SAMPLE = 256
"""Elements sampled of a tensor; smaller tensors are stored whole."""

LIMIT = 1e30
"""Magnitudes beyond it stand for infinity: masks hold the dtype's lowest number."""

_SEED = 20261121
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One tensor in a few numbers. NaN for an empty array."""

    count: int
    """Elements."""
    beyond: int
    """Elements that are not finite, or beyond ±`LIMIT`."""
    nan: int = 0
    """Elements that are not a number."""
    infinite: int = 0
    """Elements that are ±infinity."""
    mean: float
    std: float
    low: float
    high: float
    norm: float
    """Root of the sum of squares."""
    sample: np.ndarray = field(repr=False)
    """float64; the elements at `sample_places`, in order."""

    @property
    def rms(self) -> float:
        return self.norm / max(self.count - self.beyond, 1) ** 0.5

    def as_row(self) -> JsonObject:
        """Everything but the sample, for a file; values that JSON lacks are None."""
        row = {name: value for name, value in vars(self).items() if name != "sample"}
        return {name: value if np.isfinite(value) else None for name, value in row.items()}

    @classmethod
    def from_row(cls, row: JsonObject, sample: np.ndarray) -> "Figures":
        """Inverse of `as_row`."""
        names = ("mean", "std", "low", "high", "norm")
        read = {k: checked(float | None, row[k], k) for k in names}
        numbers = {k: np.nan if value is None else value for k, value in read.items()}
        # Traces of 0.3 and before have no counts of the last two.
        row = {"nan": 0, "infinite": 0, **row}
        counts = {k: checked(int, row[k], k) for k in ("count", "beyond", "nan", "infinite")}
        if min(counts.values()) < 0 or len(sample) != min(counts["count"], SAMPLE):
            raise InputError(f"a tensor of {counts['count']} elements has {len(sample)} samples")
        return cls(sample=sample, **numbers, **counts)


@functools.cache
def sample_places(count: int) -> np.ndarray:
    """Flat, sorted places of the sample of a tensor of `count` elements."""
    if count <= SAMPLE:
        return np.arange(count)
    rng = np.random.default_rng((_SEED, count))
    # Without the ends, corners and borders of images would hardly ever be among them.
    inner = rng.choice(count - 2, SAMPLE - 2, replace=False, shuffle=False) + 1
    return np.sort(np.concatenate(([0, count - 1], inner)))


def describe(array: np.ndarray) -> Figures:
    """The figures of an array, summed in float64, a block at a time."""
    flat = np.asarray(array).reshape(-1)
    count, total, low, high = 0, 0.0, np.inf, -np.inf
    for values in _blocks(flat):
        count += values.size
        total += float(values.sum())
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    mean = total / count if count else np.nan
    # A second pass: the difference of two large sums would lose a small spread.
    spread = sum(float(np.square(values - mean).sum()) for values in _blocks(flat))
    square = sum(float(np.square(values).sum()) for values in _blocks(flat))
    return Figures(
        count=flat.size,
        beyond=flat.size - count,
        nan=_count(np.isnan, flat) if count < flat.size else 0,
        infinite=_count(np.isinf, flat) if count < flat.size else 0,
        mean=mean,
        std=(spread / count) ** 0.5 if count else np.nan,
        low=low if count else np.nan,
        high=high if count else np.nan,
        norm=square**0.5,
        sample=widened(flat[sample_places(flat.size)]),
    )


def widened(array: np.ndarray) -> np.ndarray:
    """The values in float64; float16's lowest and highest number, with which it masks, infinite."""
    values = array.astype(np.float64)
    if array.dtype == np.float16:
        values[np.abs(values) == np.finfo(np.float16).max] *= np.inf
    return values


def _count(kind: np.ufunc, flat: np.ndarray) -> int:
    starts = range(0, flat.size, _BLOCK)
    return sum(int(np.count_nonzero(kind(flat[k : k + _BLOCK].astype(np.float64)))) for k in starts)


def _blocks(flat: np.ndarray) -> Iterator[np.ndarray]:
    """The values within ±`LIMIT`, float64, few at a time: a copy of all would be twice as large."""
    for start in range(0, flat.size, _BLOCK):
        values = widened(flat[start : start + _BLOCK])
        inside = np.abs(values) <= LIMIT  # NaN is not
        values = values if inside.all() else values[inside]
        if values.size:
            yield values
