"""Hue, saturation and value, or lightness: HSV and HLS of RGB images.

Images are uint8, uint16, or 0…1 in floating point; `channel` names the axis of the three channels.
Colours outside 0…1 are not clipped. The hue of grey is 0.

| convention | hue | saturation, value, lightness | integers |
|---|---|---|---|
| `"scikit-image"` | 0…1 | 0…1 | white times that, rounded half to even |
| `"opencv"` | 0…360 | 0…1 | uint8: hue 0…179, else 0…255 |

OpenCV's uint8 of `rgb_to_hsv` and `hls_to_rgb` is equal in every colour. Of `rgb_to_hls` and
`hsv_to_rgb` it is within one level: OpenCV leaves ties to the errors of its float32. On CPUs all
four are OpenCV's own, where it is installed.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, one_of
from jaxsr.ops._images import (
    INTEGER_DTYPES,
    along_channel,
    channel_planes,
    in_dtype_of,
    joined,
    peak_of,
    pixels,
    unit_planes,
)
from jaxsr.ops._opencv_colours import conversion
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Shaped

Convention = Literal["scikit-image", "opencv"]
CONVENTIONS = ("scikit-image", "opencv")


def rgb_to_hsv(
    image: Shaped[ImageLike, "*shape"],
    *,
    convention: Convention = "scikit-image",
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Hue, saturation and value of RGB.

    Args:
      image: RGB images; any number of other axes.
      convention: whose ranges; see the module.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype; uint16 by OpenCV's convention, which has none.
      ValueError: channels that are not 3, or an unknown convention.

    Example:
      >>> green = np.array([0, 255, 0], np.uint8)
      >>> ops.rgb_to_hsv(green).tolist(), ops.rgb_to_hsv(green, convention="opencv").tolist()
      ([85, 255, 255], [60, 255, 255])
    """
    return _to_hue(_checked(image, convention), convention, channel, "hsv")


