"""Distances within masks to the nearest pixel outside."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import MASK_THRESHOLD, ImageLike, masks_and_axes
from jaxsr.ops._opencv import for_each_row, opencv
from jaxsr.ops._row_primitives import in_planes, row_primitive
from jaxsr.ops._scipy import ndimage
from jaxsr.ops._typed_jax import arange, jit, platform_dependent, zeros
from jaxsr.ops._types import Array, Float, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

_FAR = 1 << 30
"""Squared pixels, beyond any image."""
_LONGEST = 1 << 14
"""Pixels of a side, whose squares stay below `_FAR` in sum."""
_EXACT_EXTENT = 1 << 9
"""Pixels of a side up to which OpenCV, which compares squares in float32, cannot take one pixel for
another: where parabolas meet is then known to less than half the distance of two such places. Its
roots are off by an ulp; their squares are then still nearest to the right integer."""


def distance_transform(
    masks: Shaped[ImageLike, "*shape"], *, axes: Sequence[int] = (-3, -2)
) -> Float[Array, "*shape"]:
    """Euclidean distance of each pixel to the nearest unset one: SciPy's `distance_transform_edt`.

    Exact: squares are integers. The work grows with height² times width.

    Args:
      masks: set above 0.5, or boolean; any dtype and leading axes.
      axes: the height and the width axis.

    Returns:
      float32, in pixels; 0 where unset, infinite where nothing of the plane is unset.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: sides beyond 16384 pixels.

    Example:
      >>> ops.distance_transform(np.array([[[0], [1], [1], [1]]], bool)).ravel().tolist()
      [0.0, 1.0, 2.0, 3.0]
    """
    array, (height, width) = masks_and_axes(masks, axes)
    if max(array.shape[height], array.shape[width]) > _LONGEST:
        raise ValueError(
            f"sides up to {_LONGEST} px are measured, got the shape {array.shape}; cut it first"
        )
    mask = array if array.dtype == bool else array > MASK_THRESHOLD
    return _distance(mask, (height - array.ndim, width - array.ndim))


@jit("axes")
def _distance(mask: jax.Array, axes: tuple[int, int]) -> jax.Array:
    if not mask.size:
        return zeros(mask.shape, jnp.float32)
    is_small = max(mask.shape[axis] for axis in axes) <= _EXACT_EXTENT
    return in_planes((_near_p if is_small else _far_p).bind, mask, axes)


@kernel("jaxsr_scipy_distance")
def _by_scipy(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (planes,), distances = inputs, outputs[0][..., 0]
    rows, columns = (np.arange(extent, dtype=np.int32) for extent in planes.shape[1:])

    def measure(row: int) -> None:
        # The nearest pixels themselves: squares of whole numbers are exact.
        down, across = ndimage().distance_transform_edt(
            planes[row], return_distances=False, return_indices=True
        )
        if down[0, 0] < 0:  # SciPy's sign that no pixel is unset
            distances[row] = np.inf
            return
        down -= rows[:, None]
        across -= columns
        down *= down
        across *= across
        down += across
        np.sqrt(down.astype(np.float32), distances[row])

    for_each_row(measure, len(planes))


@kernel("jaxsr_opencv_distance")
def _by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (planes,), distances, cv2 = inputs, outputs[0][..., 0], opencv()

    def measure(row: int) -> None:
        plane = planes[row].view(np.uint8)
        if cv2.countNonZero(plane) == plane.size:
            distances[row] = np.inf
            return
        cv2.distanceTransform(plane, cv2.DIST_L2, cv2.DIST_MASK_PRECISE, distances[row])
        np.square(distances[row], distances[row])
        np.rint(distances[row], distances[row])
        np.sqrt(distances[row], distances[row])

    for_each_row(measure, len(planes))


def _in_jax(planes: jax.Array) -> jax.Array:
    along = _to_nearest_unset(planes)
    squares = jnp.where(along >= planes.shape[-1], _FAR, jnp.square(along))
    squares = platform_dependent(squares, cpu=_row_by_row, default=_in_one_reduction)
    return jnp.where(squares >= _FAR, jnp.inf, jnp.sqrt(squares.astype(jnp.float32)))


_near_p = row_primitive(
    "distance", _in_jax, {"OpenCV": _by_opencv, "SciPy": _by_scipy}, dtype="float32", planes=True
)
_far_p = row_primitive("far_distance", _in_jax, {"SciPy": _by_scipy}, dtype="float32", planes=True)


def _in_one_reduction(squares: jax.Array) -> jax.Array:
    """The least sum of squares over all rows; fused, so that the sums are never stored."""
    row = arange(squares.shape[-2])
    apart = jnp.square(row[:, None] - row)[:, :, None]
    return jnp.min(squares[..., None, :, :] + apart, axis=-2)


def _row_by_row(squares: jax.Array) -> jax.Array:
    """The same as a loop, which vectorises on CPUs."""
    row = arange(squares.shape[-2])

    def nearer(nearest: jax.Array, source: jax.Array) -> tuple[jax.Array, None]:
        line = jax.lax.dynamic_slice_in_dim(squares, source, 1, axis=squares.ndim - 2)
        return jnp.minimum(nearest, line + jnp.square(row - source)[:, None]), None

    return jax.lax.scan(nearer, squares, row)[0]


def _to_nearest_unset(mask: jax.Array) -> jax.Array:
    """Pixels along the last axis, at least its extent where a row has none."""
    extent = mask.shape[-1]
    place = arange(extent)
    before = jax.lax.cummax(jnp.where(mask, -extent, place), axis=mask.ndim - 1)
    after = jax.lax.cummin(jnp.where(mask, 2 * extent, place), axis=mask.ndim - 1, reverse=True)
    return jnp.minimum(place - before, after - place)
