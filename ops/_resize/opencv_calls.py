"""`cv2.resize` itself, called from programs for CPUs; so equal to it by construction.

OpenCV is imported when a program is lowered. Where it is not installed, and on other platforms,
`conventions/opencv.py` computes the same in JAX.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._opencv import LARGE_PICTURE, for_each_row, opencv, version_of
from jaxsr.ops._resize.library_rows import resized_rows
from jaxsr.xla_calls.calls import Arrays, Attributes, enabled, kernel

_METHODS = {
    "uint8": ("nearest", "bilinear", "bicubic", "area"),
    "float32": ("nearest", "bilinear"),
}
"""Methods of each dtype in which OpenCV is faster than XLA's program. Two cores: uint8 Lanczos from
16 × 96² to 384² takes 21 ms and XLA 5; float32 'area' from 8 × 512² to 256² takes 3 ms and XLA 1.4.
float32 bicubic takes the same time, and OpenCV's roundings differ with the number of channels."""
_MOST_CHANNELS = 4
"""OpenCV's functions are made for these; of more channels some of them refuse."""


def resize_by_opencv(
    image: jax.Array, axes: Sequence[int], size: Sequence[int], *, method: str
) -> jax.Array | None:
    """The resized image, in a program for CPUs; None where OpenCV is not called for it."""
    cv2 = opencv() if enabled() else None
    if cv2 is None or len(axes) != 2 or method not in _METHODS.get(image.dtype.name, ()):
        return None
    height, width = axes
    if width != height + 1:
        moved = jnp.moveaxis(image, (height, width), (-2, -1))
        out = resize_by_opencv(moved, (image.ndim - 2, image.ndim - 1), size, method=method)
        return None if out is None else jnp.moveaxis(out, (-2, -1), (height, width))

    if math.prod(image.shape[width + 1 :]) > _MOST_CHANNELS:
        return None
    flags = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR,
             "bicubic": cv2.INTER_CUBIC, "area": cv2.INTER_AREA}  # fmt: skip
    options = {"flag": (flags[method],), "opencv": version_of(cv2.__version__)}
    return resized_rows(image, axes, size, _resize, options)


@kernel("jaxsr_opencv_resize")
def _resize(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    cv2, (flag,) = opencv(), attributes["flag"]
    # OpenCV takes images of one channel without an axis for it.
    images, results = (x[..., 0] if x.shape[-1] == 1 else x for x in (inputs[0], outputs[0]))
    height, width = results.shape[1:3]

    def resize(row: int) -> None:
        result = results[row]
        out = cv2.resize(images[row], (width, height), dst=result, interpolation=flag)
        if out is not result:
            result[...] = out

    is_large = height * width > LARGE_PICTURE
    for_each_row(resize, len(images), large=is_large)