def hsv_to_rgb(
    image: Shaped[ImageLike, "*shape"],
    *,
    convention: Convention = "scikit-image",
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """RGB of hue, saturation and value; hues beyond the circle go round it.

    Arguments and errors are those of `rgb_to_hsv`.

    Example:
      >>> ops.hsv_to_rgb(np.array([2 / 3, 1, 0.5], np.float32)).round(3).tolist()
      [0.0, 0.0, 0.5]
    """
    return _from_hue(_checked(image, convention), convention, channel, "hsv")


def rgb_to_hls(
    image: Shaped[ImageLike, "*shape"],
    *,
    convention: Convention = "scikit-image",
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Hue, lightness and saturation of RGB, known as HSL, in the order of `colorsys` and OpenCV.

    scikit-image has no HLS: that convention is `colorsys`'s. Arguments and errors are those of
    `rgb_to_hsv`.

    Example:
      >>> ops.rgb_to_hls(np.array([0.2, 0.6, 0.2], np.float32)).round(3).tolist()
      [0.333..., 0.4..., 0.5...]
    """
    return _to_hue(_checked(image, convention), convention, channel, "hls")


def hls_to_rgb(
    image: Shaped[ImageLike, "*shape"],
    *,
    convention: Convention = "scikit-image",
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """RGB of hue, lightness and saturation; hues beyond the circle go round it.

    Arguments and errors are those of `rgb_to_hsv`.

    Example:
      >>> ops.hls_to_rgb(np.array([60, 128, 255], np.uint8), convention="opencv").tolist()
      [1, 255, 1]
    """
    return _from_hue(_checked(image, convention), convention, channel, "hls")


def hue_value_chroma(rgb: list[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hue in sixths of the circle from -1 to 5, the greatest channel, and its lead on the least."""
    red, green, blue = rgb
    value = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = value - jnp.minimum(jnp.minimum(red, green), blue)
    span = jnp.where(chroma == 0, 1, chroma)
    # Comparisons, not `value == red`: a compiler may compute red twice, rounded otherwise.
    is_red, is_green = (red >= green) & (red >= blue), green >= blue
    lead = jnp.where(is_red, green - blue, jnp.where(is_green, blue - red, red - green))
    sextant = jnp.where(is_red, 0, jnp.where(is_green, 2, 4)) + lead / span
    return sextant, value, chroma


def from_hue(sextant: jax.Array, value: jax.Array, chroma: jax.Array, channel: int) -> jax.Array:
    """RGB; the inverse of `hue_value_chroma` for any turn of the circle."""
    turned = sextant + along_channel((5, 3, 1), sextant, channel)
    distance = turned - 6 * jnp.floor(turned / 6)  # a remainder is a call for each pixel
    return value - chroma * jnp.clip(jnp.minimum(distance, 4 - distance), 0, 1)


def _checked(image: ImageLike, convention: str) -> jax.Array:
    array = pixels(image)
    one_of(convention, CONVENTIONS, "colour convention")
    if convention == "opencv" and array.dtype == jnp.uint16:
        raise TypeError("OpenCV has no hue of uint16; use convention='scikit-image', or floats")
    return array


def _full_circle(image: jax.Array, convention: str) -> float:
    """A turn of the hue, on a scale where white is 1."""
    if convention == "scikit-image":
        return 1.0
    return 180 / 255 if image.dtype == jnp.uint8 else 360.0


def _quotient(x: jax.Array, divisor: jax.Array) -> jax.Array:
    """0 where there is nothing to divide by."""
    return jnp.where(divisor == 0, 0, x / jnp.where(divisor == 0, 1, divisor))


@jit("convention", "channel", "kind")
def _to_hue(image: jax.Array, convention: str, channel: int, kind: str) -> jax.Array:
    if convention == "opencv" and image.dtype == jnp.uint8:
        return _TO_HUE[kind](image, channel)
    return _to_hue_in_jax(image, convention, channel, kind)


@jit("convention", "channel", "kind")
def _from_hue(image: jax.Array, convention: str, channel: int, kind: str) -> jax.Array:
    if convention == "opencv" and image.dtype == jnp.uint8:
        return _FROM_HUE[kind](image, channel)
    return _from_hue_in_jax(image, convention, channel, kind)


def _to_hue_in_jax(image: jax.Array, convention: str, channel: int, kind: str) -> jax.Array:
    rgb = unit_planes(image, channel)
    sextant, value, chroma = hue_value_chroma(rgb)
    turn = sextant / 6
    hue = jnp.where(turn < 0, turn + 1, turn) * _full_circle(image, convention)
    if kind == "hsv":
        planes = [hue, _quotient(chroma, value), value]
    else:
        lightness = value - chroma / 2
        planes = [hue, lightness, _quotient(chroma, 1 - jnp.abs(2 * lightness - 1))]
    return in_dtype_of(image, joined(planes, channel) * peak_of(image))


def _from_hue_in_jax(image: jax.Array, convention: str, channel: int, kind: str) -> jax.Array:
    hue, second, third = unit_planes(image, channel)
    if kind == "hsv":
        value, chroma = third, second * third
    else:
        chroma = (1 - jnp.abs(2 * second - 1)) * third
        value = second + chroma / 2
    rgb = from_hue(hue * (6 / _full_circle(image, convention)), value, chroma, channel)
    x = rgb * peak_of(image)
    if convention == "opencv" and kind == "hsv" and image.dtype in INTEGER_DTYPES:
        x = jnp.floor(x + 2**-10)  # OpenCV cuts fractions off
    return in_dtype_of(image, x)


def _converted(kind: str, *, to_hue: bool) -> Callable[[jax.Array, int], jax.Array]:
    def plain(pictures: jax.Array) -> jax.Array:
        if to_hue and kind == "hsv":
            return _hsv_of_levels(pictures)
        convert = _to_hue_in_jax if to_hue else _from_hue_in_jax
        return convert(pictures, "opencv", -1, kind)

    name = f"RGB2{kind.upper()}" if to_hue else f"{kind.upper()}2RGB"
    return conversion(name, plain)


_TO_HUE = {kind: _converted(kind, to_hue=True) for kind in ("hsv", "hls")}
_FROM_HUE = {kind: _converted(kind, to_hue=False) for kind in ("hsv", "hls")}


def _hsv_of_levels(image: jax.Array, channel: int = -1) -> jax.Array:
    """HSV of uint8 in OpenCV's fixed point of 12 bits."""
    red, green, blue = (plane.astype(jnp.int32) for plane in channel_planes(image, channel))
    value = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = value - jnp.minimum(jnp.minimum(red, green), blue)
    sextant = jnp.where(
        value == red,
        green - blue,
        jnp.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma),
    )

    def scaled(x: jax.Array, most: int, divisor: jax.Array) -> jax.Array:
        factor = (2 * (most << 12) + divisor) // jnp.maximum(2 * divisor, 1)
        return (x * jnp.where(divisor == 0, 0, factor) + (1 << 11)) >> 12

    hue = scaled(sextant, 30, chroma)
    planes = [jnp.where(hue < 0, hue + 180, hue), scaled(chroma, 255, value), value]
    return joined(planes, channel).astype(jnp.uint8)
