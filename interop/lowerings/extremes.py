"""Maxima whose gradient is shared among the elements equal to them, as torch shares it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def equal(x: jax.Array, y: jax.Array) -> jax.Array:
    """x == y, of what both are in their own dtype.

    XLA computes bfloat16 in float32, and rounds only what it writes to memory. A maximum that was
    written is equal to none of the products that it was found among, where these are made again:
    its gradient would be divided by a count of zero.
    """
    return rounded(x) == rounded(y)


def rounded(x: jax.Array) -> jax.Array:
    """What `x` is in its own dtype, for comparisons: narrow ones are in float32."""
    if not _is_narrow(x):
        return x
    kind = jnp.finfo(x.dtype)
    return lax.reduce_precision(x.astype(jnp.float32), kind.nexp, kind.nmant)


def _is_narrow(x: jax.Array) -> bool:
    """Whether XLA may compute with more digits than `x` has."""
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4


def sharing(
    array: jax.Array,
    largest: Callable[[jax.Array], jax.Array],
    *,
    spread: Callable[[jax.Array], jax.Array],
    total: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """`largest(array)`, with its gradient shared among equal elements.

    Args:
      array: the elements.
      largest: finds the largest, or the smallest.
      spread: of an array like the result, what broadcasts against the elements.
      total: sums over the elements for each of the results, in float32 at least.
    """

    @jax.custom_jvp
    def run(array: jax.Array) -> jax.Array:
        return largest(array)

    @run.defjvp
    def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        (x,), (dx,) = primals, tangents
        most = run(x)
        ties = equal(x, spread(most)).astype(x.dtype)
        return most, (total(ties * dx) / total(ties)).astype(x.dtype)

    return run(array)


def extreme(
    array: jax.Array, reduction: Callable[..., jax.Array], axes: tuple[int, ...], keepdims: bool
) -> jax.Array:
    """`reduction(array, axes)`, a maximum or minimum with its gradient shared in any dtype."""
    if not _is_narrow(array):
        # Compared in its own dtype, as JAX does by itself.
        return reduction(array, axes, keepdims=keepdims)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(values.astype(jnp.float32), axes, keepdims=True)

    def found(array: jax.Array) -> jax.Array:
        return reduction(array, axes, keepdims=True)

    out = sharing(array, found, spread=lambda most: most, total=total)
    return out if keepdims else out.squeeze(axes)
