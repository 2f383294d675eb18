"""Shared parts of image kernels: dtypes and rounding, layouts, one parameter per image.

A parameter with leading axes holds one value for each index of the image's leading axes; without
them it serves every image. Inside, kernels see axes counted from the end, which `vmap` leaves.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, normal_axes, normal_axis
from jaxsr.ops._typed_jax import arange, asarray, optimization_barrier, platform_dependent

Parameter = float | Sequence[Any] | jax.Array | np.ndarray
INTEGER_DTYPES = (jnp.dtype(jnp.uint8), jnp.dtype(jnp.uint16))


def picture(
    image: ImageLike, axes: Sequence[int], name: str = "image"
) -> tuple[jax.Array, tuple[int, int]]:
    """The image as a JAX array, and (height axis, width axis) counted from the end.

    uint8, uint16 or floating point. A batch may be empty, an image may not.

    Args:
      image: the argument.
      axes: its height and width.
      name: of the argument, for errors.
    """
    array = pixels(image, name)
    height, width = normal_axes(axes, array.ndim)
    if 0 in array.shape[min(height, width) :]:
        raise ValueError(f"{name} is empty, its shape is {array.shape}; only a batch may be")
    return array, (height - array.ndim, width - array.ndim)


def pixels(image: ImageLike, name: str = "image") -> jax.Array:
    """The image as a JAX array: uint8, uint16 or floating point, of any layout."""
    if not hasattr(image, "dtype") or not hasattr(image, "shape"):
        kind = type(image).__name__
        raise TypeError(f"{name} must be a JAX or NumPy array, got {kind}; convert it first")
    dtype = jnp.dtype(image.dtype).newbyteorder("=")
    if dtype not in INTEGER_DTYPES and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{name} must be uint8, uint16 or floating point, got {dtype}; cast it")
    return asarray(image)


def channel_planes(image: jax.Array, channel: int, most: int = 3) -> list[jax.Array]:
    """The three channels (or `most` of them), each with an axis of extent 1 in their place."""
    axis = normal_axis(channel, image.ndim, "channel")
    if image.shape[axis] not in (3, most):
        raise ValueError(
            f"channel={channel} must hold R, G and B, but the image's shape is {image.shape}"
        )
    extent = image.shape[axis]
    return [jax.lax.slice_in_dim(image, k, k + 1, axis=axis) for k in range(extent)]


def unit_planes(image: jax.Array, channel: int) -> list[jax.Array]:
    """`channel_planes` in the dtype of sums, white at 1."""
    white = peak_of(image)
    return [plane.astype(real_dtype(image)) / white for plane in channel_planes(image, channel)]


def real_dtype(image: jax.Array) -> np.dtype:
    """The dtype of sums: float64 for float64, float32 for everything else."""
    return jnp.dtype(jnp.float64 if image.dtype == jnp.float64 else jnp.float32)


def in_dtype_of(image: jax.Array, x: jax.Array) -> jax.Array:
    """Real results in the image's dtype; integers are rounded half to even and clipped."""
    if image.dtype not in INTEGER_DTYPES:
        return x.astype(image.dtype)
    most = np.iinfo(image.dtype).max
    return jnp.nan_to_num(jnp.clip(jnp.round(x), 0, most)).astype(image.dtype)


def peak_of(image: jax.Array) -> float:
    """White: 255, 65535, or 1 in floating point."""
    return float(np.iinfo(image.dtype).max) if image.dtype in INTEGER_DTYPES else 1.0


def along_channel(values: Sequence[Any] | np.ndarray, like: jax.Array, channel: int) -> jax.Array:
    """A constant for each channel, which broadcasts with planes; in the dtype of `like`."""
    shape = [1] * like.ndim
    shape[normal_axis(channel, like.ndim, "channel")] = len(values)
    return asarray(np.asarray(values).reshape(shape), like.dtype)


def mixed(
    planes: Sequence[jax.Array],
    matrix: np.ndarray,
    channel: int,
    offset: Sequence[Any] | np.ndarray | None = None,
) -> jax.Array:
    """A matrix times the colours of planes, and an offset: a channel for each row.

    Sums of products, not a dot: a TPU dot rounds its operands to bfloat16 by default. Not a
    concatenation of rows either: XLA's CPU loops over a short one do not vectorise.
    """
    red, green, blue = (
        plane * along_channel(column, plane, channel)
        for plane, column in zip(planes, matrix.T, strict=True)
    )
    total = red + green + blue
    return total if offset is None else total + along_channel(offset, total, channel)


