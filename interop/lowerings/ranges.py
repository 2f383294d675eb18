"""Evenly spaced numbers between tensors, by the arithmetic of torch's kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.registry import lowers

aten = torch.ops.aten


@lowers(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None) -> jax.Array:
    """From both ends to the middle; whole numbers in float64, rounded towards 0."""
    result = to_jax_dtype(dtype or torch.get_default_dtype())
    is_integer = jnp.issubdtype(result, jnp.integer)
    wide = to_jax_dtype(torch.float64) if is_integer else jnp.promote_types(result, jnp.float32)
    # torch makes whole numbers of both ends first.
    start, end = (jnp.asarray(v).astype(result).astype(wide) for v in (start, end))
    if steps == 1:
        return start.reshape(1).astype(result)
    index = jnp.arange(steps)
    # The barriers keep XLA from multiplying by an inverse, and from one rounding of a product and
    # a sum: either can cross a whole number.
    step = (end - start) / lax.optimization_barrier(jnp.asarray(max(steps - 1, 1), wide))
    ways = lax.optimization_barrier((step * index, step * (steps - 1 - index)))
    ahead, back = start + ways[0], end - ways[1]
    return jnp.where(index < steps // 2, ahead, back).astype(result)
