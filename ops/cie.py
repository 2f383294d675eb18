"""Colours as the CIE measures them: linear light, XYZ, L*a*b* and L*u*v* of sRGB images.

Floats are 0…1 in RGB, linear light and XYZ; L* is 0…100. White is D65 seen by the 2° observer, and
the numbers are scikit-image's. Integers are read as parts of their white and give float32, as these
colours are not levels; float dtypes are kept. Nothing is clipped, so gradients pass: colours that
sRGB cannot show leave 0…1.

The sRGB curve is IEC 61966-2-1's, L*a*b* and L*u*v* are CIE 15's.
"""

from collections.abc import Callable
from functools import cache
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, one_of
from jaxsr.ops._images import (
    INTEGER_DTYPES,
    along_channel,
    channel_planes,
    joined,
    mixed,
    peak_of,
    pixels,
    planes_of_values,
    real_dtype,
    unit_planes,
)
from jaxsr.ops._typed_jax import asarray, jit
from jaxsr.ops._types import Array, Shaped

Planes = list[jax.Array]

_XYZ_FROM_RGB = np.array(
    [
        [0.412453, 0.357580, 0.180423],
        [0.212671, 0.715160, 0.072169],
        [0.019334, 0.119193, 0.950227],
    ]
)
_RGB_FROM_XYZ = np.linalg.inv(_XYZ_FROM_RGB)
_WHITE = (0.95047, 1.0, 1.08883)
_WHITE_U = 4 * _WHITE[0] / (_WHITE[0] + 15 * _WHITE[1] + 3 * _WHITE[2])
_WHITE_V = 9 * _WHITE[1] / (_WHITE[0] + 15 * _WHITE[1] + 3 * _WHITE[2])
_DARK = 0.008856
"""Share of white's light below which lightness is linear."""
_DARK_SLOPE = 903.3


def srgb_to_linear(image: Shaped[ImageLike, "*shape"]) -> Shaped[Array, "*shape"]:
    """Light of sRGB values, 0…1.

    Args:
      image: images of any layout.

    Raises:
      TypeError: an unsuitable dtype.

    Example:
      >>> ops.srgb_to_linear(np.array([0, 188, 255], np.uint8)).round(2).tolist()
      [0.0, 0.5, 1.0]
    """
    array = pixels(image)
    return _in_floats_of(array, _linear(array.astype(real_dtype(array)) / peak_of(array)))


def linear_to_srgb(image: Shaped[ImageLike, "*shape"]) -> Shaped[Array, "*shape"]:
    """sRGB values, 0…1, of light.

    Arguments and errors are those of `srgb_to_linear`.

    Example:
      >>> ops.linear_to_srgb(np.array([0, 0.5, 1], np.float32)).round(2).tolist()
      [0.0, 0.74..., 1.0]
    """
    array = pixels(image)
    return _in_floats_of(array, _encoded(array.astype(real_dtype(array)) / peak_of(array)))


