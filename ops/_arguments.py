"""Checks of arguments that the kernels share, and the dtypes that they compute in.

Kernels take any number of leading axes and name the axes that they work on. So the checks speak of
"the image" and of axis numbers, never of one layout. Each raises TypeError or ValueError.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._typed_jax import asarray

ImageLike = jax.Array | np.ndarray

MASK_THRESHOLD = 0.5
"""A mask is set where it lies above this."""


def image_array(image: ImageLike, name: str = "image") -> jax.Array:
    """The image as a JAX array: uint8 or floating point, with no empty axis."""
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
    return asarray(image)


def mask_array(masks: ImageLike) -> jax.Array:
    """The masks as a JAX array: boolean, uint8 or floating point, with no empty axis."""
    if getattr(masks, "dtype", None) != np.dtype(bool):
        return image_array(masks, "masks")
    masks = asarray(masks)
    image_array(masks.astype(jnp.uint8), "masks")
    return masks


def frames_and_masks(
    frames: ImageLike, masks: ImageLike, axes: Sequence[int]
) -> tuple[jax.Array, jax.Array, tuple[int, int]]:
    """Both as JAX arrays, and (height axis, width axis) counted from the front."""
    frames, masks = image_array(frames, "frames"), mask_array(masks)
    axes = normal_axes(axes, frames.ndim)
    pairs = zip(frames.shape, masks.shape, strict=False)
    differing = [axis for axis, (n, m) in enumerate(pairs) if n != m]
    one_channel = len(differing) <= 1 and all(masks.shape[axis] == 1 for axis in differing)
    if masks.ndim != frames.ndim or not one_channel or set(differing) & set(axes):
        raise ValueError(
            f"masks of shape {masks.shape} do not fit frames of shape {frames.shape}: they need "
            "one channel and otherwise the same shape"
        )
    return frames, masks, axes


def compute_dtype(dtype: jax.typing.DTypeLike) -> np.dtype:
    """float64 for float64, float32 for everything narrower: sums never run in bfloat16."""
    return jnp.promote_types(dtype, jnp.float32) if dtype != jnp.uint8 else jnp.dtype(jnp.float32)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def normal_axis(axis: object, ndim: int, name: str = "axis") -> int:
    """`axis` counted from the front."""
    if not is_integer(axis):
        raise TypeError(f"{name} must be an integer, got {axis!r}")
    if not -ndim <= axis < ndim:
        raise ValueError(f"{name}={axis} is outside an array of {ndim} axes")
    return int(axis) % ndim


def normal_axes(axes: Sequence[int], ndim: int) -> tuple[int, int]:
    """(height axis, width axis) counted from the front."""
    if not hasattr(axes, "__len__") or len(axes) != 2:
        raise ValueError(f"axes must be (height axis, width axis), got {axes!r}")
    height, width = (normal_axis(axis, ndim, "axes") for axis in axes)
    if height == width:
        raise ValueError(f"axes={tuple(axes)} name the same axis twice")
    return height, width


def positive_pair(value: int | Sequence[int], name: str) -> tuple[int, int]:
    """(height, width) from one integer or a pair, each at least 1."""
    pair = value if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be an integer or (height, width), got {value!r}")
    for extent in pair:
        if not is_integer(extent):
            raise TypeError(f"{name} must hold integers, got {extent!r}")
        if extent < 1:
            raise ValueError(f"{name} must be at least 1 on each side, got {value!r}")
    return int(pair[0]), int(pair[1])


def one_of(value: str, choices: Sequence[str], name: str) -> str:
    """`value` if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
    return value
