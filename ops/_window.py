"""Bilinear resampling between a fixed-size image and a box known only on the device.

Half-pixel centres, no antialias, as `torch.nn.functional.interpolate(mode="bilinear")` on the cut
box, with exact coordinates: torch's float64 result, from which its float32 one differs by the
rounding of its coordinates. uint8 images are resampled in torch's fixed point, bit for bit. Two
taps are gathered per axis, so one program serves every box.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import compute_dtype
from jaxsr.ops._typed_jax import arange, gather, platform_dependent

LARGEST_EXTENT = 1 << 15
"""Pixels along one axis, beyond which the int32 coordinates would overflow."""
LARGEST_INDEX = 1 << 31

_ROUGH_BITS = 8
"""Bits of a fixed-point weight that the first of two divisions gives; int32 holds no more."""


class _Taps(NamedTuple):
    """For each pixel of the result, along one axis."""

    near: jax.Array
    """Nearer source."""
    far: jax.Array
    """Farther source."""
    weight: jax.Array
    """Weight of the farther source; for uint8 images in units of 2⁻ᵇ, b = `bits`."""
    bits: jax.Array | None
    """Fractional bits of fixed-point weights."""


def _blend(low: jax.Array, high: jax.Array, weight: jax.Array, bits: jax.Array | None) -> jax.Array:
    if bits is None:
        return low * (1 - weight) + high * weight
    return ((low << bits) + (high - low) * weight + (1 << (bits - 1))) >> bits


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
    is_fixed_point = image.dtype == jnp.uint8 and not inverse
    x = image.astype(jnp.int32 if is_fixed_point else compute_dtype(image.dtype))
    spans = {axes[0]: (y1, y2, size[0]), axes[1]: (x1, x2, size[1])}
    taps = {
        axis: _taps(x.shape[axis], low, high, extent, inverse, is_fixed_point)
        for axis, (low, high, extent) in spans.items()
    }

    def separably(x: jax.Array) -> jax.Array:
        # The axis that shrinks most goes first; rows before columns otherwise. In fixed point torch
        # rounds the width first.
        order = sorted(axes, key=lambda a: (spans[a][2] / image.shape[a], a))
        for axis in axes[::-1] if is_fixed_point else order:
            near, far, weight, bits = taps[axis]
            # In range by construction.
            low, high = (jnp.take(x, index, axis=axis, mode="clip") for index in (near, far))
            x = _blend(low, high, _along(weight, axis, x), bits)
        return x

    # Enlarging reads few pixels many times; the first of two axes saves that.
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
    images = x.reshape(math.prod(lead), x.shape[axes[0]] * columns, math.prod(tail))
    (top, bottom, down, row_bits), (left, right, across, column_bits) = taps
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
    if row_bits is None:
        near, far = (_blend(tap(top, c), tap(bottom, c), down, None) for c in (left, right))
        mixed = _blend(near, far, across, None)
    else:
        near, far = (
            _blend(tap(r, left), tap(r, right), across, column_bits) for r in (top, bottom)
        )
        mixed = _blend(near, far, down, row_bits)
    return mixed.reshape(*lead, *mixed.shape[1:3], *tail)


def _taps(
    length: int,
    low: jax.Array,
    high: jax.Array,
    extent: int,
    inverse: bool,
    is_fixed_point: bool,
) -> _Taps:
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
    near = first + jnp.minimum(pixel, inputs - 1)
    # A pixel of weight 0 is not read at all: it may be infinite.
    far = first + jnp.minimum(pixel + (remainder > 0), inputs - 1)
    if is_fixed_point:
        return _Taps(near, far, *_fixed_point(remainder, 2 * outputs, near == far))
    return _Taps(near, far, remainder.astype(jnp.float32) / (2 * outputs), None)


def _fixed_point(
    numerator: jax.Array, denominator: jax.Array | int, is_one_pixel: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Weights as torch rounds them, and their bits: 15, or 14 where a weight is nearly 1."""

    def rounded(bits: int) -> jax.Array:
        rough = (numerator << _ROUGH_BITS) // denominator
        rest = (numerator << _ROUGH_BITS) - rough * denominator
        fine = bits - _ROUGH_BITS
        return (rough << fine) + ((rest << (fine + 1)) + denominator) // (2 * denominator)

    fine = rounded(15)
    largest = jnp.where(is_one_pixel, 1 << 15, jnp.maximum(fine, (1 << 15) - fine)).max()
    fits = largest < 1 << 15
    return jnp.where(fits, fine, rounded(14)), jnp.where(fits, 15, 14)