def rgb_to_xyz(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """XYZ of sRGB; Y of white is 1.

    Args:
      image: RGB images; any number of other axes.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: channels that are not 3.

    Example:
      >>> ops.rgb_to_xyz(np.ones(3, np.float32)).round(4).tolist()
      [0.95..., 1.0, 1.08...]
    """
    return _converted(pixels(image), channel, "rgb_to_xyz")


def xyz_to_rgb(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """sRGB of XYZ. Arguments and errors are those of `rgb_to_xyz`.

    Example:
      >>> ops.xyz_to_rgb(np.array([0.95047, 1, 1.08883], np.float32)).round(3).tolist()
      [1.0, 1.0, 1.0]
    """
    return _converted(pixels(image), channel, "xyz_to_rgb")


def rgb_to_lab(
    image: Shaped[ImageLike, "*shape"],
    *,
    convention: Literal["scikit-image", "opencv"] = "scikit-image",
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """L*a*b* of sRGB: lightness 0…100, and two axes of colour, centred on 0.

    Args:
      image: RGB images; any number of other axes.
      convention: `"opencv"` gives the uint8 of its `COLOR_RGB2Lab`, bit for bit: L* times 2.55,
        a* and b* plus 128. It reads two tables for each pixel, which is slow on a TPU.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype; by OpenCV's convention any but uint8.
      ValueError: channels that are not 3, or an unknown convention.

    Example:
      >>> ops.rgb_to_lab(np.array([255, 0, 0], np.uint8)).round().tolist()
      [53.0, 80.0, 67.0]
    """
    array = pixels(image)
    one_of(convention, ("scikit-image", "opencv"), "colour convention")
    if convention == "scikit-image":
        return _converted(array, channel, "rgb_to_lab")
    if array.dtype != jnp.uint8:
        raise TypeError(
            f"OpenCV's L*a*b* is of uint8 here, got {array.dtype}; leave the convention out"
        )
    return _opencv_lab(array, channel)


def lab_to_rgb(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """sRGB of L*a*b*.

    Args:
      image: floating-point images; any number of other axes.
      channel: the axis of channels.

    Raises:
      TypeError: not floating point.
      ValueError: channels that are not 3.

    Example:
      >>> ops.lab_to_rgb(np.array([53.24, 80.09, 67.20], np.float32)).round(2).tolist()
      [1.0, 0.0, 0.0]
    """
    return _converted(_real(image, "L*a*b*"), channel, "lab_to_rgb")


def rgb_to_luv(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """L*u*v* of sRGB. Arguments and errors are those of `rgb_to_xyz`.

    Example:
      >>> ops.rgb_to_luv(np.array([255, 0, 0], np.uint8)).round().tolist()
      [53.0, 175.0, 38.0]
    """
    return _converted(pixels(image), channel, "rgb_to_luv")


def luv_to_rgb(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """sRGB of L*u*v*. Arguments and errors are those of `lab_to_rgb`.

    Example:
      >>> ops.luv_to_rgb(np.array([100, 0, 0], np.float32)).round(2).tolist()
      [1.0, 1.0, 1.0]
    """
    return _converted(_real(image, "L*u*v*"), channel, "luv_to_rgb")


def _real(image: ImageLike, space: str) -> jax.Array:
    array = pixels(image)
    if array.dtype in INTEGER_DTYPES:
        raise TypeError(f"{space} must be floating point, got {array.dtype}; give its own scale")
    return array


def _in_floats_of(image: jax.Array, x: jax.Array) -> jax.Array:
    return x if image.dtype in INTEGER_DTYPES else x.astype(image.dtype)


def _power(x: jax.Array, exponent: float) -> jax.Array:
    """Powers of positive numbers around 1: exponentials and logarithms vectorise, powers don't."""
    return jnp.exp(exponent * jnp.log(x))


def _linear(x: jax.Array) -> jax.Array:
    # Each branch sees its own values only: a power of 0 has no gradient.
    bright = _power((jnp.maximum(x, 0.04045) + 0.055) / 1.055, 2.4)
    return jnp.where(x > 0.04045, bright, x / 12.92)


def _encoded(x: jax.Array) -> jax.Array:
    bright = 1.055 * _power(jnp.maximum(x, 0.0031308), 1 / 2.4) - 0.055
    return jnp.where(x > 0.0031308, bright, 12.92 * x)


def _xyz_of_rgb(image: jax.Array, channel: int) -> jax.Array:
    def light(x: jax.Array) -> jax.Array:
        return _linear(x.astype(real_dtype(image)) / peak_of(image))

    return mixed(planes_of_values(light, image, channel), _XYZ_FROM_RGB, channel)


def _rgb_of_xyz(xyz: Planes, channel: int) -> jax.Array:
    return _encoded(mixed(xyz, _RGB_FROM_XYZ, channel))


def _lab_of_rgb(image: jax.Array, channel: int) -> jax.Array:
    def scaled(x: jax.Array) -> jax.Array:
        return jnp.where(x > _DARK, _power(jnp.maximum(x, _DARK), 1 / 3), 7.787 * x + 16 / 116)

    xyz = _xyz_of_rgb(image, channel)
    shares = xyz / along_channel(_WHITE, xyz, channel)
    x, y, z = planes_of_values(scaled, shares, channel)
    return joined([116 * y - 16, 500 * (x - y), 200 * (y - z)], channel)


def _rgb_of_lab(lab: Planes, channel: int) -> jax.Array:
    lightness, a, b = lab
    y = (lightness + 16) / 116
    scaled = (y + a / 500, y, y - b / 200)
    light = [jnp.where(x > 0.2068966, x**3, (x - 16 / 116) / 7.787) for x in scaled]
    return _rgb_of_xyz([x * white for x, white in zip(light, _WHITE, strict=True)], channel)


def _luv_of_rgb(image: jax.Array, channel: int) -> jax.Array:
    x, y, z = channel_planes(_xyz_of_rgb(image, channel), channel)
    bright = 116 * _power(jnp.maximum(y, _DARK), 1 / 3) - 16
    lightness = jnp.where(y > _DARK, bright, _DARK_SLOPE * y)
    total = x + 15 * y + 3 * z
    total = jnp.where(total == 0, 1, total)
    planes = [
        lightness,
        13 * lightness * (4 * x / total - _WHITE_U),
        13 * lightness * (9 * y / total - _WHITE_V),
    ]
    return joined(planes, channel)


def _rgb_of_luv(luv: Planes, channel: int) -> jax.Array:
    lightness, u, v = luv
    y = jnp.where(lightness > 8, ((lightness + 16) / 116) ** 3, lightness / _DARK_SLOPE)
    scale = jnp.where(lightness == 0, 1, 13 * lightness)
    u, v = _WHITE_U + u / scale, _WHITE_V + v / scale
    v = jnp.where(v == 0, 1, v)
    return _rgb_of_xyz([9 * u * y / (4 * v), y, (12 - 3 * u - 20 * v) * y / (4 * v)], channel)


_FROM_RGB: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "rgb_to_xyz": _xyz_of_rgb,
    "rgb_to_lab": _lab_of_rgb,
    "rgb_to_luv": _luv_of_rgb,
}
_TO_RGB: dict[str, Callable[[Planes, int], jax.Array]] = {
    "xyz_to_rgb": _rgb_of_xyz,
    "lab_to_rgb": _rgb_of_lab,
    "luv_to_rgb": _rgb_of_luv,
}


@jit("channel", "kind")
def _converted(image: jax.Array, channel: int, kind: str) -> jax.Array:
    if kind in _FROM_RGB:
        return _in_floats_of(image, _FROM_RGB[kind](image, channel))
    return _in_floats_of(image, _TO_RGB[kind](unit_planes(image, channel), channel))


@cache
def _opencv_tables() -> tuple[np.ndarray, np.ndarray]:
    """Light of each level, in units of 1/2040; and cube roots of light, in units of 2⁻¹⁵."""
    level = np.arange(256) / 255
    light = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    share = np.arange(3072) / 2040
    root = np.where(share < _DARK, share * 7.787 + 16 / 116, np.cbrt(share)).astype(np.float32)
    return np.rint(2040 * light).astype(np.int32), np.rint(32768.0 * root).astype(np.int32)


@jit("channel")
def _opencv_lab(image: jax.Array, channel: int) -> jax.Array:
    light, root = (asarray(table) for table in _opencv_tables())
    rgb = [light[plane.astype(jnp.int32)] for plane in channel_planes(image, channel)]
    white = np.array([0.950456, 1, 1.088754])
    weights = np.rint(_XYZ_FROM_RGB / white[:, None] * 4096).astype(np.int32)
    xyz = (sum(plane * w for plane, w in zip(rgb, row, strict=True)) for row in weights.tolist())
    x, y, z = (root[(plane + 2048) >> 12] for plane in xyz)
    centre = 128 << 15
    # (116 y - 16) · 2.55, rounded as OpenCV rounds its factors.
    lightness = 296 * y - ((16 * 255 * (1 << 15) + 50) // 100)
    planes = [lightness, 500 * (x - y) + centre, 200 * (y - z) + centre]
    levels = [(plane + (1 << 14)) >> 15 for plane in planes]
    # Not `joined`: tables would be read for each channel.
    return jnp.clip(jnp.concatenate(levels, channel), 0, 255).astype(jnp.uint8)
