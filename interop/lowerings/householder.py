"""Orthogonal matrices given as Householder reflections, with derivatives that JAX's lack."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers


def _reflected(a: jax.Array, tau: jax.Array, x: jax.Array, *, transpose: bool) -> jax.Array:
    """Q x, or Qᴴ x: Q = H₁ H₂ …, Hᵢ = I - τᵢ vᵢ vᵢᴴ with vᵢ below the diagonal of column i."""
    count = tau.shape[-1]
    vectors = jnp.tril(a[..., :count], -1) + jnp.eye(a.shape[-2], count, dtype=a.dtype)
    factors = jnp.conj(tau) if transpose else tau

    def reflect(x: jax.Array, operands: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        v, factor = operands[0][..., None], operands[1][..., None, None]
        return x - factor * v * (jnp.conj(v.mT) @ x), None

    operands = (jnp.moveaxis(vectors, -1, 0), jnp.moveaxis(factors, -1, 0))
    return lax.scan(reflect, x, operands, reverse=not transpose)[0]


@lowers(aten.linalg_householder_product.default)
def householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    eye = jnp.eye(a.shape[-2], a.shape[-1], dtype=a.dtype)
    return _reflected(a, tau, jnp.broadcast_to(eye, a.shape), transpose=False)


@lowers(aten.ormqr.default)
def ormqr(
    a: jax.Array, tau: jax.Array, other: jax.Array, left: bool = True, transpose: bool = False
) -> jax.Array:
    if left:
        return _reflected(a, tau, other, transpose=transpose)
    return jnp.conj(_reflected(a, tau, jnp.conj(other.mT), transpose=not transpose).mT)
