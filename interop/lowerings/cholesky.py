"""Cholesky factors and the systems they solve, with torch's gradients.

Torch's gradients are those of `A = L Lᴴ` with the whole of A and L, though one triangle is read.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.errors import UnsupportedTorchError


def _adjoint(a: jax.Array) -> jax.Array:
    return jnp.conj(a.mT)


@lowers(aten.cholesky.default)
def cholesky(a: jax.Array, upper: bool = False) -> jax.Array:
    """A matrix that is not positive definite gives NaN, where torch raises."""
    if upper:
        read = jnp.triu(a) + _adjoint(jnp.triu(a, 1))
    else:
        read = jnp.tril(a) + _adjoint(jnp.tril(a, -1))
    lower = lax.linalg.cholesky(straight_through(a, read), symmetrize_input=True)
    return _adjoint(lower) if upper else lower


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(
    a: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    if check_errors:
        raise UnsupportedTorchError(
            "linalg.cholesky_ex with check_errors=True reads values; leave it out, and look for NaN"
        )
    factor = cholesky(a, upper)
    # Which leading minor fails first is not known: 1 stands for any.
    return factor, jnp.isnan(factor).any((-2, -1)).astype(jnp.int32)


@lowers(aten.cholesky_solve.default)
def cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool = False) -> jax.Array:
    lower = _adjoint(factor) if upper else factor
    shape = jnp.broadcast_shapes(b.shape[:-2], lower.shape[:-2])
    b = jnp.broadcast_to(b, shape + b.shape[-2:])
    lower = jnp.broadcast_to(lower, shape + lower.shape[-2:])
    lower = straight_through(lower, jnp.tril(lower))
    read = lax.stop_gradient(lower)

    def matvec(x: jax.Array) -> jax.Array:
        return lower @ (_adjoint(lower) @ x)

    def solve(_: Callable | None, rhs: jax.Array) -> jax.Array:
        half = lax.linalg.triangular_solve(read, rhs, left_side=True, lower=True)
        return lax.linalg.triangular_solve(
            read, half, left_side=True, lower=True, transpose_a=True, conjugate_a=True
        )

    def transpose_solve(_: Callable | None, rhs: jax.Array) -> jax.Array:
        return jnp.conj(solve(None, jnp.conj(rhs)))

    return lax.custom_linear_solve(matvec, b, solve, transpose_solve)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(factor: jax.Array, upper: bool = False) -> jax.Array:
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return cholesky_solve(eye, factor, upper)
