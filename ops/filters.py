"""Windows moved over images: mean, median, least and greatest value.

Images are uint8, uint16 or floating point in any layout; `axes` names height and width (NHWC by
default). Windows are rectangles of odd sides, in pixels. The median of a window with a NaN is NaN.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, positive_pair
from jaxsr.ops._border import Border, checked_border, pad_axis
from jaxsr.ops._images import in_dtype_of, picture, real_dtype
from jaxsr.ops._opencv import for_each_row, opencv, opencv_border, shares_out
from jaxsr.ops._opencv_remap import is_finite
from jaxsr.ops._opencv_separable import in_jax as separable_in_jax
from jaxsr.ops._opencv_separable import separable
from jaxsr.ops._row_primitives import (
    in_pictures,
    keeps_layout,
    row_primitive,
    without_single_channel,
)
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

_LONGEST_REAL_MEDIAN = 5
"""Pixels of a side for which OpenCV has medians of floats."""
_LARGEST_NETWORK = 49
"""Pixels of a window up to which a network of comparisons is compiled, and not a sort."""


def box_filter(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "reflect101",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Means of windows, as `scipy.ndimage.uniform_filter` of floats and OpenCV's `blur`.

    Args:
      image: input images.
      size: (height, width) of the window, odd. Static.
      border: `"reflect101"`, `"symmetric"`, `"edge"`, `"constant"` (zero) or `"wrap"`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a size that is not an integer.
      ValueError: an even window, or an unknown border.

    Example:
      >>> ops.box_filter(np.array([[[0], [30], [60]]], np.uint8), (1, 3)).ravel().tolist()
      [20, 30, 40]
    """
    array, positions = picture(image, axes)
    return _box(array, _odd_pair(size), checked_border(border), positions) if array.size else array


