"""Reads pictures at any position: the one sampler of all warps.

A position lies in pixels, 0 being the centre of the first one. Taps of a filter lie at whole
pixels; `border` says which pixel stands beyond the edge, `"constant"` has `fill` there. Taps of
weight zero are not read, so that a NaN reaches only positions whose filter covers it.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._border import Border, traced_border_index
from jaxsr.ops._images import in_dtype_of, real_dtype
from jaxsr.ops._typed_jax import (
    arange,
    asarray,
    custom_jvp,
    eval_shape,
    fori_loop,
    jvp,
    ones_like,
    platform_dependent,
    zeros,
    zeros_like,
)

FARTHEST = float(1 << 22)
"""Positions beyond are as far away: float32 numbers quarters of a pixel up to here."""
Weights = Callable[[jax.Array], tuple[jax.Array, list[jax.Array]]]
"""Of positions: the first tap, and the weight of every tap from there."""
Place = Callable[..., tuple[jax.Array, jax.Array]]
"""Of rows of the result, a column of their numbers, and parameters: rows and columns to read."""


def nearest(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The nearest pixel, halves to the even one, as torch."""
    return jnp.round(position), [ones_like(position)]


def nearest_up(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The nearest pixel, halves upwards, as SciPy."""
    return jnp.floor(position + 0.5), [ones_like(position)]


def bilinear(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Two taps."""
    base = jnp.floor(position)
    far = position - base
    return base, [1 - far, far]


def bicubic(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Four taps of Keys' cubic with a = -3/4, as torch and OpenCV."""
    base, a = jnp.floor(position), -0.75
    t = position - base

    def near(x: jax.Array) -> jax.Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return base - 1, [far(t + 1), near(t), near(1 - t), far(2 - t)]


def spline(order: int) -> Weights:
    """`order + 1` taps of the B-spline, for coefficients (see `spline_window`)."""

    def weigh(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        start = position - (order - 1) / 2
        base = jnp.floor(start)
        return base, _basis(start - base, order)

    return weigh


def _basis(t: jax.Array, order: int) -> list[jax.Array]:
    """The B-splines that reach a point `t` behind a knot, by de Boor's recursion."""
    values = [ones_like(t)]
    for degree in range(1, order + 1):
        saved = zeros_like(t)
        raised: list[jax.Array] = []
        for place, value in enumerate(values):
            share = value / degree
            raised.append(saved + (place + 1 - t) * share)
            saved = (t + degree - place - 1) * share
        values = [*raised, saved]
    return values


def spline_window(order: int, dtype: np.dtype) -> tuple[float, ...]:
    """Turns pixels into coefficients of the spline through them: the inverse of its samples.

    The inverse is infinite and falls to 0.43 a pixel (order 5) or faster; it ends where `dtype`
    would no longer hold its share.
    """
    samples = np.zeros(512)
    offsets = np.arange(-(order // 2), order // 2 + 1)
    samples[offsets] = _sampled_basis(order)
    inverse = np.fft.ifft(1 / np.fft.fft(samples)).real
    least = float(np.finfo(dtype).eps) / 8
    radius = int(np.flatnonzero(np.abs(inverse[:256]) > least)[-1])
    return tuple(inverse[np.arange(-radius, radius + 1)].tolist())


def _sampled_basis(order: int) -> np.ndarray:
    """The B-spline at whole pixels around its centre."""
    values = np.array([1.0])
    t = 0.0 if order % 2 else 0.5
    for degree in range(1, order + 1):
        places = np.arange(degree)
        raised = np.zeros(degree + 1)
        raised[:-1] += (places + 1 - t) * values / degree
        raised[1:] += (t + degree - places - 1) * values / degree
        values = raised
    return values[:order] if order % 2 else values


METHODS: dict[str, Weights] = {"nearest": nearest, "bilinear": bilinear, "bicubic": bicubic}


def sample(
    image: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    axes: tuple[int, int],
    weigh: Weights,
    border: Border,
    fill: jax.Array | float,
) -> jax.Array:
    """The image at (rows, columns), whose axes stand in the place of height and width.

    Args:
      image: one picture, or several that are read alike.
      rows, columns: positions in pixels, of two axes each.
      axes: height and width, counted from the end.
      weigh: the filter.
      border: what lies beyond the edge.
      fill: of the constant border.
    """
    fields = jnp.broadcast_arrays(rows, columns)
    height = fields[0].shape[0]

    def place(
        numbers: jax.Array, rows: jax.Array, columns: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        if len(numbers) == height:
            return rows, columns
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=numbers[0, 0])
        return cut(rows, slice_size=len(numbers)), cut(columns, slice_size=len(numbers))

    return sample_at(image, place, tuple(fields), height, axes, weigh, border, fill)


def sample_at(
    image: jax.Array,
    place: Place,
    parameters: tuple[jax.Array, ...],
    size: int,
    axes: tuple[int, int],
    weigh: Weights,
    border: Border,
    fill: jax.Array | float,
) -> jax.Array:
    """`sample` at `place(rows of the result, *parameters)`, of which a block stands in memory.

    Args:
      image: one picture, or several that are read alike.
      place: makes positions.
      parameters: arrays that it makes them of.
      size: rows of the result.
      axes, weigh, border, fill: see `sample`.
    """
    height, width = (axis + image.ndim for axis in axes)
    if width != height + 1:
        moved = jnp.moveaxis(image, (height, width), (-2, -1))
        out = sample_at(moved, place, parameters, size, (-2, -1), weigh, border, fill)
        return jnp.moveaxis(out, (-2, -1), (height, width))

    def read(
        numbers: jax.Array,
        image: jax.Array,
        fill: jax.Array,
        *parameters: jax.Array,
        flat: bool = True,
        is_differentiated: bool = True,
    ) -> jax.Array:
        rows, columns = place(numbers, *parameters)
        taps = partial(_weighted_taps, height=height, weigh=weigh, border=border)
        return taps(image, rows, columns, fill, flat=flat, is_differentiated=is_differentiated)

    operands = image, asarray(fill, real_dtype(image)), *parameters

    def at_once(*operands: jax.Array, is_differentiated: bool = True) -> jax.Array:
        numbers = arange(size, dtype=np.int32)[:, None]
        return read(numbers, *operands, is_differentiated=is_differentiated)

    taps = len(weigh(zeros(()))[1])
    if taps == 1:
        return at_once(*operands)
    platforms = {"default": partial(at_once, is_differentiated=False)}
    block = _block_rows(size * image.dtype.itemsize, taps)
    if block < size:
        part = partial(read, flat=False, is_differentiated=False)
        platforms["tpu"] = partial(_by_blocks, part, height, size, block)
    # Derivatives of the loop would keep more.
    forms = custom_jvp(partial(platform_dependent, **platforms))
    forms.defjvp(partial(jvp, at_once))
    return forms(*operands)


def _by_blocks(
    read: Callable[..., jax.Array], height: int, size: int, block: int, *operands: jax.Array
) -> jax.Array:
    """`read(numbers, *operands)` of so many rows at a time; the last ones may overlap."""
    first = arange(block, dtype=np.int32)[:, None]

    def part(start: jax.Array | int) -> jax.Array:
        return read(start + first, *operands)

    def add(number: jax.Array, result: jax.Array) -> jax.Array:
        start = jnp.minimum(number * block, size - block)
        return jax.lax.dynamic_update_slice_in_dim(result, part(start), start, height)

    like = eval_shape(part, 0)
    shape = (*like.shape[:height], size, *like.shape[height + 1 :])
    return fori_loop(0, -(-size // block), add, zeros(shape, like.dtype))


def _block_rows(height_bytes: int, taps: int) -> int:
    """Rows of a result that a TPU's program makes at a time, in whole tiles.

    So many that the pixels of all taps of a block, in float32, take half of the result's memory.
    """
    return 8 * -(-height_bytes // (64 * taps * taps))


def _weighted_taps(
    image: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    fill: jax.Array,
    *,
    height: int,
    weigh: Weights,
    border: Border,
    flat: bool = True,
    is_differentiated: bool = True,
) -> jax.Array:
    """`sample` at all positions at once, height being the axis before the width.

    With `flat`, height and width are gathered from as one axis. It takes one index a pixel, but
    TPUs copy the image for it. Derivatives by positions need the pixels of taps of no weight.
    """
    extents = image.shape[height : height + 2]
    lead, tail = image.shape[:height], image.shape[height + 2 :]
    line = image.reshape(*lead, extents[0] * extents[1], *tail)
    real = real_dtype(image)
    along = [
        _taps(position.astype(real), extent, weigh, border)
        for position, extent in zip((rows, columns), extents, strict=True)
    ]

    def read(row: jax.Array, column: jax.Array) -> jax.Array:
        if flat:
            return jnp.take(line, row * extents[1] + column, axis=height, mode="clip")
        place = (*[slice(None)] * height, *jnp.broadcast_arrays(row, column))
        return image.at[place].get(mode="clip")

    spread = (..., *[None] * len(tail))
    total: jax.Array | None = None
    for (row, row_inside, down), (column, column_inside, across) in product(*along):
        pixels = read(row, column).astype(real)
        if border == "constant":
            pixels = jnp.where(asarray(row_inside & column_inside)[spread], pixels, fill)
        weight = (down * across)[spread]
        unread = weight == 0
        if is_differentiated:
            unread &= ~jnp.isfinite(pixels)
        pixels = jnp.where(unread, 0, pixels)
        total = pixels * weight if total is None else total + pixels * weight
    assert total is not None
    return in_dtype_of(image, total)


def _taps(
    position: jax.Array, extent: int, weigh: Weights, border: Border
) -> list[tuple[jax.Array, jax.Array | bool, jax.Array]]:
    """Of every tap its pixel, whether it lies inside, and its weight."""
    first, weights = weigh(jnp.clip(position, -FARTHEST, FARTHEST))
    first = jax.lax.stop_gradient(first)
    base = jnp.where(jnp.isnan(first), 0, first).astype(jnp.int32)
    taps: list[tuple[jax.Array, jax.Array | bool, jax.Array]] = []
    for place, weight in enumerate(weights):
        index, inside = traced_border_index(base + place, extent, border)
        taps.append((index, inside, weight))
    return taps
