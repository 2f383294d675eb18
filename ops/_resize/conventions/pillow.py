"""Tap tables of Pillow's `Image.resize`, modes 'L', 'RGB' and the like (uint8) and 'F' (float32).

Always antialiased; taps outside the image are dropped, the others renormalised. uint8 images have
weights of 22 fractional bits and are rounded and clipped between the two passes, width first
(but see `_starts_with_height`). Modes 'RGBA' and 'LA' are resized with colours multiplied by alpha.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._resize.convention import Convention
from jaxsr.ops._resize.filters import BOX, HAMMING, KEYS_CUBIC, LANCZOS3, TRIANGLE, Filter
from jaxsr.ops._resize.weights import (
    Pass,
    Taps,
    choices,
    clamp_to_uint8,
    drop_bits,
    float_passes,
    make_taps,
    nearest_taps,
    normalised_below,
)

FILTERS = {
    "area": BOX,
    "box": BOX,
    "bilinear": TRIANGLE,
    "hamming": HAMMING,
    "bicubic": KEYS_CUBIC,
    "lanczos": LANCZOS3,
}
METHODS = ("nearest", *FILTERS)
WEIGHT_BITS = 22
"""Bits of 32: 8 hold the pixel, and 2 the sign and the sums that overshoot."""


def pillow_passes(
    shape: Sequence[int], dtype: np.dtype, axes: Sequence[int], size: Sequence[int], *, method: str
) -> list[Pass]:
    """The passes over an image of `shape`; an axis that keeps its extent is left alone."""
    taps: list[tuple[int, Taps]] = []
    for axis, outputs in zip(axes, size, strict=True):
        extent = shape[axis]
        if outputs == extent:
            continue
        step = extent / outputs
        if method == "nearest":
            # Pillow adds the step up from output to output, rounding errors and all.
            position = np.add.accumulate(np.concatenate([[0.5 * step], np.full(outputs - 1, step)]))
            taps.append((axis, nearest_taps(extent, position.astype(np.int64), step=step)))
            continue
        index, weight = _weights(extent, outputs, FILTERS[method])
        if dtype == np.uint8:
            scaled = weight * (1 << WEIGHT_BITS)
            weight = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)
        taps.append((axis, make_taps(extent, index, weight, step=step)))
    if not taps or method == "nearest":
        return choices(taps, dtype)
    if dtype == np.uint8:
        finish = drop_bits(WEIGHT_BITS)
        if not _starts_with_height([shape[axis] for axis in axes], size):
            taps.reverse()
        return [Pass(axis, table, np.dtype(np.int32), finish) for axis, table in taps]
    return float_passes(taps, dtype)


def multiply_by_alpha(image: jax.Array, channel: int, alpha: int) -> jax.Array:
    """Colours times opacity, as Pillow's conversion of 'RGBA' to 'RGBa' rounds them."""
    opacity = jax.lax.slice_in_dim(image, alpha, alpha + 1, axis=channel)
    if image.dtype == jnp.uint8:
        product = image.astype(jnp.int32) * opacity + 128
        colours = (((product >> 8) + product) >> 8).astype(jnp.uint8)
    else:
        colours = image * opacity
    return _with_alpha(colours, opacity, channel, alpha)


def divide_by_alpha(image: jax.Array, channel: int, alpha: int) -> jax.Array:
    """The inverse of `multiply_by_alpha`; colours of invisible pixels stay as they are."""
    opacity = jax.lax.slice_in_dim(image, alpha, alpha + 1, axis=channel)
    if image.dtype == jnp.uint8:
        quotient = 255 * image.astype(jnp.int32) // jnp.maximum(opacity, 1)
        colours = jnp.where(opacity == 0, image, clamp_to_uint8(quotient))
    else:
        colours = jnp.where(opacity == 0, image, image / jnp.where(opacity == 0, 1, opacity))
    return _with_alpha(colours, opacity, channel, alpha)


def _with_alpha(colours: jax.Array, opacity: jax.Array, channel: int, alpha: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(colours, opacity, alpha, channel)


def _starts_with_height(extents: Sequence[int], size: Sequence[int]) -> bool:
    """Since Pillow 13: where the height loses more than twice as many pixels as the width."""
    if len(extents) != 2:
        return False
    lost = [extent - outputs for extent, outputs in zip(extents, size, strict=True)]
    return lost[0] > 0 and lost[0] > 2 * lost[1]


def _weights(extent: int, outputs: int, window: Filter) -> tuple[np.ndarray, np.ndarray]:
    step = extent / outputs
    stretch = max(step, 1.0)
    support = window.radius * stretch
    centre = (np.arange(outputs) + 0.5) * step
    # C's conversion to an integer truncates towards zero.
    first = np.maximum(np.trunc(centre - support + 0.5), 0).astype(np.int64)
    stop = np.minimum(np.trunc(centre + support + 0.5).astype(np.int64), extent)
    stop = np.minimum(stop, first + 2 * math.ceil(support) + 1)
    index = first[:, None] + np.arange(max(1, int((stop - first).max())))
    weight = window.weigh((index - centre[:, None] + 0.5) * (1.0 / stretch))
    return index, normalised_below(stop, index, weight)


CONVENTION = Convention(
    name="pillow",
    passes=pillow_passes,
    methods=METHODS,
    antialias=True,
    antialias_is_fixed=True,
    most_axes=2,
)
