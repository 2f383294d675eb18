"""Levels of images: how often each occurs, and tables that replace them.

On CPUs levels are counted by a scatter and looked up by a gather. Accelerators are slow at both, so
there 256 levels are compared with every pixel, in one fused reduction without temporaries. The
65536 levels of uint16 are scattered and gathered everywhere. On CPUs uint8 levels are counted and
looked up by OpenCV, where it is installed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._images import peak_of, real_dtype
from jaxsr.ops._opencv import for_each_row, opencv
from jaxsr.ops._row_primitives import row_primitive
from jaxsr.ops._typed_jax import arange, optimization_barrier, platform_dependent, zeros_like
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel
from jaxsr.xla_calls.stored import stored

_FEW = 256
"""Levels that can be compared with every pixel."""
_EXACT_COUNT = 1 << 24
"""OpenCV counts in float32."""
_LAST_LEVEL = 256 - 1e-3
"""torchvision's factor from 0…1 to uint8, by which 1 is the last level."""


def flat_planes(image: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Height and width last, in one axis: every plane is a row of pixels."""
    x = jnp.moveaxis(image, axes, (-2, -1))
    # Moved once, not in every reduction that reads it; and a limit is one of these pixels.
    return stored(x.reshape(*x.shape[:-2], -1))


def from_flat_planes(flat: jax.Array, image: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """The inverse of `flat_planes`, in the layout of `image`."""
    sides = (image.shape[axes[0]], image.shape[axes[1]])
    return jnp.moveaxis(flat.reshape(*flat.shape[:-1], *sides), (-2, -1), axes)


def in_256_levels(image: jax.Array) -> jax.Array:
    """uint8: as it is, the upper byte of uint16, and parts of floats' white."""
    if image.dtype == jnp.uint8:
        return image
    if image.dtype == jnp.uint16:
        return (image >> 8).astype(jnp.uint8)
    scaled = jnp.clip(image.astype(real_dtype(image)), 0, 1) * _LAST_LEVEL
    return jnp.nan_to_num(scaled).astype(jnp.uint8)


def from_256_levels(levels: jax.Array, image: jax.Array) -> jax.Array:
    """Levels from 0 to 255 on the image's scale and in its dtype; NaN stays where it was."""
    if image.dtype == jnp.uint8:
        return levels.astype(jnp.uint8)
    if image.dtype == jnp.uint16:
        return levels.astype(jnp.uint16) * 257
    x = (levels.astype(real_dtype(image)) * (peak_of(image) / 255)).astype(image.dtype)
    return jnp.where(jnp.isnan(image), image, x)


def level_counts(image: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """How often each of 256 levels occurs in each plane of uint8 images; int32, levels last."""
    rows, leading = _pixels_of(image, axes)
    return _histogram_p.bind(rows).reshape(*leading, _FEW)


def level_limits(image: jax.Array, ranks: tuple[int, int], axes: tuple[int, int]) -> jax.Array:
    """For each plane of uint8 images, the levels with `ranks` pixels before and behind; int32.

    Levels are last: the lower one, then the upper one.
    """
    rows, leading = _pixels_of(image, axes)
    return _limits_p.bind(rows, before=ranks[0], behind=ranks[1]).reshape(*leading, 2)


def replace_levels(image: jax.Array, tables: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """uint8 images by a table of 256 levels for each plane, as `level_counts` orders them."""
    rows, _ = _pixels_of(image, axes)
    each = tables.astype(jnp.uint8).reshape(rows.shape[0], rows.shape[-1], _FEW)
    replaced = _look_up_p.bind(rows, each)
    if replaced.shape[-1] > 1:
        return replaced.reshape(image.shape)
    return from_flat_planes(replaced.reshape(tables.shape[:-1] + rows.shape[1:2]), image, axes)


def _pixels_of(image: jax.Array, axes: tuple[int, int]) -> tuple[jax.Array, tuple[int, ...]]:
    """Pixels (n, h w, c), of one channel where they lie in planes, and the axes of planes."""
    if axes == (-3, -2) and image.shape[-1] in (3, 4):
        *leading, height, width, channels = image.shape
        return image.reshape(-1, height * width, channels), (*leading, channels)
    flat = flat_planes(image, axes)
    return flat.reshape(-1, flat.shape[-1], 1), flat.shape[:-1]


def histogram(levels: jax.Array, bins: int) -> jax.Array:
    """How often each level from 0 to `bins - 1` occurs along the last axis; int32.

    Args:
      levels: whole numbers below `bins`.
      bins: how many levels there are.
    """

    def scattered(levels: jax.Array) -> jax.Array:
        def count(row: jax.Array) -> jax.Array:
            return zeros_like(arange(bins, dtype=np.int32)).at[row].add(1, mode="promise_in_bounds")

        rows = levels.reshape(-1, levels.shape[-1])
        return jax.vmap(count)(rows).reshape(*levels.shape[:-1], bins)

    def compared(levels: jax.Array) -> jax.Array:
        return (levels[..., None, :] == arange(bins)[:, None]).sum(-1, dtype=jnp.int32)

    if bins > _FEW:
        return scattered(levels)
    return platform_dependent(levels, cpu=scattered, default=compared)


def look_up(table: jax.Array, levels: jax.Array) -> jax.Array:
    """`table[..., levels]` for each row of a table, whose other axes are those of the levels.

    uint8 levels become uint8.
    """
    if levels.dtype == jnp.uint8:
        rows = levels.reshape(-1, levels.shape[-1], 1)
        tables = table.astype(jnp.uint8).reshape(-1, 1, table.shape[-1])
        return _look_up_p.bind(rows, tables).reshape(levels.shape)

    def gathered(table: jax.Array, levels: jax.Array) -> jax.Array:
        return jnp.take_along_axis(table, levels, -1, mode="promise_in_bounds")

    def compared(table: jax.Array, levels: jax.Array) -> jax.Array:
        hit = levels[..., None] == arange(table.shape[-1])
        return jnp.where(hit, table[..., None, :], zeros_like(table[..., None, :])).sum(
            -1, dtype=table.dtype
        )

    if table.shape[-1] > _FEW:
        return gathered(table, levels)
    return platform_dependent(table, levels, cpu=gathered, default=compared)


def _counts_of(pixels: np.ndarray) -> list[np.ndarray]:
    """Counts of levels in each channel of pixels (n, c)."""
    channels = range(pixels.shape[1])
    if len(pixels) > _EXACT_COUNT:
        return [np.bincount(pixels[:, c], minlength=_FEW) for c in channels]
    count = opencv().calcHist
    return [count([pixels[None]], [c], None, [_FEW], [0, _FEW]).ravel() for c in channels]


@kernel("jaxsr_opencv_histogram")
def _count_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (rows,), (counts,) = inputs, outputs

    def count(row: int) -> None:
        counts[row] = _counts_of(rows[row])

    for_each_row(count, len(rows))


@kernel("jaxsr_opencv_limits")
def _limits_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (rows,), (limits,) = inputs, outputs
    places = _places(rows.shape[1], attributes["before"][0], attributes["behind"][0])

    def limit(row: int) -> None:
        for channel, counts in enumerate(_counts_of(rows[row])):
            limits[row, channel] = np.searchsorted(counts.cumsum(dtype=np.int64), places, "right")

    for_each_row(limit, len(rows))


@kernel("jaxsr_opencv_look_up")
def _look_up_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (rows, tables), (results,) = inputs, outputs
    # OpenCV's tables have their channels last.
    each = np.ascontiguousarray(tables.swapaxes(1, 2))

    def replace(row: int) -> None:
        opencv().LUT(rows[row][None], each[row][None], results[row][None])

    for_each_row(replace, len(rows))


def _places(count: int, before: int, behind: int) -> tuple[int, int]:
    """Indices of both limits among `count` pixels in order."""
    return min(before, count - 1), max(count - 1 - behind, 0)


def _histogram_of_levels(rows: jax.Array) -> jax.Array:
    # Moved once, not in every reduction that reads it.
    return histogram(optimization_barrier(rows.swapaxes(1, 2)).astype(jnp.int32), _FEW)


def _limits_of_levels(rows: jax.Array, *, before: int, behind: int) -> jax.Array:
    flat = optimization_barrier(rows.swapaxes(1, 2))
    if before or behind:
        ordered = jnp.sort(flat, axis=-1)
        limits = [ordered[..., place] for place in _places(flat.shape[-1], before, behind)]
    else:
        limits = [flat.min(-1), flat.max(-1)]
    return jnp.stack(limits, -1).astype(jnp.int32)


def _look_up_levels(rows: jax.Array, tables: jax.Array) -> jax.Array:
    return look_up(tables, rows.swapaxes(1, 2).astype(jnp.int32)).swapaxes(1, 2)


def _counts_shape(rows: Any) -> tuple[int, ...]:  # also of an abstract array
    return rows.shape[0], rows.shape[2], _FEW


def _limits_shape(rows: Any) -> tuple[int, ...]:
    return rows.shape[0], rows.shape[2], 2


_histogram_p = row_primitive(
    "histogram",
    _histogram_of_levels,
    {"OpenCV": _count_by_opencv},
    shape_of=_counts_shape,
    dtype="int32",
)
_limits_p = row_primitive(
    "limits",
    _limits_of_levels,
    {"OpenCV": _limits_by_opencv},
    shape_of=_limits_shape,
    dtype="int32",
)
_look_up_p = row_primitive("look_up", _look_up_levels, {"OpenCV": _look_up_by_opencv})
