"""Connected regions of masks, numbered."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import MASK_THRESHOLD, ImageLike, masks_and_axes
from jaxsr.ops._opencv import for_each_row, opencv
from jaxsr.ops._regions import greatest_in_region
from jaxsr.ops._row_primitives import in_planes, row_primitive
from jaxsr.ops._scipy import ndimage
from jaxsr.ops._typed_jax import arange, jit, zeros_like
from jaxsr.ops._types import Array, Int, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel


class Components(NamedTuple):
    """Result of `connected_components`."""

    labels: Int[Array, "*shape"]
    """0 outside the mask, and from 1 on the number of the region, in the order of rows."""
    total: Int[Array, "..."]
    """How many regions each plane has."""


def connected_components(
    masks: Shaped[ImageLike, "*shape"],
    *,
    connectivity: int = 4,
    axes: Sequence[int] = (-3, -2),
) -> Components:
    """Numbers the connected regions of each plane, as `scipy.ndimage.label`.

    A loop hands labels on along rows and columns, and ends when nothing changes. Over a sharded
    batch all devices agree on that end, one bit a round; under `shard_map` they do not.

    Args:
      masks: set above 0.5, or boolean; any dtype and leading axes.
      connectivity: 4, or 8 with pixels that share a corner alone, as OpenCV's
        `connectedComponents`.
      axes: the height and the width axis.

    Returns:
      Labels in int32 and their count, whose shape lacks height and width.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: another connectivity.

    Example:
      >>> masks = np.array([[1, 0, 1], [1, 0, 0]], bool)[..., None]
      >>> labels, total = ops.connected_components(masks)
      >>> labels[..., 0].tolist(), total.tolist()
      ([[1, 0, 2], [1, 0, 0]], [2])
    """
    array, (height, width) = masks_and_axes(masks, axes)
    if connectivity not in (4, 8):
        raise ValueError(f"connectivity must be 4 or 8, got {connectivity!r}")
    mask = array if array.dtype == bool else array > MASK_THRESHOLD
    return _components(mask, connectivity == 8, (height - array.ndim, width - array.ndim))


@jit("diagonal", "axes")
def _components(mask: jax.Array, diagonal: bool, axes: tuple[int, int]) -> Components:
    if not mask.size:
        labels = zeros_like(mask, jnp.int32)
        return Components(labels, labels.sum(axes))
    planes = partial(_components_p.bind, diagonal=diagonal)
    labels = in_planes(planes, mask.astype(jnp.uint8), axes)
    return Components(labels, labels.max(axes))


@kernel("jaxsr_opencv_label")
def _label_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    cv2, (planes,), labels = opencv(), inputs, outputs[0][..., 0]
    # By pixels, in the order of rows. For 8 neighbours the default numbers blocks of 2 x 2.
    connectivity, algorithm = (8, cv2.CCL_WU) if attributes["diagonal"][0] else (4, cv2.CCL_DEFAULT)

    def label(row: int) -> None:
        cv2.connectedComponentsWithAlgorithm(
            planes[row], connectivity, cv2.CV_32S, algorithm, labels=labels[row]
        )

    for_each_row(label, len(planes))


@kernel("jaxsr_scipy_label")
def _label_by_scipy(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    window = ndimage().generate_binary_structure(2, 1 + attributes["diagonal"][0])
    (planes,), labels = inputs, outputs[0][..., 0]

    def label(row: int) -> None:
        ndimage().label(planes[row], window, output=labels[row])

    for_each_row(label, len(planes))


def _label_in_jax(mask: jax.Array, *, diagonal: int) -> jax.Array:
    """The number of each pixel's region, of planes (n, h, w)."""
    height, width = mask.shape[-2:]
    x = mask > 0
    place = arange(height * width).reshape(height, width)
    # The greatest belongs to the first pixel of a region.
    first = height * width - place
    greatest = greatest_in_region(
        jnp.broadcast_to(first, x.shape), x, (-2, -1), diagonal=bool(diagonal)
    )
    begins = (x & (greatest == first)).reshape(*x.shape[:-2], -1)
    number = jnp.cumsum(begins, -1, dtype=jnp.int32)
    start = (height * width - greatest).reshape(begins.shape)
    # Outside the mask the place is one beyond the last.
    labels = jnp.take_along_axis(number, jnp.minimum(start, begins.shape[-1] - 1), -1)
    return jnp.where(x, labels.reshape(x.shape), 0)


_components_p = row_primitive(
    "components",
    _label_in_jax,
    {"OpenCV": _label_by_opencv, "SciPy": _label_by_scipy},
    dtype="int32",
    planes=True,
)
