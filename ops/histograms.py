"""Contrast by the levels of an image: equalised, and stretched to the whole range.

Each channel of each image has its own levels. Images are uint8, uint16, or 0…1 in floating point,
in any layout.
"""

import math
from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, number
from jaxsr.ops._images import peak_of, picture, real_dtype
from jaxsr.ops._levels import (
    flat_planes,
    from_256_levels,
    from_flat_planes,
    in_256_levels,
    level_counts,
    level_limits,
    replace_levels,
)
from jaxsr.ops._typed_jax import arange, asarray, jit
from jaxsr.ops._types import Array, Shaped


def equalize(
    image: Shaped[ImageLike, "*shape"], *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """Spreads the levels of each channel evenly, as Pillow's `ImageOps.equalize`.

    Floats and uint16 are counted in 256 levels, and have as many afterwards. No gradient passes.

    Args:
      image: input images.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype.

    Example:
      >>> image = np.arange(100, 116, dtype=np.uint8).repeat(64).reshape(32, 32, 1)
      >>> np.unique(ops.equalize(image)).tolist()[:4]
      [0, 21, 43, 64]
    """
    array, positions = picture(image, axes)
    return _equalize(array, positions) if array.size else array


def autocontrast(
    image: Shaped[ImageLike, "*shape"],
    cutoff: float | tuple[float, float] = 0,
    *,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Stretches each channel to the whole range, as Pillow's `ImageOps.autocontrast`.

    A channel of one level stays as it is. uint8 is Pillow's, bit for bit: fractions are cut off,
    from its float64 quotients. uint16 is cut off exactly.

    Args:
      image: input images.
      cutoff: percent of the pixels that may become black and white, one or (dark, light). Static.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a cutoff that is not a number.
      ValueError: a negative cutoff.

    Example:
      >>> ops.autocontrast(np.array([[[50], [60], [101]]], np.uint8)).ravel().tolist()
      [0, 50, 255]
    """
    array, positions = picture(image, axes)
    both = cutoff if isinstance(cutoff, tuple) else (cutoff, cutoff)
    dark, light = (number(percent, "cutoff", least=0) for percent in both)
    if not array.size:
        return array
    count = array.shape[positions[0]] * array.shape[positions[1]]
    ranks = int(count * dark // 100), int(count * light // 100)
    return _autocontrast(array, ranks, positions)


@jit("axes")
def _equalize(image: jax.Array, axes: tuple[int, int]) -> jax.Array:
    levels = in_256_levels(image)
    counts = level_counts(levels, axes)
    greatest = jnp.where(counts > 0, arange(256), 0).max(-1, keepdims=True)
    of_greatest = jnp.where(arange(256) == greatest, counts, 0).sum(-1, keepdims=True)
    step = (image.shape[axes[0]] * image.shape[axes[1]] - of_greatest) // 255
    below = jnp.cumsum(counts, -1) - counts
    table = jnp.minimum((step // 2 + below) // jnp.maximum(step, 1), 255)
    table = jnp.where(step == 0, arange(256), table)
    return from_256_levels(replace_levels(levels, table, axes), image)


@jit("ranks", "axes")
def _autocontrast(image: jax.Array, ranks: tuple[int, int], axes: tuple[int, int]) -> jax.Array:
    if image.dtype == jnp.uint8:
        low, high = jnp.split(level_limits(image, ranks, axes), 2, -1)
        table = jnp.where(high <= low, arange(256), _stretched_levels(low, high))
        return replace_levels(image, table, axes)
    flat = flat_planes(image, axes)
    last = flat.shape[-1] - 1
    if any(ranks):
        ordered = jnp.sort(flat, axis=-1)
        places = min(ranks[0], last), max(last - ranks[1], 0)
        low, high = (ordered[..., place, None] for place in places)
    else:
        low, high = flat.min(-1, keepdims=True), flat.max(-1, keepdims=True)
    if image.dtype == jnp.uint16:
        # 65535² is below 2³².
        apart = (jnp.clip(flat, low, high) - low).astype(jnp.uint32)
        stretched = apart * np.uint32(65535) // jnp.maximum(high - low, 1).astype(jnp.uint32)
    else:
        x, black, white = (v.astype(real_dtype(image)) for v in (flat, low, high))
        span = jnp.where(white == black, 1, white - black)
        stretched = jnp.clip((x - black) / span, 0, 1) * peak_of(image)
    stretched = jnp.where(high <= low, flat, stretched.astype(image.dtype))
    return from_flat_planes(stretched, image, axes)


def _stretched_levels(low: jax.Array, high: jax.Array) -> jax.Array:
    """Pillow's table of 256 levels."""
    span = jnp.maximum(high - low, 1)
    above = jnp.clip(arange(256), low, high) - low
    exact = above * 255 // span
    parts = asarray(np.gcd(np.arange(256), 255))[span]
    starts, too_low = _too_low_quotients()
    place = asarray(starts)[span] + low * (parts + 1) + above * parts // span
    is_whole = (above * parts % span == 0) & (arange(256) <= high)
    missing = asarray(too_low).at[jnp.where(is_whole, place, 0)].get(mode="clip")
    return exact - jnp.where(is_whole, missing, 0)


@cache
def _too_low_quotients() -> tuple[np.ndarray, np.ndarray]:
    """Where Pillow's `int(level * scale + offset)` misses a whole number, in float64.

    Of the levels from `low` to `low + span`, only every `span / gcd(span, 255)`-th has a whole
    result. For each span, from `starts[span]` on, and each `low`, in that order, there is a 1 for
    each of these that comes out one too low.
    """
    starts, too_low, size = [0], list[np.ndarray](), 0
    for span in range(1, 256):
        parts = math.gcd(span, 255)
        low = np.arange(256 - span)[:, None]
        level = low + np.arange(parts + 1) * (span // parts)
        scale = 255.0 / span
        quotient = (level * scale + -low * scale).astype(int)
        too_low.append((quotient < (level - low) * 255 // span).ravel())
        starts.append(size)
        size += level.size
    return np.array(starts, np.int32), np.concatenate(too_low).astype(np.int8)
