"""Which convolutions of a CPU program torch computes: measured, in one place."""

import math
from typing import Any

import jax

from jaxsr.ops._cpu_calls import enabled

_DTYPES = ("float32", "float64", "bfloat16")


def convolves_by_torch(a: jax.Array, b: jax.Array, *, shape: Any, **_: Any) -> bool:
    """Whether torch's kernel is called for a convolution or one of its gradients."""
    sizes = [math.prod(each) for each in (a.shape, b.shape, shape)]
    return enabled() and a.dtype.name in _DTYPES and 3 <= len(shape) <= 5 and all(sizes)
