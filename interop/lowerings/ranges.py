"""Evenly spaced numbers, by the arithmetic of torch's kernel or counted; identities; triangles."""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers


@lowers(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(
    start: ArrayLike, end: ArrayLike, steps: int, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """From both ends to the middle; whole numbers in float64, rounded towards 0."""
    result = to_jax_dtype(dtype or torch.get_default_dtype())
    is_integer = jnp.issubdtype(result, jnp.integer)
    wide = to_jax_dtype(torch.float64) if is_integer else jnp.promote_types(result, jnp.float32)
    # torch makes whole numbers of both ends first.
    start, end = (jnp.asarray(v).astype(result).astype(wide) for v in (start, end))
    if steps == 1:
        return start.reshape(1).astype(result)
    index = jnp.arange(steps)
    # The barrier keeps XLA from multiplying by an inverse, which can cross a whole number.
    step = (end - start) / lax.optimization_barrier(jnp.asarray(max(steps - 1, 1), wide))
    is_ahead = index < steps // 2
    origin = jnp.where(is_ahead, start, end)
    steps_away = jnp.where(is_ahead, index, index - (steps - 1)).astype(wide)
    if not is_integer:
        return (origin + step * steps_away).astype(result)
    return _multiply_add(step, steps_away, origin).astype(result)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(*limits: float, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.arange(*limits, dtype=None if dtype is None else to_jax_dtype(dtype))


@lowers(aten.tril_indices.default)
def tril_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> jax.Array:
    return jnp.stack(jnp.tril_indices(rows, offset, columns))


@lowers(aten.triu_indices.default)
def triu_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> jax.Array:
    return jnp.stack(jnp.triu_indices(rows, offset, columns))


@lowers(aten.eye.default, aten.eye.m)
def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None) -> jax.Array:
    """(n, m). torch's decomposition counts in uint16, which its own `arange` on CPUs refuses."""
    return jnp.eye(n, m, dtype=to_jax_dtype(dtype or torch.get_default_dtype()))


def _multiply_add(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """a · b + c rounded once, as torch's kernels compute it on CPUs with FMA.

    XLA joins a product and a sum as its compiler likes; the halves of `a` make products without
    rounding, where both ways are equal.
    """
    bits = 22 if a.dtype == jnp.float64 else 11
    high = lax.reduce_precision(a.astype(jnp.float32), 8, bits).astype(a.dtype)
    product, rest = high * b, (a - high) * b
    total = product + c
    added = total - product
    lost = (product - (total - added)) + (c - added)
    return total + (lost + rest)
