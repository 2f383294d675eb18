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
"""Elements from which on torch sums over pixels; a call of several operators takes 0.1 ms."""


def sums_by_torch(x: jax.Array) -> bool:
    """Whether torch's kernel is called for sums over the pixels of each channel."""
    return enabled() and x.dtype.name in ("float32", "float64") and x.size >= _LEAST_SUMMED
