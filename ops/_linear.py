"""Small linear systems without LAPACK: the same on every device, in full float32 on TPUs."""

import jax
import jax.numpy as jnp

from jaxsr.ops._typed_jax import arange, fori_loop


def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """`matrix @ x == right` of (K, K) and (K, M), by elimination with row exchanges.

    A loop of K steps over the whole system: for up to some hundred unknowns.
    """
    count = matrix.shape[0]
    rows = arange(count)

    def eliminate(k: jax.Array, system: jax.Array) -> jax.Array:
        column = system[:, k]
        pivot = jnp.argmax(jnp.where(rows >= k, jnp.abs(column), -1))
        order = jnp.where(rows == k, pivot, jnp.where(rows == pivot, k, rows))
        system = system[order]
        row = system[k] / system[k, k]
        others = system - system[:, k, None] * row
        return jnp.where((rows == k)[:, None], row, others)

    system = jnp.concatenate([matrix, right], 1)
    return fori_loop(0, count, eliminate, system)[:, count:]
