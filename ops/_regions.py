"""Values handed on within connected regions of a mask.

A round hands the greatest value along whole runs of rows and of columns, and to diagonal
neighbours. A region needs as many rounds as its longest path has turns.
"""

from functools import partial, reduce
from typing import cast

import jax
import jax.numpy as jnp

from jaxsr.ops._border import pad_axis
from jaxsr.ops._typed_jax import fori_loop, platform_dependent, zeros_like

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

    # -1 is not a value: the loop begins.
    return jax.lax.while_loop(goes_on, step, (values - 1, values))[1]


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
    """Reaches twice as far each time, where the run is unbroken.

    A loop, because a program with every reach spelled out takes a minute to compile for a TPU.
    """
    extent = x.shape[axis]

    def from_place(x: jax.Array, offset: jax.Array) -> jax.Array:
        """The elements so many places on, or 0."""
        wide = pad_axis(x, axis, extent, extent, "constant")
        return jax.lax.dynamic_slice_in_dim(wide, extent + offset, extent, axis)

    for sign in (-1, 1):

        def reach_on(step: jax.Array, state: Pair, sign: int = sign) -> Pair:
            reached, unbroken = state
            offset = sign * (1 << step)
            near = jnp.where(unbroken, from_place(reached, offset), 0)
            return jnp.maximum(reached, near), unbroken & from_place(unbroken, offset)

        steps = (extent - 1).bit_length()
        x, _ = cast(Pair, fori_loop(0, steps, reach_on, (x, mask)))
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
