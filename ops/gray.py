"""Gray of RGB images, by several weights.

| convention | weights | integers |
|---|---|---|
| `"pillow"` | BT.601: 0.299, 0.587, 0.114 | in units of 2⁻¹⁶, rounded half up: `convert("L")` |
| `"opencv"` | the same | in units of 2⁻¹⁵, rounded half up: `COLOR_RGB2GRAY` |
| `"scikit-image"` | BT.709: 0.2125, 0.7154, 0.0721 | rounded half to even |

All on the gamma-encoded values, as these libraries have it. For the Y channel of YCbCr see
`rgb_to_y`.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, one_of
from jaxsr.ops._images import (
    INTEGER_DTYPES,
    Parameter,
    channel_planes,
    in_dtype_of,
    parameter,
    pixels,
    real_dtype,
)
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Shaped

Convention = Literal["pillow", "opencv", "scikit-image"]
CONVENTIONS = ("pillow", "opencv", "scikit-image")
_WEIGHTS = {"pillow": (0.299, 0.587, 0.114), "opencv": (0.299, 0.587, 0.114)}
_WEIGHTS["scikit-image"] = (0.2125, 0.7154, 0.0721)
_FIXED_POINT = {"pillow": (16, (19595, 38470, 7471)), "opencv": (15, (9798, 19235, 3735))}
"""Fractional bits and weights of integers."""


def rgb_to_gray(
    image: Shaped[ImageLike, "..."],
    *,
    weights: Parameter | None = None,
    convention: Convention = "pillow",
    channel: int = -1,
) -> Shaped[Array, "..."]:
    """A weighted sum of the channels; their axis stays, with extent 1.

    Args:
      image: RGB images; any number of other axes.
      weights: three numbers, traced or not, instead of the convention's; (1/3, 1/3, 1/3) is the
        mean. The sum is rounded half to even.
      convention: whose weights; see the module.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or weights that are not numbers.
      ValueError: channels or weights that are not 3, or an unknown convention.

    Example:
      >>> orange = np.array([255, 128, 0], np.uint8)
      >>> ops.rgb_to_gray(orange), ops.rgb_to_gray(orange, convention="scikit-image")
      (Array([151], dtype=uint8), Array([146], dtype=uint8))
    """
    array = pixels(image)
    one_of(convention, CONVENTIONS, "gray convention")
    if weights is None:
        return _gray(array, convention, channel)
    shares = parameter(weights, "weights", (3,))
    if shares.ndim > 1:
        raise ValueError(f"weights must be three numbers, got the shape {shares.shape}; use vmap")
    return _weighted(array, shares, channel)


def luma(planes: list[jax.Array], convention: str) -> jax.Array:
    """Gray of three planes by a convention, in their dtype; of floats in the dtype of sums."""
    image = planes[0]
    if image.dtype in INTEGER_DTYPES and convention in _FIXED_POINT:
        bits, weights = _FIXED_POINT[convention]
        # uint32 holds 2¹⁶ levels of 2⁻¹⁶.
        red, green, blue = (
            plane.astype(jnp.uint32) * weight for plane, weight in zip(planes, weights, strict=True)
        )
        return ((red + green + blue + (1 << (bits - 1))) >> bits).astype(image.dtype)
    red, green, blue = (
        plane.astype(real_dtype(image)) * weight
        for plane, weight in zip(planes, _WEIGHTS[convention], strict=True)
    )
    return red + green + blue


@jit("convention", "channel")
def _gray(image: jax.Array, convention: str, channel: int) -> jax.Array:
    gray = luma(channel_planes(image, channel), convention)
    return gray if gray.dtype == image.dtype else in_dtype_of(image, gray)


@jit("channel")
def _weighted(image: jax.Array, weights: jax.Array, channel: int) -> jax.Array:
    planes = [plane.astype(real_dtype(image)) for plane in channel_planes(image, channel)]
    gray = planes[0] * weights[0] + planes[1] * weights[1] + planes[2] * weights[2]
    return in_dtype_of(image, gray)
