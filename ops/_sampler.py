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
    asarray,
    custom_jvp,
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
    height, width = (axis + image.ndim for axis in axes)
    if width != height + 1:
        moved = jnp.moveaxis(image, (height, width), (-2, -1))
        out = sample(moved, rows, columns, (-2, -1), weigh, border, fill)
        return jnp.moveaxis(out, (-2, -1), (height, width))
    read = partial(_weighted_taps, height=height, weigh=weigh, border=border)
    fields = jnp.broadcast_arrays(rows, columns)
    outside = asarray(fill, real_dtype(image))
    taps = len(weigh(zeros(()))[1])
    block = _block_rows(fields[0].shape[0], taps)
    if taps == 1 or block >= fields[0].shape[0]:
        return read(image, rows, columns, outside)
    by_blocks = partial(_by_blocks, partial(read, flat=False), height, block)
    # Derivatives of the loop would keep more.
    forms = custom_jvp(partial(platform_dependent, tpu=by_blocks, default=read))
    forms.defjvp(partial(jvp, read))
    return forms(image, *fields, outside)


def _by_blocks(
    read: Callable[..., jax.Array],
    height: int,
    block: int,
    image: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    fill: jax.Array,
) -> jax.Array:
    """`read(image, rows, columns, fill)` for so many rows at a time; the last ones may overlap."""
    extents = rows.shape
    shape = (*image.shape[:height], *extents, *image.shape[height + 2 :])

    def add(number: jax.Array, result: jax.Array) -> jax.Array:
        start = jnp.minimum(number * block, extents[0] - block)
        row, column = (
            jax.lax.dynamic_slice_in_dim(field, start, block, 0) for field in (rows, columns)
        )
        part = read(image, row, column, fill)
        return jax.lax.dynamic_update_slice_in_dim(result, part, start, height)

    return fori_loop(0, -(-extents[0] // block), add, zeros(shape, image.dtype))


def _block_rows(height: int, taps: int) -> int:
    """Rows of a result that a TPU's program makes at a time, in whole tiles.

    So many that the pixels of all taps of a block take half of the result's memory.
    """
    return 8 * -(-height // (16 * taps * taps))


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
) -> jax.Array:
    """`sample` at all positions at once, height being the axis before the width.

    With `flat`, height and width are gathered from as one axis. It takes one index a pixel, but
    TPUs copy the image for it.
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
        pixels = jnp.where((weight == 0) & ~jnp.isfinite(pixels), 0, pixels)
        total = pixels * weight if total is None else total + pixels * weight
    assert total is not None
    return in_dtype_of(image, total)


def _taps(
    position: jax.Array, extent: int, weigh: Weights, border: Border
) -> list[tuple[jax.Array, jax.Array | bool, jax.Array]]:
    """Of every tap its pixel, whether it lies inside, and its weight."""
    first, weights = weigh(jnp.clip(position, -FARTHEST, FARTHEST))
    base = jnp.nan_to_num(jax.lax.stop_gradient(first)).astype(jnp.int32)
    taps: list[tuple[jax.Array, jax.Array | bool, jax.Array]] = []
    for place, weight in enumerate(weights):
        index, inside = traced_border_index(base + place, extent, border)
        taps.append((index, inside, weight))
    return taps
