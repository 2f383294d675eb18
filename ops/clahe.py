"""Contrast limited adaptive histogram equalisation: each tile by its own levels.

Zuiderveld 1994, "Contrast limited adaptive histogram equalization" (Graphics Gems IV), by OpenCV's
rules: each pixel is mapped by the tables of the four nearest tiles, mixed linearly. uint8 and
uint16 are OpenCV's but for ties, which it leaves to the errors of its float32: there they may
differ by one level. Floats are counted in 256 levels and not rounded afterwards.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, is_number, number, positive_pair
from jaxsr.ops._border import pad_axis
from jaxsr.ops._images import INTEGER_DTYPES, Parameter, in_dtype_of, picture, spread
from jaxsr.ops._levels import histogram, in_256_levels, look_up
from jaxsr.ops._opencv import for_each_row, opencv
from jaxsr.ops._row_primitives import in_planes, row_primitive
from jaxsr.ops._typed_jax import arange, jit
from jaxsr.ops._types import Array, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel


def clahe(
    image: Shaped[ImageLike, "*shape"],
    clip_limit: Parameter = 40.0,
    *,
    tiles: int | Sequence[int] = 8,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Equalises each channel tile by tile, as OpenCV's `createCLAHE`.

    For colours, equalise only the lightness: `rgb_to_lab`, and this on its first channel.

    Args:
      image: input images.
      clip_limit: how many times more often than on average a level may count; 0 means no limit. One
        number, or one for each image.
      tiles: (rows, columns) of tiles. Static.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, a limit that is not a number, tiles that are not integers.
      ValueError: limits that do not belong to the images, or a negative one.

    Example:
      >>> image = np.arange(100, 164, dtype=np.uint8).reshape(8, 8, 1)
      >>> np.ptp(image), np.ptp(ops.clahe(image, 2.0, tiles=2))
      (np.uint8(63), np.uint8(239))
    """
    array, (rows, columns) = picture(image, axes)
    grid = positive_pair(tiles, "tiles")
    if is_number(clip_limit):
        clip_limit = number(clip_limit, "clip_limit", least=0)
    limit = _counts_at_most(clip_limit, array, (rows, columns), grid)
    return _clahe(array, limit, grid, (rows, columns)) if array.size else array


def _counts_at_most(
    clip_limit: Parameter, image: jax.Array, axes: tuple[int, int], grid: tuple[int, int]
) -> jax.Array:
    """The limit as a count of pixels, for each image; 0 is none."""
    extents = (image.shape[axes[0]], image.shape[axes[1]])
    area = math.prod(_tile_sides(extents, grid))
    share = area / _bins(image)
    if is_number(clip_limit):
        clip_limit = max(int(clip_limit * share), 1) if clip_limit > 0 else 0
        return spread(clip_limit, image, axes, "clip_limit")
    limit = spread(clip_limit, image, axes, "clip_limit")
    return jnp.where(limit > 0, jnp.maximum(jnp.floor(limit * share), 1), 0)


def _bins(image: jax.Array) -> int:
    return 65536 if image.dtype == jnp.uint16 else 256


