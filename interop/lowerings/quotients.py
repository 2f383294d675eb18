"""Quotients, whose slopes stay finite as long as torch's do.

JAX's slope by the divisor has its square, which float16 does not hold above 255 or below 0.004, nor
float32 with an epsilon of 1e-20: gradients were 0 or infinite, or NaN where the numerator is 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import wide_dtype, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.elementwise import with_partials


def divided(x: jax.Array, y: ArrayLike) -> jax.Array:
    """`x / y`. XLA would multiply by the inverse of a number or a row, and cross whole numbers."""
    return x / jnp.where(x == x, y, jnp.nan)  # noqa: PLR0124


@jax.custom_jvp
def _quotient(x: jax.Array, y: jax.Array) -> jax.Array:
    return divided(x, y)


def _quotient_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (x, y), (tangent_x, tangent_y) = primals, tangents
    out = _quotient(x, y)
    total: Any = jnp.zeros_like(out)
    if not isinstance(tangent_x, SymbolicZero):
        total = tangent_x / y
    if not isinstance(tangent_y, SymbolicZero):
        # XLA makes x / (y * y) of (x / y) / y. Half precision is rounded once.
        wide_tangent, wide_out, wide_y = map(widened, (tangent_y, out, y))
        total = total - (wide_tangent * wide_out / wide_y).astype(out.dtype)
    return out, total


_quotient.defjvp(_quotient_jvp, symbolic_zeros=True)


@lowers(aten.div.Tensor, aten.div.Scalar)
def quotient(x: ArrayLike, y: ArrayLike) -> jax.Array:
    dtype = jnp.result_type(x, y)
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else wide_dtype(dtype)
    return _quotient(*(jnp.asarray(v, dtype) for v in jnp.broadcast_arrays(x, y)))


_reciprocal = with_partials(lambda x: 1 / x, lambda _, out: -out * out)


@lowers(aten.reciprocal.default)
def reciprocal(x: jax.Array) -> jax.Array:
    return _reciprocal(x if jnp.issubdtype(x.dtype, jnp.inexact) else widened(x))
