"""Whole held-out photos as pairs to validate on: the same at every validation and on every mesh.

The low-resolution side is made by the literature's convention: bicubic with antialiasing as
MATLAB's `imresize` computes it (`jaxsr.ops.resize`, convention "matlab"), rounded to 8 bits, from
the photo cut at its right and bottom to a multiple of the scale.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float32, UInt8

from jaxsr.data.degradation_options import Degradation
from jaxsr.data.photos import Photos
from jaxsr.errors import InputError

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, eq=False)
class ValidationPair:
    """One photo, as NCHW batches of one in the network's range."""

    name: str
    low: Float32[np.ndarray, "1 c h w"]
    high: Float32[np.ndarray, "1 c H W"]


def validation_pairs(
    photos: Photos,
    scale: int,
    *,
    channels: Literal[1, 3] = 3,
    detail_factor: int = 2,
    longest_px: int | None = None,
    multiple: int = 1,
    value_range: tuple[float, float] = (-1.0, 1.0),
    degradation: Degradation | None = None,
) -> Iterator[ValidationPair]:
    """Yields every photo with the input that a network restores it from.

    Args:
      photos: the held-out photos.
      scale: sides of `high` over those of `low`. For 1 (restoration), `low` is shrunk by
        `detail_factor` and enlarged back, both rounded to 8 bits, without blur or noise.
      channels: 3 for RGB, 1 for full-range luma.
      longest_px: larger photos are cut to this many pixels a side, about the middle.
      multiple: sides of `low` are multiples of so many pixels.
      value_range: intensities of black and white in the pairs.
      degradation: damage to `low`, drawn by the photo's place. Default: none.

    Raises:
      ValueError: a photo is smaller than the scale, or an argument is out of range.
    """
    if scale < 1 or detail_factor < 1:
        raise InputError(
            f"scale and detail_factor must be at least 1, got {scale} and {detail_factor}"
        )
    if longest_px is not None and longest_px < scale:
        raise InputError(f"longest_px must be at least scale={scale}, got {longest_px}")
    for index, name in enumerate(photos.names):
        photo = cut_to_multiple(
            photos.read(index), multiple * (scale if scale > 1 else detail_factor), longest_px
        )
        if not photo.size:
            raise InputError(f"{name} has {photos.sizes[index]} px, too few for scale={scale}")
        low, high = _levels(photo, scale, channels, detail_factor)
        if degradation is not None:
            low = _degraded(low, index, degradation)
        yield _pair(name, low, high, value_range)


def cut_to_multiple(
    photo: UInt8[np.ndarray, "h w 3"], multiple: int, longest_px: int | None = None
) -> UInt8[np.ndarray, "H W 3"]:
    """The photo without its last rows and columns beyond a multiple, or its middle if too large."""
    starts, sides = [], []
    for side in photo.shape[:2]:
        cut_side = min(side, longest_px or side) // multiple * multiple
        cut_middle = longest_px is not None and side > longest_px
        starts.append((side - cut_side) // 2 if cut_middle else 0)
        sides.append(cut_side)
    top, left = starts
    return photo[top : top + sides[0], left : left + sides[1]]


# JAX is imported inside so that folders can be searched and checked before it is loaded.


def _levels(
    photo: np.ndarray, scale: int, channels: Literal[1, 3], factor: int
) -> "tuple[jax.Array, jax.Array]":
    """`low` and `high` in levels."""
    import jax

    from jaxsr.data.transforms import enlarge, shrink, to_levels

    high = to_levels(jax.numpy.asarray(photo.transpose(2, 0, 1)[None]), channels=channels)
    if scale > 1:
        return shrink(high, scale, convention="matlab"), high
    low = enlarge(shrink(high, factor, convention="torch"), factor, convention="matlab")
    return low, high


def _degraded(low: "jax.Array", index: int, degradation: Degradation) -> "jax.Array":
    import jax

    from jaxsr.data.degradation import degrade

    keys = jax.random.split(jax.random.key(index), 1)
    return jax.jit(degrade, static_argnums=2)(low, keys, degradation)


def _pair(
    name: str, low: "jax.Array", high: "jax.Array", value_range: tuple[float, float]
) -> ValidationPair:
    from jaxsr.data.transforms import to_model_range

    pair = (np.asarray(to_model_range(x, value_range)) for x in (low, high))
    return ValidationPair(name, *pair)
