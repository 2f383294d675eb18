"""Bilinear resampling between a fixed-size image and a box known only on the device.

Half-pixel centres, no antialias, as `torch.nn.functional.interpolate(mode="bilinear")` on the cut
box, with exact coordinates: torch's float64 result, from which its float32 one differs by the
rounding of its coordinates. Two taps are gathered per axis, so one program serves every box.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import compute_dtype
from jaxsr.ops._typed_jax import arange, gather, platform_dependent

LARGEST_EXTENT = 1 << 15
"""Pixels along one axis, beyond which the int32 coordinates would overflow."""
LARGEST_INDEX = 1 << 31

_Taps = tuple[jax.Array, jax.Array, jax.Array]
"""For each pixel of the result: nearer source, farther source, weight of the farther one."""


def resample_window(
    image: jax.Array,
    box: jax.Array,
    size: tuple[int, int],
    axes: tuple[int, int],
    *,
    inverse: bool = False,
) -> jax.Array:
    """The box of `image` resampled to `size`; or, inverse, all of `image` spread over the box.

    Args:
      image: images of any range; the result keeps the dtype, uint8 rounded half to even.
      box: (x1, y1, x2, y2), end-exclusive, within the image, or inverse within `size`.
      size: (height, width) of the result.
      axes: the height and the width axis.
      inverse: the result is a frame in which `image` fills the box; outside it, edge pixels repeat.
    """
    x1, y1, x2, y2 = box
    x = image.astype(compute_dtype(image.dtype))
    spans = {axes[0]: (y1, y2, size[0]), axes[1]: (x1, x2, size[1])}
    taps = {
        axis: _taps(x.shape[axis], low, high, extent, inverse)
        for axis, (low, high, extent) in spans.items()
    }

    def separably(x: jax.Array) -> jax.Array:
        # The axis that shrinks most goes first; rows before columns otherwise.
        for axis in sorted(axes, key=lambda a: (spans[a][2] / image.shape[a], a)):
            near, far, weight = taps[axis]
            weight = _along(weight, axis, x)
            # In range by construction.
            low, high = (jnp.take(x, index, axis=axis, mode="clip") for index in (near, far))
            x = low * (1 - weight) + high * weight
        return x

    # Enlarging reads few pixels many times, which is what the first of two axes saves.
    shrinks = not inverse and axes[1] == axes[0] + 1
    if shrinks and math.prod(x.shape[axes[0] :]) < LARGEST_INDEX:
        at_once = partial(_at_once, taps=(taps[axes[0]], taps[axes[1]]), axes=axes)
        x = platform_dependent(x, cpu=at_once, default=separably)
    else:
        x = separably(x)
    if image.dtype == jnp.uint8:
        x = jnp.round(x)
    return x.astype(image.dtype)


def _along(vector: jax.Array, axis: int, x: jax.Array) -> jax.Array:
    return vector.reshape([-1 if k == axis else 1 for k in range(x.ndim)])


def _at_once(x: jax.Array, taps: tuple[_Taps, _Taps], axes: tuple[int, int]) -> jax.Array:
    """Four taps of every pixel in one gather each, with no image of one resampled axis between."""
    lead, tail = x.shape[: axes[0]], x.shape[axes[1] + 1 :]
    columns = x.shape[axes[1]]
    images = x.reshape(math.prod(lead), -1, math.prod(tail))
    (top, bottom, down), (left, right, across) = taps
    pixels = jax.lax.GatherDimensionNumbers(
        offset_dims=(0, 2), collapsed_slice_dims=(1,), start_index_map=(1,)
    )

    def tap(row: jax.Array, column: jax.Array) -> jax.Array:
        index = (row[:, None] * columns + column).reshape(-1, 1)
        size = (images.shape[0], 1, images.shape[2])
        # In range by construction.
        lines = gather(images, index, pixels, size, mode="promise_in_bounds")
        return lines.reshape(images.shape[0], row.size, column.size, images.shape[2])

    down, across = down[:, None, None], across[:, None]
    near = tap(top, left) * (1 - down) + tap(bottom, left) * down
    far = tap(top, right) * (1 - down) + tap(bottom, right) * down
    mixed = near * (1 - across) + far * across
    return mixed.reshape(*lead, *mixed.shape[1:3], *tail)


def _taps(length: int, low: jax.Array, high: jax.Array, extent: int, inverse: bool) -> _Taps:
    longest = max(extent, length)
    if longest > LARGEST_EXTENT:
        raise ValueError(f"extents up to {LARGEST_EXTENT} px can be resampled, got {longest}")
    position = arange(extent)
    if inverse:
        first, inputs, outputs = 0, length, high - low
        position = position - low
    else:
        first, inputs, outputs = low, high - low, extent
    # The source of a pixel is (position + 1/2) inputs/outputs - 1/2: in integers, so that neither
    # float32 nor a compiler's fused multiply-add moves it.
    numerator = jnp.maximum((2 * position + 1) * inputs - outputs, 0)
    pixel = numerator // (2 * outputs)
    remainder = numerator - 2 * outputs * pixel
    weight = remainder.astype(jnp.float32) / (2 * outputs)
    near = first + jnp.minimum(pixel, inputs - 1)
    # A pixel of weight 0 is not read at all: it may be infinite.
    far = first + jnp.minimum(pixel + (remainder > 0), inputs - 1)
    return near, far, weight
