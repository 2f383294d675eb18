"""Checks of arguments that the kernels share, and the dtypes that they compute in.

Kernels take any number of leading axes and name the axes that they work on. So the checks speak of
"the image" and of axis numbers, never of one layout. Each raises TypeError or ValueError.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._typed_jax import asarray

ImageLike = jax.Array | np.ndarray

MASK_THRESHOLD = 0.5
"""A mask is set where it lies above this."""


def image_array(image: ImageLike, name: str = "image", *, wide: bool = False) -> jax.Array:
    """The image as a JAX array: uint8 or floating point, or, if `wide`, uint16."""
    if not hasattr(image, "dtype") or not hasattr(image, "shape"):
        raise TypeError(
            f"{name} must be a JAX or NumPy array, got {type(image).__name__}; convert it first"
        )
    dtype = jnp.dtype(image.dtype).newbyteorder("=")
    whole = dtype == jnp.uint8 or (wide and dtype == jnp.uint16)
    if not whole and not jnp.issubdtype(dtype, jnp.floating):
        kinds = "uint8, uint16" if wide else "uint8"
        raise TypeError(
            f"{name} must be {kinds} or floating point, got {dtype}; cast it, which makes its "
            "range your choice"
        )
    return asarray(image)


def image_and_axes(
    image: ImageLike, axes: Sequence[int], name: str = "image", *, wide: bool = False
) -> tuple[jax.Array, tuple[int, int]]:
    """The image as a JAX array, and (height axis, width axis) counted from the front.

    A batch may be empty, an image may not.
    """
    array = image_array(image, name, wide=wide)
    return array, _picture_axes(array, axes, name)


def masks_and_axes(masks: ImageLike, axes: Sequence[int]) -> tuple[jax.Array, tuple[int, int]]:
    """`image_and_axes` of masks, which may be boolean."""
    array = asarray(masks) if getattr(masks, "dtype", None) == np.dtype(bool) else None
    array = image_array(masks, "masks") if array is None else array
    return array, _picture_axes(array, axes, "masks")


def _picture_axes(array: jax.Array, axes: Sequence[int], name: str) -> tuple[int, int]:
    normal = normal_axes(axes, array.ndim)
    if 0 in array.shape[min(normal) :]:
        raise ValueError(f"{name} is empty, its shape is {array.shape}; only a batch may be")
    return normal


def frames_and_masks(
    frames: ImageLike, masks: ImageLike, axes: Sequence[int]
) -> tuple[jax.Array, jax.Array, tuple[int, int]]:
    """Both as JAX arrays, and (height axis, width axis) counted from the front."""
    frames, axes = image_and_axes(frames, axes, "frames")
    masks, _ = masks_and_axes(masks, axes)
    pairs = zip(frames.shape, masks.shape, strict=False)
    differing = [axis for axis, (n, m) in enumerate(pairs) if n != m]
    one_channel = len(differing) <= 1 and all(masks.shape[axis] == 1 for axis in differing)
    ndim, channel = frames.ndim, channel_axis(axes, frames.ndim)
    if channel is not None and channel < masks.ndim and (ndim > 3 or channel > max(axes)):
        one_channel &= masks.shape[channel] == 1
    if masks.ndim != frames.ndim or not one_channel or set(differing) & set(axes):
        raise ValueError(
            f"masks of shape {masks.shape} do not fit frames of shape {frames.shape}: they need "
            "one channel and otherwise the same shape"
        )
    return frames, masks, axes


def channel_axis(axes: tuple[int, int], ndim: int) -> int | None:
    """The axis of channels in batches of NHWC or NCHW images; None in other layouts."""
    if ndim == max(axes) + 2:
        return ndim - 1
    return min(axes) - 1 if min(axes) > 0 and ndim == max(axes) + 1 else None


def compute_dtype(dtype: jax.typing.DTypeLike) -> np.dtype:
    """float64 for float64, float32 for everything narrower: sums never run in bfloat16."""
    return (
        jnp.promote_types(dtype, jnp.float32)
        if jnp.issubdtype(dtype, jnp.floating)
        else jnp.dtype(jnp.float32)
    )


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number of Python or NumPy, and no bool: known before anything is traced."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def normal_axis(axis: object, ndim: int, name: str = "axis") -> int:
    """`axis` counted from the front."""
    if not is_integer(axis):
        raise TypeError(f"{name} must be an integer, got {axis!r}")
    if not -ndim <= axis < ndim:
        kind = "channels" if name == "alpha" else "axes"
        raise ValueError(f"{name}={axis} is outside an array of {ndim} {kind}")
    return int(axis) % ndim


def normal_axes(axes: Sequence[int], ndim: int) -> tuple[int, int]:
    """(height axis, width axis) counted from the front."""
    if not hasattr(axes, "__len__") or len(axes) != 2:
        raise TypeError(f"axes must be (height axis, width axis), got {axes!r}")
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


def number(
    value: object, name: str, *, above: float = -math.inf, least: float = -math.inf
) -> float:
    """A finite Python number, above or from a limit on."""
    if not is_number(value):
        raise TypeError(f"{name} must be a Python number, got {value!r}")
    limit = f" above {above}" if above > -math.inf else f" of at least {least}"
    real = float(value)
    if not math.isfinite(real) or real <= above or real < least:
        bounded = max(above, least) > -math.inf
        raise ValueError(f"{name} must be a finite number{limit * bounded}, got {value!r}")
    return real


def flag(value: object, name: str) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value is True or bool(cast(bool, value))


def one_of(value: str, choices: Sequence[str], name: str) -> str:
    """`value` if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
    return value
