"""Values handed on within connected regions of a mask.

A round hands the greatest value along whole runs of rows and of columns, and to diagonal
neighbours. A region needs as many rounds as its longest path has turns.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp

from jaxsr.ops._border import pad_axis
from jaxsr.ops._typed_jax import associative_scan, platform_dependent, zeros_like

Pair = tuple[jax.Array, jax.Array]


def greatest_in_region(
    values: jax.Array, mask: jax.Array, axes: tuple[int, int], *, diagonal: bool
) -> jax.Array:
    """The greatest of the values of each pixel's region; 0 outside the mask.

    Args:
      values: whole numbers from 0.
      mask: where the regions are.
      axes: height and width, counted from the end.
      diagonal: whether pixels that share a corner alone are connected.
    """
    values = jnp.where(mask, values, zeros_like(values))

    def hand_on(x: jax.Array) -> jax.Array:
        for axis in axes:
            x = _along_runs(x, mask, axis + x.ndim)
        if diagonal:
            x = jnp.where(mask, _greatest_of_nine(x, axes), 0)
        return x

    def goes_on(state: Pair) -> jax.Array:
        return jnp.any(state[0] != state[1])

    def step(state: Pair) -> Pair:
        return state[1], hand_on(state[1])

    return jax.lax.while_loop(goes_on, step, (values, hand_on(values)))[1]


def _along_runs(x: jax.Array, mask: jax.Array, axis: int) -> jax.Array:
    """The greatest value of each unbroken run along an axis."""
    return platform_dependent(
        x,
        mask,
        cpu=partial(_line_by_line, axis=axis),
        default=partial(_in_logarithmic_depth, axis=axis),
    )


def _line_by_line(x: jax.Array, mask: jax.Array, axis: int) -> jax.Array:
    """A loop along the axis, which vectorises across it on CPUs."""

    def step(carry: jax.Array, line: Pair) -> Pair:
        value, is_set = line
        carry = jnp.where(is_set, jnp.maximum(carry, value), 0)
        return carry, carry

    lines, sets = jnp.moveaxis(x, axis, 0), jnp.moveaxis(mask, axis, 0)
    for reverse in (False, True):
        _, lines = jax.lax.scan(step, zeros_like(lines[0]), (lines, sets), reverse=reverse)
    return jnp.moveaxis(lines, 0, axis)


def _in_logarithmic_depth(x: jax.Array, mask: jax.Array, axis: int) -> jax.Array:
    """Scans that join pairs of runs."""

    def join(first: Pair, second: Pair) -> Pair:
        (early, early_ends), (late, late_ends) = first, second
        return jnp.where(late_ends, late, jnp.maximum(early, late)), early_ends | late_ends

    for reverse in (False, True):
        x, _ = associative_scan(join, (x, ~mask), reverse=reverse, axis=axis)
    return x


def _greatest_of_nine(x: jax.Array, axes: tuple[int, int]) -> jax.Array:
    for axis in axes:
        place, extent = axis + x.ndim, x.shape[axis]
        wide = pad_axis(x, place, 1, 1, "constant")
        x = reduce(
            jnp.maximum,
            (jax.lax.slice_in_dim(wide, k, k + extent, axis=place) for k in range(3)),
        )
    return x