def joined(planes: Sequence[jax.Array], channel: int) -> jax.Array:
    """Planes side by side in the axis of channels."""
    axis = normal_axis(channel, planes[0].ndim, "channel")

    def concatenated(*planes: jax.Array) -> jax.Array:
        return jnp.concatenate(planes, axis)

    def selected(*planes: jax.Array) -> jax.Array:
        place = arange(len(planes))
        *others, out = planes
        for k, plane in enumerate(others):
            out = jnp.where(place == k, plane, out)
        return out

    if axis < planes[0].ndim - 1:
        return concatenated(*planes)
    # XLA's CPU loops over a short concatenation do not vectorise: to compute all planes for each
    # channel takes less time.
    return platform_dependent(*planes, cpu=selected, default=concatenated)


def stored(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """A function of single values, computed once for all that read it.

    XLA's CPU loops would compute it anew for each reader. They do not fuse a concatenation into its
    readers, so there each half is computed apart.
    """
    # The first of equal axes: its halves are long runs, each one vector loop.
    axis = max(range(x.ndim), key=lambda axis: (axis > 0, x.shape[axis], -axis))
    middle = x.shape[axis] // 2
    halves = jnp.split(x, [middle], axis) if middle else [x]
    return optimization_barrier(jnp.concatenate([function(half) for half in halves], axis))


def planes_of_values(
    function: Callable[[jax.Array], jax.Array], image: jax.Array, channel: int
) -> list[jax.Array]:
    """`channel_planes` of a function of single values, for sums of several planes."""

    def at_once(image: jax.Array) -> list[jax.Array]:
        return channel_planes(stored(function, image), channel)

    def apart(image: jax.Array) -> list[jax.Array]:
        return [function(plane) for plane in channel_planes(image, channel)]

    channel_planes(image, channel)  # refuses other channels
    return cast(Any, platform_dependent)(image, cpu=at_once, default=apart)


def parameter(value: Parameter, name: str, shape: tuple[int, ...] = ()) -> jax.Array:
    """A real parameter whose last axes are `shape`; float32, or float64 as it comes."""
    try:
        array = None if isinstance(value, str) else asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or not jnp.issubdtype(array.dtype, jnp.number):
        raise TypeError(f"{name} must hold numbers, got {value!r}")
    if array.ndim < len(shape) or array.shape[array.ndim - len(shape) :] != shape:
        axes = ", ".join(["…", *map(str, shape)])
        raise ValueError(f"{name} must have the shape ({axes}), got {array.shape}")
    return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


def integers(value: Any, name: str) -> jax.Array:
    """Whole numbers as they come, or in int32: sums of narrower ones would overflow."""
    array = asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} must hold integers, got {array.dtype}")
    return array.astype(jnp.int32) if array.dtype.itemsize < 4 else array


def spread(value: Parameter, image: jax.Array, axes: tuple[int, int], name: str) -> jax.Array:
    """A factor for each image, with axes of extent 1 for all that an image has."""
    array = parameter(value, name)
    check_per_picture(array, name, image, axes)
    return array.reshape(*array.shape, *[1] * (image.ndim - array.ndim))


def check_per_picture(
    value: jax.Array, name: str, image: jax.Array, axes: tuple[int, int], rank: int = 0
) -> None:
    """Raises ValueError unless it is one value of `rank` axes, or one for each image."""
    count = value.ndim - rank
    if count > image.ndim + min(axes) or value.shape[:count] != image.shape[:count]:
        raise ValueError(
            f"{name} of shape {value.shape} has no value for each image of shape "
            f"{image.shape}; its leading axes must be those of the image, or none"
        )


def per_picture(
    function: Callable[..., jax.Array],
    image: jax.Array,
    axes: tuple[int, int],
    parameters: dict[str, tuple[jax.Array, int]],
) -> jax.Array:
    """`function(image, *parameters)`, mapped over the leading axes that parameters have.

    Args:
      function: of one image (which may keep leading axes) and one value of each parameter.
      image: input images.
      axes: height and width, counted from the end.
      parameters: by name, the array and the number of axes that one value has.
    """
    arrays = [array for array, _ in parameters.values()]
    extra = [array.ndim - rank for array, rank in parameters.values()]
    for name, (array, rank) in parameters.items():
        check_per_picture(array, name, image, axes, rank)
    for level in reversed(range(max(extra, default=0))):
        mapped = [0 if count > level else None for count in extra]
        function = cast(Any, jax.vmap(function, in_axes=(0, *mapped)))
    return function(image, *arrays)
