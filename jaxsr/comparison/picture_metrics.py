"""Figures of the difference between two sets of pictures, on the two scales in use."""

from dataclasses import dataclass

import numpy as np

SCALES = ("0…255", "[-1, 1]")


@dataclass(frozen=True)
class Difference:
    """Absolute differences of all values of a pair, on one scale."""

    scale: str
    largest: float
    mean: float
    median: float
    p999: float
    """99.9th percentile."""
    equal: int
    """Values without any difference."""
    unequal: int

    @property
    def count(self) -> int:
        """Values compared."""
        return self.equal + self.unequal


def difference_on(scale: str, first: np.ndarray, second: np.ndarray) -> Difference:
    """Compares two arrays of 0…255 on one of `SCALES`.

    Both are brought to the scale in float32, as a network's input would be, and compared there:
    normalisation may make two values equal that were not, or the other way about.
    """
    if scale == "[-1, 1]":
        first, second = (x.astype(np.float32) / np.float32(127.5) - 1 for x in (first, second))
    apart = np.abs(first.astype(np.float32) - second.astype(np.float32)).ravel()
    median, p999 = np.percentile(apart, (50, 99.9))
    unequal = int(np.count_nonzero(apart))
    return Difference(
        scale=scale,
        largest=float(apart.max()),
        mean=float(apart.mean(dtype=np.float64)),
        median=float(median),
        p999=float(p999),
        equal=apart.size - unequal,
        unequal=unequal,
    )
