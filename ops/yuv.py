"""YUV of RGB images, as analogue television (BT.470) had it; for YCbCr see `colour.py`.

Images are uint8, uint16, or 0…1 in floating point; `channel` names the axis of the three channels.
Floats are scikit-image's: Y is 0…1, U and V are centred on 0. Integers are OpenCV's, bit for bit:
chroma is centred on 128 or 32768, and clipped.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike
from jaxsr.ops._images import (
    INTEGER_DTYPES,
    channel_planes,
    joined,
    mixed,
    pixels,
    real_dtype,
)
from jaxsr.ops._opencv_colours import conversion
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Shaped

_LUMA = np.array([0.299, 0.587, 0.114])
# (B - Y) and (R - Y) by the gains of BT.470, which bound the modulated signal.
_GAINS = np.array([0.49211104112248356, 0.8772832199313776])
_FROM_RGB = np.stack([_LUMA, _GAINS[0] * ([0, 0, 1] - _LUMA), _GAINS[1] * ([1, 0, 0] - _LUMA)])
_TO_RGB = np.linalg.inv(_FROM_RGB)
_BITS = 14
"""Bits of OpenCV's fixed-point fraction."""


def rgb_to_yuv(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """Luma and two differences of colour; scikit-image's in floats, OpenCV's in integers.

    Args:
      image: RGB images; any number of other axes.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: channels that are not 3.

    Example:
      >>> ops.rgb_to_yuv(np.array([255, 0, 0], np.uint8)).tolist()
      [76, 91, 255]
    """
    return _from_rgb(pixels(image), channel)


def yuv_to_rgb(image: Shaped[ImageLike, "*shape"], *, channel: int = -1) -> Shaped[Array, "*shape"]:
    """RGB of YUV: the inverse of `rgb_to_yuv`, clipped for integers only.

    Arguments and errors are those of `rgb_to_yuv`.

    Example:
      >>> ops.yuv_to_rgb(np.array([76, 91, 255], np.uint8)).tolist()
      [221, 17, 1]
    """
    return _to_rgb(pixels(image), channel)


def _descaled(x: jax.Array) -> jax.Array:
    return (x + (1 << (_BITS - 1))) >> _BITS


def _clipped(planes: list[jax.Array], image: jax.Array, channel: int) -> jax.Array:
    most = np.iinfo(image.dtype).max
    return jnp.clip(joined(planes, channel), 0, most).astype(image.dtype)


@jit("channel")
def _from_rgb(image: jax.Array, channel: int) -> jax.Array:
    if image.dtype in INTEGER_DTYPES:
        return _levels_from_rgb(image, channel)
    return _from_rgb_in_jax(image, channel)


@jit("channel")
def _to_rgb(image: jax.Array, channel: int) -> jax.Array:
    if image.dtype in INTEGER_DTYPES:
        return _levels_to_rgb(image, channel)
    return _to_rgb_in_jax(image, channel)


def _from_rgb_in_jax(image: jax.Array, channel: int = -1) -> jax.Array:
    planes = channel_planes(image, channel)
    if image.dtype not in INTEGER_DTYPES:
        x = [plane.astype(real_dtype(image)) for plane in planes]
        return mixed(x, _FROM_RGB, channel).astype(image.dtype)
    red, green, blue = (plane.astype(jnp.int32) for plane in planes)
    centre = (int(np.iinfo(image.dtype).max) + 1) // 2 << _BITS
    luma = _descaled(4899 * red + 9617 * green + 1868 * blue)
    u = _descaled((blue - luma) * 8061 + centre)
    v = _descaled((red - luma) * 14369 + centre)
    return _clipped([luma, u, v], image, channel)


def _to_rgb_in_jax(image: jax.Array, channel: int = -1) -> jax.Array:
    planes = channel_planes(image, channel)
    if image.dtype not in INTEGER_DTYPES:
        x = [plane.astype(real_dtype(image)) for plane in planes]
        return mixed(x, _TO_RGB, channel).astype(image.dtype)
    centre = (int(np.iinfo(image.dtype).max) + 1) // 2
    luma, u, v = (plane.astype(jnp.int32) for plane in planes)
    u, v = u - centre, v - centre
    red, green = luma + _descaled(18678 * v), luma + _descaled(-6472 * u - 9519 * v)
    return _clipped([red, green, luma + _descaled(33292 * u)], image, channel)


_levels_from_rgb = conversion("RGB2YUV", _from_rgb_in_jax)
_levels_to_rgb = conversion("YUV2RGB", _to_rgb_in_jax)
