"""`cv2.cvtColor` in programs for CPUs: colours of integer images by OpenCV's rules."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import normal_axis
from jaxsr.ops._images import channel_planes
from jaxsr.ops._opencv import opencv
from jaxsr.ops._row_primitives import row_primitive
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

_MANY_PIXELS = 1 << 20
"""Pixels from which on it is worth waking other threads: 2 ms of one."""
_CONVERSIONS = ("RGB2HSV", "RGB2HLS", "HSV2RGB", "HLS2RGB", "RGB2YUV", "YUV2RGB")


def conversion(
    name: str, plain: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array, int], jax.Array]:
    """A function of an image and its axis of channels.

    Args:
      name: OpenCV's, one of `_CONVERSIONS`.
      plain: computes it with JAX's own operations, of images (n, h, w, 3).
    """

    def in_jax(pictures: jax.Array, *, conversion: int) -> jax.Array:
        del conversion
        return plain(pictures)

    primitive = row_primitive(f"colours_{name}", in_jax, {"OpenCV": "jaxsr_opencv_colours"})

    def convert(image: jax.Array, channel: int) -> jax.Array:
        axis = normal_axis(channel, image.ndim, "channel")
        if image.shape[axis] != 3 or not image.size:
            channel_planes(image, axis)  # refuses other channels
            return image
        x = jnp.moveaxis(image, axis, -1)
        shape = (1,) * (4 - x.ndim) + x.shape
        pictures = x.reshape(-1, *shape[-3:])
        out: Any = primitive.bind(pictures, conversion=_CONVERSIONS.index(name))
        return jnp.moveaxis(out.reshape(x.shape), -1, axis)

    return convert


@kernel("jaxsr_opencv_colours")
def _convert(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    code = getattr(opencv(), f"COLOR_{_CONVERSIONS[attributes['conversion'][0]]}")
    pictures, results = inputs[0], outputs[0]
    count, height, width, _ = pictures.shape
    if count * height * width > _MANY_PIXELS:
        # As one tall image, whose rows OpenCV shares out among its threads.
        pictures, results = (x.reshape(1, count * height, width, 3) for x in (pictures, results))
    convert = opencv().cvtColor
    for picture, result in zip(pictures, results, strict=True):
        convert(picture, code, result)
