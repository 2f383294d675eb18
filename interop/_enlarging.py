"""The gradient of bilinear enlarging by a whole number, as CPUs compute it fast.

The resize's own rule takes the gradients of strided slices and gathers: pads and scatters, 15 times
slower than the resize itself. Every output of an enlarging by f reads the pixel it lies in and one
of its two neighbours; so f weighted sums of three shifted copies, interleaved, are the same linear
map, and their gradient is of the same form. Accelerators keep the resize's rule.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MOST = 8
"""Factor beyond which the interleaved sums are too many to be worth compiling."""

Tables = tuple[np.ndarray, np.ndarray]
"""Of each axis, weights (3, extent, factor): of the pixel before, the own one, the one after."""


Resize = Callable[[jax.Array], jax.Array]


def with_fast_gradient(
    resize: Resize, tables: Tables, *, on_tpu: Resize, elsewhere: Resize
) -> Resize:
    """`resize` of the last two axes, its derivative on CPUs by `tables`.

    Args:
      resize: the values.
      tables: of both axes.
      on_tpu: the same map, for its derivative there. Not `resize` itself, which looks at its
        input's values to choose a way: that cannot be transposed.
      elsewhere: the same for other platforms.
    """

    @jax.custom_jvp
    def run(x: jax.Array) -> jax.Array:
        return resize(x)

    @run.defjvp
    def tangent(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        moved = lax.platform_dependent(
            *tangents, cpu=lambda dx: enlarge(dx, tables), tpu=on_tpu, default=elsewhere
        )
        return run(*primals), moved

    return run


def enlarge(x: jax.Array, tables: Tables) -> jax.Array:
    """The last two axes, each as its table says; sums run in float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return _axis(_axis(wide, tables[1], x.ndim - 1), tables[0], x.ndim - 2).astype(x.dtype)


def _axis(x: jax.Array, table: np.ndarray, axis: int) -> jax.Array:
    extent, factor = table.shape[1:]
    shape = [1] * x.ndim
    shape[axis] = extent

    def piece(start: int, stop: int) -> jax.Array:
        return lax.slice_in_dim(x, start, stop, axis=axis)

    # At the ends a pixel stands for the neighbour that it lacks, whose weight is 0.
    before = jnp.concatenate([piece(0, 1), piece(0, extent - 1)], axis)
    after = jnp.concatenate([piece(1, extent), piece(extent - 1, extent)], axis)
    sums = []
    for phase in range(factor):
        total = jnp.zeros((), x.dtype)
        for source, weight in zip((before, x, after), table[:, :, phase], strict=True):
            if weight.any():
                total = total + source * weight.reshape(shape).astype(x.dtype)
        sums.append(total)
    size = (*x.shape[:axis], extent * factor, *x.shape[axis + 1 :])
    return jnp.stack(sums, axis + 1).reshape(size)


def table_of(index: np.ndarray, weight: np.ndarray, extent: int) -> np.ndarray | None:
    """The table of one axis, or None where a resize has another form.

    Args:
      index: (outputs, taps), what each output reads.
      weight: (outputs, taps), how much of each.
      extent: pixels of the input.
    """
    outputs = len(index)
    factor = outputs // extent
    if outputs % extent or not 1 <= factor <= MOST or extent < 2:
        return None
    matrix = np.zeros((outputs, extent))
    np.add.at(matrix, (np.arange(outputs)[:, None], index), weight)
    own = np.arange(extent)
    table = np.zeros((3, extent, factor), matrix.dtype)
    by_pixel = matrix.reshape(extent, factor, extent)
    for place, shift in enumerate((-1, 0, 1)):
        inside = own[(own + shift >= 0) & (own + shift < extent)]
        table[place, inside] = by_pixel[inside, :, inside + shift]
    # Nothing is lost if the table has as many weights as the matrix.
    return table if (table != 0).sum() == (matrix != 0).sum() else None
