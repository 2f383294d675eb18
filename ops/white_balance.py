"""White balance: a colour made grey by a gain of each channel (von Kries).

The gains belong to light, not to gamma-encoded values: `linear_to_srgb(white_balance(
srgb_to_linear(image)))`. On encoded values they work as image editors do.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, is_number, normal_axis
from jaxsr.ops._images import (
    Parameter,
    channel_planes,
    in_dtype_of,
    parameter,
    peak_of,
    picture,
    real_dtype,
)
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Shaped
from jaxsr.xla_calls.stored import stored


def white_balance(
    image: Shaped[ImageLike, "*shape"],
    white: Parameter | None = None,
    *,
    norm: float = 1.0,
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Multiplies each channel so that one colour becomes grey, of the same mean.

    Args:
      image: RGB images.
      white: the colour (R, G, B) that becomes grey: one, or one for each image, traced or not.
        Default: estimated from the image.
      norm: of the estimate, from 1: the Minkowski norm over all pixels, "shades of gray" of
        Finlayson and Trezzi 2004. 1 is the mean (gray world), `math.inf` the greatest value of
        each channel (white patch). Static.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or a white that is not a number.
      ValueError: whites that do not belong to the images, a norm below 1, or channels that are
        not 3.

    Example:
      >>> ops.white_balance(np.array([[[40, 20, 30]]], np.uint8)).tolist()
      [[[30, 30, 30]]]
    """
    array, positions = picture(image, axes)
    if not is_number(norm) or not norm >= 1:
        raise ValueError(f"norm must be a number from 1 to infinity, got {norm!r}")
    channel_planes(array, channel)  # there are three
    if white is None:
        colour = _estimate(array, float(norm), positions)
        return _balanced(array, colour, channel) if array.size else array
    colour = parameter(white, "white", (3,))
    leading = colour.ndim - 1
    if leading > array.ndim - 3 or colour.shape[:-1] != array.shape[:leading]:
        raise ValueError(
            f"white of shape {colour.shape} has no colour for each image of shape {array.shape}; "
            "its leading axes must be those of the image, or none"
        )
    place = normal_axis(channel, array.ndim, "channel")
    if place < leading:
        raise ValueError(f"channel={channel} must come after the {leading} axes that white has")
    spread = [1] * (array.ndim - leading)
    spread[place - leading] = 3
    return _balanced(array, colour.reshape(*colour.shape[:-1], *spread), channel)


@jit("norm", "axes")
def _estimate(image: jax.Array, norm: float, axes: tuple[int, int]) -> jax.Array:
    x = image.astype(real_dtype(image)) / peak_of(image)
    if norm == math.inf:
        return stored(x).max(axes, keepdims=True)
    if norm == 1:
        return x.mean(axes, keepdims=True)
    mean = (x**norm).mean(axes, keepdims=True)
    # The root of 0 has no slope.
    return jnp.where(mean == 0, 0, jnp.where(mean == 0, 1, mean) ** (1 / norm))


@jit("channel")
def _balanced(image: jax.Array, white: jax.Array, channel: int) -> jax.Array:
    """A channel that white lacks stays as it is."""
    white = white.astype(real_dtype(image))
    gain = white.mean(normal_axis(channel, image.ndim, "channel"), keepdims=True)
    gain = jnp.where(white == 0, 1, gain / jnp.where(white == 0, 1, white))
    return in_dtype_of(image, image.astype(real_dtype(image)) * gain)