def _tile_sides(extents: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a tile, once the image is extended to whole ones.

    OpenCV extends both sides if either needs it, by up to a pixel for each tile.
    """
    pairs = list(zip(extents, grid, strict=True))
    if all(extent % count == 0 for extent, count in pairs):
        return extents[0] // grid[0], extents[1] // grid[1]
    height, width = (extent // count + 1 for extent, count in pairs)
    return height, width


@jit("grid", "axes")
def _clahe(
    image: jax.Array, limit: jax.Array, grid: tuple[int, int], axes: tuple[int, int]
) -> jax.Array:
    if image.dtype not in INTEGER_DTYPES:
        return _clahe_in_jax(image, limit, grid, axes)
    planes = partial(_clahe_p.bind, rows=grid[0], columns=grid[1])
    return in_planes(planes, image, axes, jax.lax.stop_gradient(limit).astype(jnp.int32))


@kernel("jaxsr_opencv_clahe")
def _clahe_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (planes, limits), results = inputs, outputs[0][..., 0]
    grid = attributes["rows"][0], attributes["columns"][0]
    height, width = _tile_sides(planes.shape[1:], grid)
    # OpenCV's limit, of which it makes the count that we have: halfway to the next one.
    scale = (np.iinfo(planes.dtype).max + 1) / (height * width)

    algorithm = opencv().createCLAHE(0.0, grid[::-1])  # its tables serve all planes

    def equalise(row: int) -> None:
        algorithm.setClipLimit((int(limits[row]) + 0.5) * scale if limits[row] > 0 else 0.0)
        algorithm.apply(planes[row], results[row])

    for_each_row(equalise, len(planes), large=True)  # OpenCV also shares out small images


def _clahe_of_levels(planes: jax.Array, limits: jax.Array, *, rows: int, columns: int) -> jax.Array:
    return _clahe_in_jax(planes, limits[:, None, None], (rows, columns), (-2, -1))


_clahe_p = row_primitive("clahe", _clahe_of_levels, {"OpenCV": _clahe_by_opencv}, planes=True)


def _clahe_in_jax(
    image: jax.Array, limit: jax.Array, grid: tuple[int, int], axes: tuple[int, int]
) -> jax.Array:
    bins = _bins(image)
    is_integer = image.dtype in INTEGER_DTYPES
    levels = (image if is_integer else in_256_levels(image)).astype(jnp.int32)
    x = jnp.moveaxis(levels, axes, (-2, -1))
    sides = _tile_sides((x.shape[-2], x.shape[-1]), grid)
    limits = jnp.moveaxis(limit, axes, (-2, -1)).astype(jnp.int32)
    tables = _tables(_in_blocks(_extended(x, sides, grid), grid), limits, bins)
    mixed = _mixed(x, tables, sides, grid)
    mixed = jnp.moveaxis(mixed, (-2, -1), axes)
    if is_integer:
        return in_dtype_of(image, mixed)
    return jnp.where(jnp.isnan(image), image, (mixed / (bins - 1)).astype(image.dtype))


def _extended(x: jax.Array, sides: tuple[int, int], grid: tuple[int, int]) -> jax.Array:
    for axis, side, count in zip((-2, -1), sides, grid, strict=True):
        x = pad_axis(x, axis + x.ndim, 0, side * count - x.shape[axis], "reflect101")
    return x


def _in_blocks(x: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """(…, blocks, pixels) of an image whose last axes are height and width."""
    height, width = x.shape[-2] // grid[0], x.shape[-1] // grid[1]
    x = x.reshape(*x.shape[:-2], grid[0], height, grid[1], width).swapaxes(-3, -2)
    return x.reshape(*x.shape[:-4], grid[0] * grid[1], height * width)


def _tables(tiles: jax.Array, limits: jax.Array, bins: int) -> jax.Array:
    """A level for each level of each tile: (…, tiles, bins), whole numbers in float32."""
    counts = histogram(tiles, bins)
    bounded = jnp.where(limits > 0, jnp.minimum(counts, limits), counts)
    excess = (counts - bounded).sum(-1, keepdims=True)
    bounded += excess // bins
    # A remainder that does not fill every bin goes to some, evenly spaced.
    rest = excess % bins
    stride = jnp.maximum(bins // jnp.maximum(rest, 1), 1)
    place = arange(bins)
    bounded += ((place % stride == 0) & (place // stride < rest)).astype(jnp.int32)
    scale = np.float32(bins - 1) / np.float32(tiles.shape[-1])
    reached = jnp.cumsum(bounded, -1).astype(jnp.float32)
    return jnp.clip(jnp.round(reached * scale), 0, bins - 1)


def _mixed(
    x: jax.Array, tables: jax.Array, sides: tuple[int, int], grid: tuple[int, int]
) -> jax.Array:
    """Every pixel by the tables of the tiles around it.

    The image is cut into cells between the middles of tiles, in which the four tiles are the
    same, so that a table serves all pixels of a cell.
    """
    bins, (height, width) = tables.shape[-1], x.shape[-2:]
    cells = (grid[0] + 1, grid[1] + 1)
    top, left = (side // 2 for side in sides)
    padded = x
    for axis, side, count in zip((-2, -1), sides, cells, strict=True):
        after = side * count - side // 2 - x.shape[axis]
        padded = pad_axis(padded, axis + x.ndim, side // 2, after, "edge")
    levels = _in_blocks(padded, cells)

    def corner(down: int, right: int) -> jax.Array:
        row, column = (
            np.clip(np.arange(count + 1) + step - 1, 0, count - 1)
            for count, step in zip(grid, (down, right), strict=True)
        )
        tile = (row[:, None] * grid[1] + column).ravel()
        if bins <= 256:
            values = look_up(tables[..., tile, :], levels)
        else:  # without a copy of the tables for each cell
            flat = (levels + tile[:, None] * bins).reshape(*levels.shape[:-2], -1)
            values = look_up(tables.reshape(*tables.shape[:-2], -1), flat)
        values = values.reshape(*x.shape[:-2], *cells, *sides).swapaxes(-3, -2)
        values = values.reshape(*x.shape[:-2], cells[0] * sides[0], cells[1] * sides[1])
        return values[..., top : top + height, left : left + width]

    down, right = _weights(height, sides[0])[:, None], _weights(width, sides[1])
    upper = corner(0, 0) * (1 - right) + corner(0, 1) * right
    lower = corner(1, 0) * (1 - right) + corner(1, 1) * right
    return upper * (1 - down) + lower * down


def _weights(extent: int, side: int) -> np.ndarray:
    """Weight of the later of two tiles, for each pixel of an axis."""
    pixel = np.arange(extent)
    position = pixel.astype(np.float32) * (np.float32(1) / np.float32(side)) - np.float32(0.5)
    return position - ((pixel + side // 2) // side - 1).astype(np.float32)
