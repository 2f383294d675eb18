"""What every kernel asks of an image before it traces anything.

Kernels take any number of leading axes and name the axes that they work on, so the checks here
speak of "the image" and of axis numbers, never of one layout.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

ImageLike = jax.Array | np.ndarray


def image_array(image: ImageLike, name: str = "image") -> jax.Array:
    """The image as a JAX array, refused unless it is uint8 or floating point and has no empty axis.

    Raises:
      TypeError: boolean, complex or integer values other than uint8, or nothing array-like.
      ValueError: an axis of extent 0.
    """
    if not hasattr(image, "dtype") or not hasattr(image, "shape"):
        raise TypeError(
            f"{name} must be a JAX or NumPy array, got {type(image).__name__}; convert it first"
        )
    dtype = jnp.dtype(image.dtype)
    if dtype != jnp.uint8 and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"{name} must be uint8 or floating point, got {dtype}; cast it, which makes its range "
            "your choice"
        )
    if math.prod(image.shape) == 0:
        raise ValueError(f"{name} is empty, its shape is {tuple(image.shape)}")
    return jnp.asarray(image)


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """float64 for float64, float32 for everything narrower: sums never run in bfloat16."""
    return jnp.promote_types(dtype, jnp.float32) if dtype != jnp.uint8 else jnp.dtype(jnp.float32)


def normal_axis(axis: int, ndim: int, name: str = "axis") -> int:
    """`axis` counted from the front.

    Raises:
      ValueError: the array has no such axis.
    """
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {axis!r}")
    if not -ndim <= axis < ndim:
        raise ValueError(f"{name}={axis} is outside an array of {ndim} axes")
    return int(axis) % ndim


def normal_axes(axes: Sequence[int], ndim: int) -> tuple[int, int]:
    """(height axis, width axis) counted from the front.

    Raises:
      ValueError: not two different axes of the array.
    """
    if not isinstance(axes, Sequence) or len(axes) != 2:
        raise ValueError(f"axes must be (height axis, width axis), got {axes!r}")
    height, width = (normal_axis(axis, ndim, "axes") for axis in axes)
    if height == width:
        raise ValueError(f"axes={tuple(axes)} name the same axis twice")
    return height, width


def positive_pair(value: int | Sequence[int], name: str) -> tuple[int, int]:
    """(height, width) from one integer or a pair, each at least 1.

    Raises:
      TypeError: something other than integers.
      ValueError: not one or two of them, or one below 1.
    """
    pair = (value, value) if isinstance(value, int | np.integer) else value
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise ValueError(f"{name} must be an integer or (height, width), got {value!r}")
    for extent in pair:
        if isinstance(extent, bool) or not isinstance(extent, int | np.integer):
            raise TypeError(f"{name} must hold integers, got {extent!r}")
        if extent < 1:
            raise ValueError(f"{name} must be at least 1 on each side, got {value!r}")
    return int(pair[0]), int(pair[1])


def one_of(value: str, choices: Sequence[str], name: str) -> str:
    """`value` if it is one of `choices`.

    Raises:
      ValueError: it is not; the message lists the choices.
    """
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
    return value
