"""Images blurred by a straight move of the camera."""

import math
from collections.abc import Sequence

import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, is_integer, number
from jaxsr.ops._border import checked_border
from jaxsr.ops._images import Parameter, parameter, picture
from jaxsr.ops._traced_window import correlate, segment
from jaxsr.ops._types import Array, Shaped


def motion_blur(
    image: Shaped[ImageLike, "*shape"],
    length: Parameter,
    degrees: Parameter,
    *,
    size: int | None = None,
    border: str = "reflect101",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Means along a straight segment about each pixel, read with bilinear weights.

    Args:
      image: images; uint8, uint16 or floating point.
      length: of the segment in pixels; one number, or one for each image.
      degrees: its direction, counter-clockwise from the row; one number, or one for each image.
      size: side of the window, odd; a segment's points beyond it do not count. Default: the window
        that `length` needs; `length` then is one Python number. Static.
      border: `"reflect101"`, `"symmetric"`, `"edge"`, `"constant"` (zero) or `"wrap"`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or parameters that are not numbers.
      ValueError: parameters that do not belong to the images, an even window, or an unknown
        border.

    Example:
      >>> image = np.zeros((1, 5, 1), np.float32)
      >>> image[0, 2] = 1
      >>> print(np.asarray(ops.motion_blur(image, 2, 0))[0, :, 0].round(2))
      [0.   0.25 0.5  0.25 0.  ]
    """
    array, positions = picture(image, axes)
    if size is None:
        if not isinstance(length, int | float):
            raise TypeError("length must be a Python number, or size must say the window's side")
        size = 2 * math.ceil(number(length, "length", least=0) / 2) + 1
    if not is_integer(size) or size < 1 or size % 2 == 0:
        raise ValueError(f"size must be an odd integer from 1, got {size!r}")
    extents, angles = jnp.broadcast_arrays(
        parameter(length, "length"), parameter(degrees, "degrees")
    )
    window = segment(extents, angles, size)
    return correlate(array, window, positions, checked_border(border))
