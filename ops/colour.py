"""BT.601 luma and YCbCr, in the two ranges that image work means by "Y".

Images are RGB in any layout; `channel` names the axis of the three channels. Floating-point images
are 0…1 in and out, uint8 images 0…255, uint16 images 0…65535 in and out.

| convention | Y of 255 | Cb, Cr of 255 | whose |
|---|---|---|---|
| `"matlab"` | 16…235 | 16…240 | MATLAB's `rgb2ycbcr`; "the Y channel" in super-resolution papers |
| `"full"` | 0…255 | 0…255 | JFIF: JPEG files, Pillow's `convert("YCbCr")` |

Chroma is centred on 128. uint8 results are rounded half up, as MATLAB rounds them, from exact
integer arithmetic; uint16 results are rounded half to even, from float32. A float image is not
rounded to levels: Y of the same image in float and in uint8 differs by up to half a level.
Nothing is clipped on floats, so gradients pass and out-of-range colours survive the round trip.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, compute_dtype, image_array, normal_axis, one_of
from jaxsr.ops._images import in_dtype_of, mixed
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Shaped

Convention = Literal["matlab", "full"]
CONVENTIONS = ("matlab", "full")

# In millionths of the 0…255 scale, from RGB on that scale. MATLAB's rgb2ycbcr publishes the
# coefficients as thousandths over 255 (65.481, 128.553, 24.966 …); JFIF (ITU-T T.871, section 7)
# as 0.299, 0.587, 0.114 and their complements divided by 1.772 and 1.402.
_MATLAB_OVER_255000 = np.array(
    [[65481, 128553, 24966], [-37797, -74203, 112000], [112000, -93786, -18214]], np.int64
)
_MATLAB_OFFSET = np.array([16, 128, 128], np.int64)
_FULL = np.array(
    [
        [0.299, 0.587, 0.114],
        [-0.299 / 1.772, -0.587 / 1.772, 0.886 / 1.772],
        [0.701 / 1.402, -0.587 / 1.402, -0.114 / 1.402],
    ]
)
_FULL_OFFSET = np.array([0, 128, 128], np.int64)
_FULL_BITS = 16  # fixed point of the uint8 path: 255 · 2¹⁶ · 1.772 stays within int32


def rgb_to_y(
    image: Shaped[ImageLike, "..."], *, convention: Convention = "matlab", channel: int = -1
) -> Shaped[Array, "..."]:
    """Luma of an RGB image; the channel axis stays, with extent 1.

    Args:
      image: RGB, 0…1 in floating point, uint8 or uint16; any number of other axes.
      convention: `"matlab"` puts black at 16/255 and white at 235/255, `"full"` at 0 and 1.
      channel: the axis that holds R, G, B.

    Raises:
      TypeError: not uint8, uint16 or floating point.
      ValueError: the channel axis does not hold 3, or an unknown convention.

    Example:
      >>> ops.rgb_to_y(np.array([[[255, 255, 255], [0, 0, 0]]], np.uint8)).ravel().tolist()
      [235, 16]
    """
    image, channel = _checked(image, convention, channel)
    return _forward(image, convention, channel, rows=(0,))


def rgb_to_ycbcr(
    image: Shaped[ImageLike, "*shape"], *, convention: Convention = "matlab", channel: int = -1
) -> Shaped[Array, "*shape"]:
    """Y, Cb and Cr of an RGB image; floats 0…1 with chroma centred on 128/255, uint8 as levels.

    Arguments and errors are those of `rgb_to_y`.

    Example:
      >>> ops.rgb_to_ycbcr(np.array([[255, 0, 0]], np.uint8), convention="full").tolist()
      [[76, 85, 255]]
    """
    image, channel = _checked(image, convention, channel)
    return _forward(image, convention, channel, rows=(0, 1, 2))


def ycbcr_to_rgb(
    image: Shaped[ImageLike, "*shape"], *, convention: Convention = "matlab", channel: int = -1
) -> Shaped[Array, "*shape"]:
    """RGB of a YCbCr image: the inverse of `rgb_to_ycbcr`, clipped to 0…255 for uint8 only.

    Arguments and errors are those of `rgb_to_y`.

    Example:
      >>> ops.ycbcr_to_rgb(np.array([[235, 128, 128]], np.uint8)).tolist()
      [[255, 255, 255]]
    """
    image, channel = _checked(image, convention, channel)
    return _inverse(image, convention, channel)


def luma_of_difference(
    difference: jax.Array, convention: Convention = "matlab", channel: int = -1
) -> jax.Array:
    """Y of one floating-point image minus Y of another, from the images' difference.

    Exactly 0 where they are equal, which the difference of two luma images need not be once a
    compiler has contracted it into fused multiply-adds.
    """
    matrix, _ = _float_matrix(convention)
    return mixed(_planes(difference, channel), matrix[:1], channel)


def _checked(image: ImageLike, convention: str, channel: int) -> tuple[jax.Array, int]:
    array = image_array(image, wide=True)
    one_of(convention, CONVENTIONS, "colour convention")
    channel = normal_axis(channel, array.ndim, "channel")
    if array.shape[channel] != 3:
        raise ValueError(
            f"channel={channel} must hold R, G and B, but the image's shape is {array.shape}; "
            "name the right axis, or repeat a grey image three times"
        )
    return array, channel


def _float_matrix(convention: str) -> tuple[np.ndarray, np.ndarray]:
    """Matrix and offset on the 0…1 scale, in float64."""
    if convention == "matlab":
        return _MATLAB_OVER_255000 / 255000, _MATLAB_OFFSET / 255
    return _FULL, _FULL_OFFSET / 255


def _planes(image: jax.Array, channel: int) -> list[jax.Array]:
    return [jax.lax.slice_in_dim(image, k, k + 1, axis=channel) for k in range(3)]


@jit("convention", "channel", "rows")
def _forward(image: jax.Array, convention: str, channel: int, rows: tuple[int, ...]) -> jax.Array:
    if image.dtype == jnp.uint16:
        return _in_uint16(partial(_forward, rows=rows), image, convention, channel)
    select = list(rows)
    if image.dtype != jnp.uint8:
        matrix, offset = _float_matrix(convention)
        planes = _planes(image.astype(compute_dtype(image.dtype)), channel)
        return mixed(planes, matrix[select], channel, offset[select]).astype(image.dtype)
    planes = _planes(image.astype(jnp.int32), channel)
    if convention == "matlab":
        # Twice the value and half a level more, so that the floor division rounds half up.
        matrix, offset = 2 * _MATLAB_OVER_255000, 255000 * (2 * _MATLAB_OFFSET + 1)
        levels = mixed(planes, matrix[select], channel, offset[select]) // (2 * 255000)
    else:
        matrix = np.rint(_FULL * 2**_FULL_BITS).astype(np.int64)
        offset = (_FULL_OFFSET << _FULL_BITS) + 2 ** (_FULL_BITS - 1)
        levels = mixed(planes, matrix[select], channel, offset[select]) >> _FULL_BITS
    return jnp.clip(levels, 0, 255).astype(jnp.uint8)


@jit("convention", "channel")
def _inverse(image: jax.Array, convention: str, channel: int) -> jax.Array:
    if image.dtype == jnp.uint16:
        return _in_uint16(_inverse, image, convention, channel)
    matrix, offset = _float_matrix(convention)
    back = np.linalg.inv(matrix)
    planes = _planes(image.astype(compute_dtype(image.dtype)), channel)
    is_uint8 = image.dtype == jnp.uint8
    offset = 255 * offset if is_uint8 else offset
    # The offset goes first: subtracting it after the products would lose bits for dark colours.
    centred = [plane - shift for plane, shift in zip(planes, offset.tolist(), strict=True)]
    x = mixed(centred, back, channel, np.full(3, 0.5 if is_uint8 else 0.0))
    return (jnp.clip(jnp.floor(x), 0, 255) if is_uint8 else x).astype(image.dtype)


def _in_uint16(
    convert: Callable[..., jax.Array], image: jax.Array, convention: str, channel: int
) -> jax.Array:
    """The conversion of floats, rounded once to 65536 levels."""
    x = convert(image.astype(jnp.float32) / 65535, convention=convention, channel=channel)
    return in_dtype_of(image, x * 65535)
