"""Windows of traced weights, one for each image: programs do not depend on the weights.

In programs for CPUs OpenCV's `filter2D` computes short ones: it leaves weights of zero out, of
which a segment has many.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._border import NUMPY_MODES, Border, pad_axis
from jaxsr.ops._images import in_dtype_of, per_picture, real_dtype
from jaxsr.ops._opencv import for_each_row, opencv, opencv_border, shares_out
from jaxsr.ops._opencv_remap import is_finite
from jaxsr.ops._row_primitives import (
    in_pictures,
    keeps_layout,
    row_primitive,
    without_single_channel,
)
from jaxsr.ops._typed_jax import arange, fori_loop, zeros
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

_LONGEST_CALL = 11
"""Pixels along a side: OpenCV multiplies spectra of 130 taps and more."""
_BORDERS: tuple[Border, ...] = ("reflect101", "symmetric", "edge", "constant")


def correlate(
    image: jax.Array, window: jax.Array, axes: tuple[int, int], border: Border
) -> jax.Array:
    """Correlates height and width with a window of odd sides.

    Args:
      image: input images.
      window: (..., rows, columns); one for all images, or one for each.
      axes: height and width, counted from the end.
      border: rule for pixels beyond the edge.
    """
    sides = window.shape[-2:]
    x = image.astype(real_dtype(image))
    by_library = (
        x.dtype == jnp.float32
        and x.size > 0
        and max(sides) <= _LONGEST_CALL
        and border in _BORDERS
        and keeps_layout(image, axes)
    )

    def one(x: jax.Array, window: jax.Array) -> jax.Array:
        if not by_library:
            return _correlate_in_jax(x, window, axes, border)

        def of_pictures(pictures: jax.Array) -> jax.Array:
            windows = jnp.broadcast_to(window, (pictures.shape[0], *sides))
            edge = _BORDERS.index(border)
            return _correlate_p.bind(pictures, windows.astype(x.dtype), border=edge)

        return in_pictures(of_pictures, x, axes)

    return in_dtype_of(image, per_picture(one, x, axes, {"window": (window, 2)}))


def _correlate_in_jax(
    x: jax.Array, window: jax.Array, axes: tuple[int, int], border: Border
) -> jax.Array:
    """A loop over the window's rows, a sum of shifted slices in each.

    Not `lax.conv`, which rounds float32 to bfloat16 on TPUs.
    """
    (height, width), (rows, columns) = axes, window.shape
    wide, window = x, window.astype(x.dtype)
    for axis, side in ((height, rows), (width, columns)):
        wide = pad_axis(wide, wide.ndim + axis, side // 2, side // 2, border)

    def add(row: jax.Array, total: jax.Array) -> jax.Array:
        line = jax.lax.dynamic_slice_in_dim(wide, row, x.shape[height], wide.ndim + height)
        for column in range(columns):
            stop = column + x.shape[width]
            part = jax.lax.slice_in_dim(line, column, stop, axis=line.ndim + width)
            weight = window[row, column]
            unread = (weight == 0) & ~jnp.isfinite(part)
            total += jnp.where(unread, 0, part) * weight
        return total

    return fori_loop(0, rows, add, zeros(x.shape, wide.dtype))


def _correlate_pictures(pictures: jax.Array, windows: jax.Array, *, border: int) -> jax.Array:
    one = partial(_correlate_in_jax, axes=(-3, -2), border=_BORDERS[border])
    return jax.vmap(one)(pictures, windows)


@kernel("jaxsr_opencv_correlate")
def _correlate_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (pictures, windows), cv2 = inputs, opencv()
    pictures, results = without_single_channel(pictures), without_single_channel(outputs[0])
    edge = _BORDERS[attributes["border"][0]]
    flag = opencv_border(edge)

    def filter_one(row: int) -> None:
        if is_finite(pictures[row]):
            cv2.filter2D(pictures[row], -1, windows[row], results[row], borderType=flag)
        else:
            results[row] = _correlate_in_numpy(pictures[row], windows[row], edge)

    is_large = shares_out(math.prod(pictures.shape[1:3]), len(pictures))
    for_each_row(filter_one, len(pictures), large=is_large)


def _correlate_in_numpy(picture: np.ndarray, window: np.ndarray, border: Border) -> np.ndarray:
    """Values that are not finite included, which OpenCV spreads."""
    (height, width), (rows, columns) = picture.shape[:2], window.shape
    around = [(rows // 2,) * 2, (columns // 2,) * 2, *[(0, 0)] * (picture.ndim - 2)]
    wide = np.pad(picture, around, mode=NUMPY_MODES[border])
    total = np.zeros_like(picture)
    with np.errstate(invalid="ignore"):
        for row, column in np.ndindex(*window.shape):
            if weight := window[row, column]:
                total += wide[row : row + height, column : column + width] * weight
    return total


_correlate_p = row_primitive(
    "correlate", _correlate_pictures, {"OpenCV": _correlate_by_opencv}, is_differentiable=True
)


def gaussian(sigma: jax.Array, size: int) -> jax.Array:
    """(..., size) weights of a Gaussian that sum to 1; a sigma of 0 is one pixel."""
    offset = arange(size, dtype=sigma.dtype) - size // 2
    least = jnp.maximum(sigma[..., None], 1e-3)
    return jax.nn.softmax(-0.5 * (offset / least) ** 2)


def segment(length: jax.Array, degrees: jax.Array, size: int) -> jax.Array:
    """(..., size, size): a straight segment through the middle, drawn with bilinear weights.

    The mean of `4 * size` points that stand evenly on it; degrees are counter-clockwise.
    """
    share = (arange(4 * size, dtype=length.dtype) + 0.5) / (4 * size) - 0.5
    along = length[..., None] * share
    angle = degrees[..., None] * (jnp.pi / 180)
    offset = arange(size, dtype=length.dtype) - size // 2

    def weights(place: jax.Array) -> jax.Array:
        return jnp.maximum(1 - jnp.abs(place[..., None] - offset), 0)

    across, down = weights(along * jnp.cos(angle)), weights(-along * jnp.sin(angle))
    return (down[..., :, :, None] * across[..., :, None, :]).mean(-3)
