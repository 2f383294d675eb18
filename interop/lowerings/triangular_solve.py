"""Triangular systems on CPUs, in XLA's own operations.

jaxlib 0.10 solves them with LAPACK, each call on a thread of XLA's pool, which then waits for
matrices that it queued in the same pool. Where as many calls run side by side as the pool has
threads (two layers, or two simulated devices on two cores), all wait for ever. This rule applies to
every JAX program of the process, and differentiates as JAX's primitive does.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir

_LEAF = 64
"""Rows that are solved one after another; more are halved, which leaves products."""


def solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> jax.Array:
    """`jax.lax.linalg.triangular_solve`, with the same arguments."""
    a = a.conj() if conjugate_a else a
    # x op(a) = b is op(a)ᵀ xᵀ = bᵀ.
    if transpose_a == left_side:
        a, lower = a.mT, not lower
    b = b if left_side else b.mT
    if not lower:
        a, b = jnp.flip(a, (-2, -1)), jnp.flip(b, -2)
    if unit_diagonal:
        diagonal = jnp.ones(a.shape[:-1], a.dtype)
    else:
        diagonal = jnp.diagonal(a, axis1=-2, axis2=-1)
    x = _forward(jnp.tril(a, -1), diagonal[..., None], b)
    x = x if lower else jnp.flip(x, -2)
    return x if left_side else x.mT


def _forward(below: jax.Array, diagonal: jax.Array, b: jax.Array) -> jax.Array:
    """Forward substitution: `below` (…, N, N) strictly lower, `diagonal` (…, N, 1), b (…, N, K)."""
    rows = b.shape[-2]
    if not b.size:
        return b
    if rows > _LEAF:
        half = rows // 2
        first = _forward(below[..., :half, :half], diagonal[..., :half, :], b[..., :half, :])
        rest = b[..., half:, :] - _product(below[..., half:, :half], first)
        second = _forward(below[..., half:, half:], diagonal[..., half:, :], rest)
        return jnp.concatenate((first, second), -2)

    def row(index: jax.Array, x: jax.Array) -> jax.Array:
        def at(array: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(array, index, 1, array.ndim - 2)

        solved = (at(x) - _product(at(below), x)) / at(diagonal)
        return lax.dynamic_update_slice_in_dim(x, solved, index, x.ndim - 2)

    return lax.fori_loop(0, rows, row, b)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


mlir.register_lowering(
    jax.lax.linalg.triangular_solve_p, mlir.lower_fun(solve, multiple_results=False), platform="cpu"
)
