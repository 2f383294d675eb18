"""Reads images at any position: the one sampler of all warps.

A position lies in pixels, 0 being the centre of the first one. Taps of a filter lie at whole
pixels; `border` says which pixel stands beyond the edge, `"constant"` has `fill` there. Taps of
weight zero are not read, so that a NaN reaches only positions whose filter covers it.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._border import BORDERS, Border, traced_border_index
from jaxsr.ops._images import INTEGER_DTYPES, in_dtype_of, real_dtype
from jaxsr.ops._opencv_remap import (
    CHANNELS,
    FARTHEST,
    LARGEST_EXTENT,
    reading_primitive,
    remap_kernel,
    warp_affine_kernel,
)
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
from jaxsr.xla_calls.stored import stored

Weights = Callable[[jax.Array], tuple[jax.Array, list[jax.Array]]]
"""Maps positions to the first tap, and the weight of every tap from there."""
Place = Callable[..., tuple[jax.Array, jax.Array]]
"""Takes rows of the result, a column of their numbers, and parameters: rows and columns to read.

It makes them so that they round alike wherever a compiler makes them again: of stored values, with
no product in a sum.
"""


def nearest(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The nearest pixel, halves to the even one, as torch."""
    return jnp.round(position), [_one(position)]


def nearest_up(position: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The nearest pixel, halves upwards, as SciPy."""
    return jnp.floor(position + 0.5), [_one(position)]


def _one(position: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(position), position, 1)  # as weights of several taps


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


def grid_position(
    unit: jax.Array, extent: int, method: str, padding_mode: str, corners: bool
) -> jax.Array:
    """Pixels along an axis, as torch's `grid_sample` reads them at positions in [-1, 1]."""
    position = (unit + 1) / 2 * (extent - 1) if corners else ((unit + 1) * extent - 1) / 2
    if method == "bicubic":  # whose taps are bounded one by one
        return position
    if method == "nearest" and padding_mode == "zeros":
        return jnp.where(jnp.isnan(position), -1, position)
    return grid_bounded(position, extent, padding_mode, corners)


def grid_bounded(position: jax.Array, extent: int, padding_mode: str, corners: bool) -> jax.Array:
    """Pixels mirrored at the edges of the image where asked for, then clipped; NaN is at 0."""
    if padding_mode == "zeros":
        return position
    low, span = (0, extent - 1) if corners else (-0.5, extent)
    if padding_mode == "reflection" and span:
        away = jnp.mod(jnp.abs(position - low), 2 * span)
        position = jnp.minimum(away, 2 * span - away) + low
    # where, not clip: at the edge itself torch passes no gradient, clip passes half.
    return jnp.where(position >= extent - 1, extent - 1, jnp.where(position > 0, position, 0))


def at_fields(
    rows: jax.Array, columns: jax.Array
) -> tuple[Place, tuple[jax.Array, ...], tuple[int, int]]:
    """Arguments of `sample` for positions that are known, of two axes each."""
    fields = jnp.broadcast_arrays(rows, columns)
    height, width = fields[0].shape

    def place(
        numbers: jax.Array, rows: jax.Array, columns: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        if len(numbers) == height:
            return rows, columns
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=numbers[0, 0])
        return cut(rows, slice_size=len(numbers)), cut(columns, slice_size=len(numbers))

    return place, tuple(fields), (height, width)


def sample(
    image: jax.Array,
    place: Place,
    parameters: tuple[jax.Array, ...],
    size: tuple[int, int],
    *,
    axes: tuple[int, int],
    weigh: Weights,
    border: Border,
    fill: jax.Array | float,
    is_affine: bool = False,
) -> jax.Array:
    """The image at `place(rows of the result, *parameters)`.

    The axes of positions stand in the place of height and width. A block of positions is in a TPU's
    memory. On CPUs bilinear reading is left to OpenCV, where it is installed.

    Args:
      image: one image, or several that are read alike.
      place: makes positions, in pixels.
      parameters: arrays that it makes them of.
      size: rows and columns of the result.
      axes: height and width, counted from the end.
      weigh: the filter.
      border: rule for pixels beyond the edge.
      fill: of the constant border.
      is_affine: whether positions are made by one matrix of 3 x 3, from (x, y, 1) in the result.
    """
    height, width = (axis + image.ndim for axis in axes)
    if width != height + 1:
        moved = jnp.moveaxis(image, (height, width), (-2, -1))
        out = sample(
            moved,
            place,
            parameters,
            size,
            axes=(-2, -1),
            weigh=weigh,
            border=border,
            fill=fill,
            is_affine=is_affine,
        )
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

    taps = len(weigh(zeros(()))[1])

    def at_once(
        image: jax.Array, fill: jax.Array, *parameters: jax.Array, is_differentiated: bool = True
    ) -> jax.Array:
        numbers = arange(size[0], dtype=np.int32)[:, None]
        if taps > 1:  # a tap and its weight are of one position
            parameters = tuple(map(stored, parameters))
        return read(numbers, image, fill, *parameters, is_differentiated=is_differentiated)

    if taps == 1:
        return at_once(*operands)
    platforms: dict[str, Callable[..., jax.Array]] = {
        "default": partial(at_once, is_differentiated=False)
    }
    if weigh is bilinear and _suits_opencv(image, height, size, operands[1]):
        platforms["cpu"] = partial(_by_opencv, None if is_affine else place, size, height, border)
    block = _block_rows(size[0] * image.dtype.itemsize, taps)
    if block < size[0]:
        part = partial(read, flat=False, is_differentiated=False)
        platforms["tpu"] = partial(_by_blocks, part, height, size[0], block)
    # Derivatives of the loop would keep more.
    forms = custom_jvp(partial(platform_dependent, **platforms))
    forms.defjvp(partial(jvp, at_once))
    return forms(*operands)


def _suits_opencv(image: jax.Array, height: int, size: tuple[int, int], fill: jax.Array) -> bool:
    return (
        real_dtype(image) == np.float32
        and fill.ndim == 0
        and math.prod(image.shape[height + 2 :]) in CHANNELS
        and min(image.size, *size) > 0
        and max(*size, *image.shape[height : height + 2]) <= LARGEST_EXTENT
    )


def _by_opencv(
    place: Place | None,
    size: tuple[int, int],
    height: int,
    border: Border,
    image: jax.Array,
    fill: jax.Array,
    *parameters: jax.Array,
) -> jax.Array:
    """`sample` in a program for CPUs; without `place`, positions are those of a matrix."""
    shape = image.shape
    lead, extents, tail = shape[:height], shape[height : height + 2], shape[height + 2 :]
    x = image if image.dtype in INTEGER_DTYPES else image.astype(np.float32)
    pictures = x.reshape(1, math.prod(lead), *extents, math.prod(tail))
    options: dict[str, Any] = {"size": size, "border": BORDERS.index(border)}
    if place is None:
        matrix = parameters[0][:2].astype(np.float32)
        out = _warp_affine_p.bind(pictures, matrix[None], fill[None], **options)
    else:
        numbers = arange(size[0], dtype=np.int32)[:, None]
        fields = (field.astype(np.float32) for field in place(numbers, *parameters))
        fields = (jnp.broadcast_to(field, size)[None] for field in fields)
        out = _remap_p.bind(pictures, *fields, fill[None], **options)
    return out.reshape(*lead, *size, *tail).astype(image.dtype)


def _taps_of_pictures(
    pictures: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    fills: jax.Array,
    *,
    border: int,
    **_: Any,
) -> jax.Array:
    read = partial(_weighted_taps, height=1, weigh=bilinear, border=BORDERS[border])
    return jax.vmap(partial(read, is_differentiated=False))(pictures, rows, columns, fills)


def _remap_in_jax(
    pictures: jax.Array, rows: jax.Array, columns: jax.Array, fills: jax.Array, **options: Any
) -> jax.Array:
    return _taps_of_pictures(pictures, stored(rows), stored(columns), fills, **options)


def affine_place(
    numbers: jax.Array, inverse: jax.Array, width: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows, columns and scales of a matrix of 3 x 3, from (x, y, 1) in the result."""
    rows, columns = numbers[:, 0].astype(inverse.dtype), arange(width, dtype=inverse.dtype)
    across = stored(inverse[:, :1] * columns)
    down = stored(inverse[:, 1:2] * rows + inverse[:, 2:])
    u, v, scale = across[:, None] + down[..., None]
    return v, u, scale


def _warp_affine_in_jax(
    pictures: jax.Array,
    matrices: jax.Array,
    fills: jax.Array,
    *,
    size: tuple[int, int],
    border: int,
) -> jax.Array:
    numbers = arange(size[0], dtype=np.int32)[:, None]
    last = jnp.broadcast_to(asarray([0, 0, 1], np.float32), (matrices.shape[0], 1, 3))

    def place(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        return affine_place(numbers, matrix, size[1])[:2]

    rows, columns = jax.vmap(place)(jnp.concatenate([matrices, last], 1))
    return _taps_of_pictures(pictures, rows, columns, fills, border=border)


_remap_p = reading_primitive("remap", remap_kernel, _remap_in_jax)
_warp_affine_p = reading_primitive("warp_affine", warp_affine_kernel, _warp_affine_in_jax)


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
    """For every tap: its pixel, whether it lies inside, and its weight."""
    first, weights = weigh(jnp.clip(position, -FARTHEST, FARTHEST))
    first = jax.lax.stop_gradient(first)
    base = jnp.where(jnp.isnan(first), 0, first).astype(jnp.int32)
    taps: list[tuple[jax.Array, jax.Array | bool, jax.Array]] = []
    for place, weight in enumerate(weights):
        index, inside = traced_border_index(base + place, extent, border)
        taps.append((index, inside, weight))
    return taps
