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
"""Elements from which on torch sums pixels: it takes a fifth to a third of the time of XLA's walk
through windows, and a call costs as much as XLA takes for about 10,000 elements."""
_LEAST_MOMENTS_BY_ROW = 1 << 20
"""Elements of an image from which on torch computes moments of each image by itself. Below, XLA
centres all images and torch sums them in one call: torch would need one for each image."""


def sums_by_torch(x: jax.Array) -> bool:
    """Whether torch's kernel is called for sums over the pixels of each channel."""
    return enabled() and x.dtype.name in ("float32", "float64") and x.size >= _LEAST_SUMMED


def moments_by_torch(x: jax.Array, *, by_row: bool) -> bool:
    """Whether torch's kernels for batch normalisation are called for moments and their gradient.

    Args:
      x: the images, rows along axis 0.
      by_row: whether each row has moments of its own.
    """
    elements = x.size // max(1, x.shape[0])
    return sums_by_torch(x) and (not by_row or elements >= _LEAST_MOMENTS_BY_ROW)
