"""Which operations of a CPU program torch computes: measured, in one place."""

import math
from collections.abc import Sequence

import jax

from jaxsr.ops._cpu_calls import enabled

_DTYPES = ("float32", "float64", "bfloat16")


def convolves_by_torch(a: jax.Array, b: jax.Array, shape: Sequence[int]) -> bool:
    """Whether torch's kernel is called for a convolution or one of its gradients."""
    sizes = [math.prod(each) for each in (a.shape, b.shape, shape)]
    return enabled() and a.dtype.name in _DTYPES and 3 <= len(shape) <= 5 and all(sizes)


_LEAST_SUMMED = 1 << 15
_LEAST_SUMMED_BY_ROW = 1 << 20
"""Elements of a statistic from which on torch sums them. A call takes 0.1 ms for each statistic;
the instance normalisations of Fast-SRGAN's step took 50 of its 207 ms that way."""


def sums_by_torch(x: jax.Array, *, by_row: bool) -> bool:
    """Whether torch's kernel is called for sums over the pixels of each channel.

    Args:
      x: the images, rows along axis 0.
      by_row: whether each row has sums of its own.
    """
    elements = x.size // max(1, x.shape[0]) if by_row else x.size
    least = _LEAST_SUMMED_BY_ROW if by_row else _LEAST_SUMMED
    return enabled() and x.dtype.name in ("float32", "float64") and elements >= least