def median_filter(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "edge",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Medians of windows, as `scipy.ndimage.median_filter` and OpenCV's `medianBlur`.

    Args:
      image: input images.
      size: (height, width) of the window, odd. Static; memory grows with its area.
      border: see `box_filter`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a size that is not an integer.
      ValueError: an even window, or an unknown border.

    Example:
      >>> ops.median_filter(np.array([[[0], [90], [60]]], np.uint8), (1, 3)).ravel().tolist()
      [0, 60, 60]
    """
    array, positions = picture(image, axes)
    return (
        _median(array, _odd_pair(size), checked_border(border), positions) if array.size else array
    )


def dilate(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "symmetric",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Greatest values of windows, as `scipy.ndimage.grey_dilation`.

    Args:
      image: input images.
      size: (height, width) of the window, odd. Static.
      border: see `box_filter`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a size that is not an integer.
      ValueError: an even window, or an unknown border.

    Example:
      >>> ops.dilate(np.array([[[0], [9], [0], [0]]], np.uint8), (1, 3)).ravel().tolist()
      [9, 9, 9, 0]
    """
    array, positions = picture(image, axes)
    window, edge = _odd_pair(size), checked_border(border)
    return _extreme(array, window, edge, positions, True) if array.size else array


def erode(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "symmetric",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Least values of windows, as `scipy.ndimage.grey_erosion`.

    Args:
      image: input images.
      size: (height, width) of the window, odd. Static.
      border: see `box_filter`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a size that is not an integer.
      ValueError: an even window, or an unknown border.

    Example:
      >>> ops.erode(np.array([[[5], [9], [9], [9]]], np.uint8), (1, 3)).ravel().tolist()
      [5, 5, 9, 9]
    """
    array, positions = picture(image, axes)
    window, edge = _odd_pair(size), checked_border(border)
    return _extreme(array, window, edge, positions, False) if array.size else array


@jit("size", "border", "axes")
def _box(
    image: jax.Array, size: tuple[int, int], border: Border, axes: tuple[int, int]
) -> jax.Array:
    fits = all(taps // 2 < image.shape[axis] for axis, taps in zip(axes, size, strict=True))
    if image.dtype == jnp.uint8 and border in _MEAN_BORDERS and fits:
        edge = _MEAN_BORDERS.index(border)
        function = partial(_mean_p.bind, height=size[0], width=size[1], border=edge)
        return in_pictures(function, image, axes)
    windows = ((1 / size[0],) * size[0], (1 / size[1],) * size[1])
    return in_dtype_of(image, separable(image.astype(real_dtype(image)), windows, border, axes))


_MEAN_BORDERS: tuple[Border, ...] = ("reflect101", "symmetric", "edge", "constant")


@kernel("jaxsr_opencv_mean")
def _mean_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    pictures, results = without_single_channel(inputs[0]), without_single_channel(outputs[0])
    (height,), (width,) = attributes["height"], attributes["width"]
    border = opencv_border(_MEAN_BORDERS[attributes["border"][0]])

    def mean(row: int) -> None:
        opencv().blur(pictures[row], (width, height), results[row], borderType=border)

    is_large = shares_out(math.prod(pictures.shape[1:3]), len(pictures))
    for_each_row(mean, len(pictures), large=is_large)


def _mean_in_jax(pictures: jax.Array, *, height: int, width: int, border: int) -> jax.Array:
    windows = ((1 / height,) * height, (1 / width,) * width)
    x = pictures.astype(jnp.float32)
    x = separable_in_jax(x, windows=windows, border=_MEAN_BORDERS[border], axes=(-3, -2))
    return in_dtype_of(pictures, x)


_mean_p = row_primitive("mean", _mean_in_jax, {"OpenCV": _mean_by_opencv})


@jit("size", "border", "axes")
def _median(
    image: jax.Array, size: tuple[int, int], border: Border, axes: tuple[int, int]
) -> jax.Array:
    fits = size[0] <= _LONGEST_REAL_MEDIAN or image.dtype == jnp.uint8
    is_square = border == "edge" and size[0] == size[1] > 1
    if is_square and fits and _has_library_dtype(image, axes):
        return _of_library("median", image, size, axes)
    return _median_in_jax(image, size, border, axes)


def _median_in_jax(
    image: jax.Array, size: tuple[int, int], border: Border, axes: tuple[int, int]
) -> jax.Array:
    windows = [image]
    for axis, taps in zip(axes, size, strict=True):
        windows = [part for x in windows for part in _shifts(x, taps, axis, border)]
    if len(windows) > _LARGEST_NETWORK:
        ordered = jnp.sort(jnp.stack(windows), axis=0)
        middle = ordered[len(windows) // 2]
        # NaN sorts last.
        return jnp.where(jnp.isnan(ordered[-1]), jnp.nan, middle) if _is_real(image) else middle
    ordered = windows.copy()
    for first, second in _sorting_network(len(windows)):
        a, b = ordered[first], ordered[second]
        ordered[first], ordered[second] = jnp.minimum(a, b), jnp.maximum(a, b)
    middle = ordered[len(windows) // 2]
    if not _is_real(image):
        return middle
    is_nan = reduce(jnp.logical_or, map(jnp.isnan, windows))
    return jnp.where(is_nan, jnp.nan, middle)


def _sorting_network(count: int) -> Iterator[tuple[int, int]]:
    """Places to compare and exchange, in order.

    Batcher 1968, "Sorting networks and their applications": merges of odd and even places. Of the
    comparisons XLA keeps those that the middle depends on: elementwise, without a stack of windows.
    """
    part = 1
    while part < count:
        step = part
        while step >= 1:
            for begin in range(step % part, count - step, 2 * step):
                for place in range(begin, min(begin + step, count - step)):
                    if place // (2 * part) == (place + step) // (2 * part):
                        yield place, place + step
            step //= 2
        part *= 2


def extremes(
    kind: str,
    image: ImageLike,
    size: int | Sequence[int],
    border: str,
    axes: Sequence[int],
) -> jax.Array:
    """`"opening"`, `"closing"` or `"gradient"`; see `morphology.py`."""
    array, positions = picture(image, axes)
    window, edge = _odd_pair(size), checked_border(border)
    return _extremes(kind, array, window, edge, positions) if array.size else array


@jit("kind", "size", "border", "axes")
def _extremes(
    kind: str, image: jax.Array, size: tuple[int, int], border: Border, axes: tuple[int, int]
) -> jax.Array:
    if _is_library_window(image, size, border, axes):
        return _of_library(kind, image, size, axes)
    greatest, least = (
        partial(_extreme, size=size, border=border, axes=axes, greatest=flag)
        for flag in (True, False)
    )
    if kind == "gradient":
        return greatest(image) - least(image)
    return greatest(least(image)) if kind == "opening" else least(greatest(image))


@jit("size", "border", "axes", "greatest")
def _extreme(
    image: jax.Array,
    size: tuple[int, int],
    border: Border,
    axes: tuple[int, int],
    greatest: bool,
) -> jax.Array:
    if _is_library_window(image, size, border, axes):
        return _of_library("dilate" if greatest else "erode", image, size, axes)
    return _extreme_in_jax(image, size, border, axes, greatest)


_KINDS = ("median", "dilate", "erode", "opening", "closing", "gradient")


def _is_library_window(
    image: jax.Array, size: tuple[int, int], border: Border, axes: tuple[int, int]
) -> bool:
    fits = all(taps // 2 < image.shape[axis] for axis, taps in zip(axes, size, strict=True))
    # Pixels that these borders repeat are in the window already.
    return _has_library_dtype(image, axes) and border in ("symmetric", "edge") and fits


def _has_library_dtype(image: jax.Array, axes: tuple[int, int]) -> bool:
    return image.dtype == jnp.uint8 or (image.dtype == jnp.float32 and keeps_layout(image, axes))


def _of_library(
    kind: str, image: jax.Array, size: tuple[int, int], axes: tuple[int, int]
) -> jax.Array:
    """A window of uint8 or float32, by OpenCV in programs for CPUs."""
    function = partial(_window_p.bind, kind=_KINDS.index(kind), height=size[0], width=size[1])
    return in_pictures(function, image, axes)


@kernel("jaxsr_opencv_window")
def _window_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    pictures, results = without_single_channel(inputs[0]), without_single_channel(outputs[0])
    (kind,), (height,), (width,) = (attributes[name] for name in ("kind", "height", "width"))
    function, window = _window_function(_KINDS[kind], height, width)

    is_real = pictures.dtype == np.float32

    def filter_one(row: int) -> None:
        picture, result = pictures[row], results[row]
        if is_real and not is_finite(picture) and (lost := np.isnan(picture)).any():
            # OpenCV's comparisons do not consider NaN.
            function(np.where(lost, np.float32(0), picture), window, result)
            result[cv2.dilate(lost.astype(np.uint8), reach) > 0] = np.nan
            return
        function(picture, window, result)

    cv2, passes = opencv(), 2 if _KINDS[kind] in ("opening", "closing") else 1
    reach = np.ones((passes * (height - 1) + 1, passes * (width - 1) + 1), np.uint8)
    is_large = is_real and shares_out(math.prod(pictures.shape[1:3]), len(pictures))
    for_each_row(filter_one, len(pictures), large=is_large)


@lru_cache
def _window_function(kind: str, height: int, width: int) -> tuple[Callable[..., Any], Any]:
    """OpenCV's function and its second argument."""
    if kind == "median":
        return opencv().medianBlur, height
    cv2, window = opencv(), np.ones((height, width), np.uint8)
    border = opencv_border("edge")  # OpenCV's default is finite, and would exceed an infinity
    if kind in ("dilate", "erode"):
        return partial(getattr(cv2, kind), borderType=border), window
    operation = {"opening": cv2.MORPH_OPEN, "closing": cv2.MORPH_CLOSE}.get(
        kind, cv2.MORPH_GRADIENT
    )

    def compound(picture: np.ndarray, window: np.ndarray, result: np.ndarray) -> None:
        cv2.morphologyEx(picture, operation, window, result, borderType=border)

    return compound, window


def _window_in_jax(pictures: jax.Array, *, kind: int, height: int, width: int) -> jax.Array:
    size, axes = (height, width), (-3, -2)
    if _KINDS[kind] == "median":
        return _median_in_jax(pictures, size, "edge", axes)
    greatest, least = (
        partial(_extreme_in_jax, size=size, border="symmetric", axes=axes, greatest=flag)
        for flag in (True, False)
    )
    compounds: dict[str, Callable[[jax.Array], jax.Array]] = {
        "dilate": greatest,
        "erode": least,
        "opening": lambda x: greatest(least(x)),
        "closing": lambda x: least(greatest(x)),
        "gradient": lambda x: greatest(x) - least(x),
    }
    return compounds[_KINDS[kind]](pictures)


_window_p = row_primitive(
    "window", _window_in_jax, {"OpenCV": _window_by_opencv}, is_differentiable=True
)


def _extreme_in_jax(
    image: jax.Array,
    size: tuple[int, int],
    border: Border,
    axes: tuple[int, int],
    greatest: bool,
) -> jax.Array:
    join: Callable[[Any, Any], Any] = jnp.maximum if greatest else jnp.minimum
    for axis, taps in zip(axes, size, strict=True):
        image = reduce(join, _shifts(image, taps, axis, border))
    return image


def _shifts(image: jax.Array, taps: int, axis: int, border: Border) -> list[jax.Array]:
    """Each tap of a window along one axis, as an image of its own."""
    place, extent = axis + image.ndim, image.shape[axis]
    wide = pad_axis(image, place, taps // 2, taps // 2, border)
    cut = partial(jax.lax.slice_in_dim, wide, axis=place)
    return [cut(start, start + extent) for start in range(taps)]


def _is_real(image: jax.Array) -> bool:
    return bool(jnp.issubdtype(image.dtype, jnp.floating))


def _odd_pair(size: int | Sequence[int]) -> tuple[int, int]:
    window = positive_pair(size, "size")
    if window[0] % 2 == 0 or window[1] % 2 == 0:
        raise ValueError(f"size must be odd, got {size}; use the next one")
    return window
