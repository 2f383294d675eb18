"""Differences of colours in L*a*b*.

CIEDE2000 as Sharma, Wu and Dalal 2005 wrote it down (doi:10.1002/col.20070, equations 2 to 22).
"""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, normal_axis, one_of
from jaxsr.ops._images import INTEGER_DTYPES, channel_planes, pixels, real_dtype
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Float, Shaped

_25_TO_7 = 25.0**7
_DEGREE = jnp.pi / 180


def delta_e(
    image: Shaped[ImageLike, "..."],
    reference: Shaped[ImageLike, "..."],
    *,
    method: Literal["ciede2000", "cie76"] = "ciede2000",
    channel: int = -1,
) -> Float[Array, "..."]:
    """How different the colours of two images look; about 1 is just noticeable.

    Args:
      image: L*a*b* in floating point, as of `rgb_to_lab`; any number of other axes.
      reference: the same shape and dtype.
      method: `"ciede2000"`, or `"cie76"`: the distance in L*a*b*.
      channel: the axis of channels.

    Returns:
      float32 (float64 for float64) for each pixel, without the axis of channels. Symmetric.

    Raises:
      TypeError: not floating point.
      ValueError: two shapes, channels that are not 3, or an unknown method.

    Example:
      >>> first, second = np.array([[50, 2.6772, -79.7751], [50, 0, -82.7485]], np.float32)
      >>> round(ops.delta_e(first, second).item(), 3)
      2.042
    """
    one_of(method, ("ciede2000", "cie76"), "colour difference")
    arrays = pixels(image), pixels(reference)
    for array in arrays:
        if array.dtype in INTEGER_DTYPES:
            raise TypeError(f"delta_e needs L*a*b* in floating point, got {array.dtype}")
    if arrays[0].shape != arrays[1].shape:
        raise ValueError(
            f"image and reference must have one shape, got {arrays[0].shape} and {arrays[1].shape}"
        )
    return _delta_e(*arrays, method, channel)


def _root(x: jax.Array) -> jax.Array:
    """The square root, whose slope at 0 is 0."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), x)


@jit("method", "channel")
def _delta_e(first: jax.Array, second: jax.Array, method: str, channel: int) -> jax.Array:
    place = normal_axis(channel, first.ndim, "channel")
    lab1, lab2 = (
        [plane.astype(real_dtype(x)).squeeze(place) for plane in channel_planes(x, channel)]
        for x in (first, second)
    )
    if method == "cie76":
        return _root(sum((jnp.square(x - y) for x, y in zip(lab1, lab2, strict=True)), 0 * lab1[0]))
    return _ciede2000(lab1, lab2)


def _ciede2000(lab1: list[jax.Array], lab2: list[jax.Array]) -> jax.Array:
    (l1, a1, b1), (l2, a2, b2) = lab1, lab2
    chroma = (_root(a1 * a1 + b1 * b1) + _root(a2 * a2 + b2 * b2)) / 2
    stretch = 1.5 - 0.5 * _saturation(chroma)
    (c1, h1), (c2, h2) = _polar(stretch * a1, b1), _polar(stretch * a2, b2)
    is_grey = c1 * c2 == 0

    turn = h2 - h1
    around = jnp.abs(turn) > 180
    turn = jnp.where(is_grey, 0, jnp.where(around, turn - jnp.copysign(360.0, turn), turn))
    total = h1 + h2
    middle = jnp.where(around, total + jnp.where(total < 360, 360, -360), total) / 2
    hue = jnp.where(is_grey, total, middle)

    lightness, chroma = (l1 + l2) / 2, (c1 + c2) / 2

    def cosine(times: int, offset: float) -> jax.Array:
        return jnp.cos((times * hue + offset) * _DEGREE)

    t = 1 - 0.17 * cosine(1, -30) + 0.24 * cosine(2, 0) + 0.32 * cosine(3, 6) - 0.2 * cosine(4, -63)
    from_grey = jnp.square(lightness - 50)
    by_lightness = (l2 - l1) / (1 + 0.015 * from_grey / jnp.sqrt(20 + from_grey))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = 2 * _root(c1 * c2) * jnp.sin(turn / 2 * _DEGREE) / (1 + 0.015 * chroma * t)
    blue = jnp.exp(-jnp.square((hue - 275) / 25))
    rotation = -2 * _saturation(chroma) * jnp.sin(60 * blue * _DEGREE)
    squares = jnp.square(by_lightness) + jnp.square(by_chroma) + jnp.square(by_hue)
    return _root(squares + rotation * by_chroma * by_hue)


def _saturation(chroma: jax.Array) -> jax.Array:
    power = chroma**7
    return _root(power / (power + _25_TO_7))


def _polar(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Chroma, and hue in degrees from 0 to 360; 0 of grey."""
    is_grey = (a == 0) & (b == 0)
    angle = jnp.arctan2(b, jnp.where(is_grey, 1, a)) / _DEGREE
    return _root(a * a + b * b), jnp.where(angle < 0, angle + 360, angle)
