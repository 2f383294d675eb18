# pyright: basic
# JAX gives primitives no types.
"""Boxes cut and resampled: by OpenCV in programs for CPUs, in JAX elsewhere.

`cv2.resize` is called where Intel's IPP computes its positions, in float64 as ours; its own code
has them in float32. It also multiplies pixels by weights of zero, which we do not read: images
that are not finite are taken apart. Boxes that are not whole are read by `cv2.remap`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from jaxsr.ops._arguments import MASK_THRESHOLD
from jaxsr.ops._opencv import for_each_row, opencv, shares_out
from jaxsr.ops._opencv_remap import FARTHEST, Read, is_finite, of_parts, read_at
from jaxsr.ops._row_primitives import (
    CALLS,
    first_installed,
    in_pictures,
    without_single_channel,
)
from jaxsr.ops._window import LARGEST_EXTENT, resample_window
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel
from jaxsr.xla_calls.primitives import cpu_primitive, map_by_rows
from jaxsr.xla_calls.rows import RowsCall

_NO_WEIGHT = 0.25 / LARGEST_EXTENT
"""Below all weights: they are multiples of half a pixel of the result."""


def crop_box(
    image: jax.Array, box: jax.Array, size: tuple[int, int], axes: tuple[int, int]
) -> jax.Array:
    """`resample_window(image, box, size, axes)`."""
    is_far = max(*size, *(image.shape[axis] for axis in axes)) > LARGEST_EXTENT
    if image.dtype != jnp.float32 or not image.size or is_far:
        return resample_window(image, box, size, axes)
    places = axes[0] - image.ndim, axes[1] - image.ndim
    return _crop_p.bind(image[None], box[None], size=size, places=places)[0]


def crop_masks(
    masks: jax.Array, box: jax.Array, size: tuple[int, int], axes: tuple[int, int]
) -> jax.Array:
    """Masks cut at 0.5, resampled and cut again: 0 and 1."""
    places = axes[0] - masks.ndim, axes[1] - masks.ndim
    groups = jax.lax.stop_gradient(masks)[None]
    return _crop_masks_p.bind(groups, box[None], size=size, places=places)[0]


@kernel("jaxsr_opencv_crop")
def _crop_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    pictures, results = without_single_channel(inputs[0]), without_single_channel(outputs[0])
    boxes, (height, width) = inputs[1].tolist(), results.shape[1:3]

    def resize(cut: np.ndarray, _: float, result: np.ndarray | None = None) -> np.ndarray:
        return opencv().resize(cut, (width, height), result)

    def crop(row: int) -> None:
        x1, y1, x2, y2 = boxes[row]
        cut, result = pictures[row, y1:y2, x1:x2], results[row]
        resize(cut, 0.0, result)
        if not (is_finite(result) or np.isfinite(result).all()):
            result[...] = of_parts(resize, cut, 0.0, least=_NO_WEIGHT)

    for_each_row(crop, len(pictures), large=shares_out(height * width, len(boxes)))


@kernel("jaxsr_opencv_crop_masks")
def _crop_masks_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    masks, results = without_single_channel(inputs[0]), without_single_channel(outputs[0])
    boxes, (height, width) = inputs[1].tolist(), results.shape[1:3]

    cv2 = opencv()

    def cut_off(x: np.ndarray, result: np.ndarray | None = None) -> np.ndarray:
        """1 above the threshold, 0 elsewhere and at NaN."""
        return cv2.threshold(x, MASK_THRESHOLD, 1, cv2.THRESH_BINARY, result)[1]

    def crop(row: int) -> None:
        x1, y1, x2, y2 = boxes[row]
        cut = masks[row, y1:y2, x1:x2]
        is_real = cut.dtype == np.float32
        solid = cut_off(cut) if is_real else (cut > MASK_THRESHOLD).astype(np.float32)
        shares = cv2.resize(solid, (width, height))
        if is_real:
            cut_off(shares, results[row])
        else:
            np.greater(shares, MASK_THRESHOLD, out=results[row])

    for_each_row(crop, len(masks), large=shares_out(height * width, len(boxes)))


@kernel("jaxsr_opencv_cut")
def cut_kernel(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Boxes (n, 4) of any numbers; see `crop_and_resize`."""
    pictures, results = without_single_channel(inputs[0]), without_single_channel(outputs[0])
    boxes = np.nan_to_num(inputs[1]).clip(-FARTHEST, FARTHEST).tolist()
    size, extents = results.shape[1:3], pictures.shape[1:3]

    def cut(row: int) -> None:
        inside, read, least = _box_reader(boxes[row], size, extents)
        source, result = pictures[row][inside], results[row]
        # A sum of few pixels, which leaves them in the cache, instead of one of the result.
        all_finite = source.size <= result.size and is_finite(source)
        read(source, 0.0, result)
        if not (all_finite or is_finite(result) or np.isfinite(result).all()):
            result[...] = of_parts(read, source, 0.0, least=least)

    for_each_row(cut, len(pictures), large=shares_out(math.prod(size), len(boxes)))


def _box_reader(
    box: Sequence[float], size: tuple[int, int], extents: tuple[int, int]
) -> tuple[tuple[slice, ...], Read, float]:
    """The part of an image that it takes, how it reads that, and the least weight of a pixel."""
    x1, y1, x2, y2 = box
    if (
        all(map(float.is_integer, box))
        and 0 <= x1 < x2 <= extents[1]
        and 0 <= y1 < y2 <= extents[0]
    ):

        def resize(cut: np.ndarray, _: float, result: np.ndarray | None = None) -> np.ndarray:
            return opencv().resize(cut, size[::-1], result)

        return (slice(int(y1), int(y2)), slice(int(x1), int(x2))), resize, _NO_WEIGHT
    rows, columns = (
        _positions(low, high, extent, outputs)
        for low, high, extent, outputs in zip((y1, x1), (y2, x2), extents, size, strict=True)
    )
    rows, columns = map(np.ascontiguousarray, np.broadcast_arrays(rows[:, None], columns))
    return (), read_at(rows, columns, "edge"), 0.0


def _positions(low: float, high: float, extent: int, outputs: int) -> np.ndarray:
    """Positions along an axis, as in `boxes.py`."""
    first = min(max(math.floor(low), 0), extent - 1)
    last = min(max(math.ceil(high) - 1, first), extent - 1)
    centres = low + (np.arange(outputs) + 0.5) * ((high - low) / outputs) - 0.5
    return centres.clip(first, last).astype(np.float32)


def _crop_in_jax(
    groups: jax.Array, boxes: jax.Array, *, size: tuple[int, int], places: tuple[int, int]
) -> jax.Array:
    """Images (g, …), a box for each group; `places` are height and width, from the end."""
    rank = groups.ndim - 1
    crop = partial(resample_window, size=size, axes=(places[0] + rank, places[1] + rank))
    return crop(groups[0], boxes[0])[None] if len(groups) == 1 else jax.vmap(crop)(groups, boxes)


def _crop_masks_in_jax(groups: jax.Array, boxes: jax.Array, **options: Any) -> jax.Array:
    solid = (groups > MASK_THRESHOLD).astype(jnp.float32)
    return (_crop_in_jax(solid, boxes, **options) > MASK_THRESHOLD).astype(groups.dtype)


def crop_primitive(
    name: str, kernels: Mapping[str, str], plain: Any, *, is_differentiable: bool = False
) -> Any:
    """A primitive of groups of images (g, …) and boxes (g, 4); see `_crop_in_jax`.

    Args:
      name: for jaxprs.
      kernels: registered ones, by library.
      plain: computes it with JAX's own operations.
      is_differentiable: whether derivatives are those of `plain`, also for boxes.
    """

    def shape_of(
        groups: Any, _: Any, *, size: tuple[int, int], places: tuple[int, int]
    ) -> tuple[int, ...]:
        shape = list(groups.shape)
        shape[places[0]], shape[places[1]] = size
        return tuple(shape)

    def on_cpu(
        groups: jax.Array, boxes: jax.Array, *, size: tuple[int, int], places: tuple[int, int]
    ) -> jax.Array:
        installed = first_installed(CALLS[name])
        if installed is None:
            return plain(groups, boxes, size=size, places=places)
        target, version = installed

        def crop(pictures: jax.Array) -> jax.Array:
            call = RowsCall(
                kernel=target,
                shape=(len(pictures), *size, pictures.shape[-1]),
                axes=("n", "n", "n"),
                channels_last=(False,) * 3,
                options=(("version", version),),
            )
            return call(pictures, jnp.repeat(boxes, len(pictures) // len(boxes), axis=0))

        return in_pictures(crop, groups, places)

    CALLS[name] = kernels
    primitive = cpu_primitive(f"jaxsr_{name}", plain, on_cpu, shape_of=shape_of)
    map_by_rows(primitive)
    if is_differentiable:

        def derivative(primals: Any, tangents: Any, **static: Any) -> Any:
            real = tuple(map(ad.instantiate_zeros, tangents))
            _, tangent = jax.jvp(partial(plain, **static), tuple(primals), real)
            return primitive.bind(*primals, **static), tangent

        ad.primitive_jvps[primitive] = derivative
    return primitive


_crop_p = crop_primitive("crop", {"OpenCV with IPP": _crop_by_opencv}, _crop_in_jax)
_crop_masks_p = crop_primitive(
    "crop_masks", {"OpenCV with IPP": _crop_masks_by_opencv}, _crop_masks_in_jax
)


def _derivative(primals: Any, tangents: Any, **static: Any) -> Any:
    (groups, boxes), (tangent, _) = primals, tangents  # boxes are whole numbers
    crop = partial(_crop_in_jax, boxes=boxes, **static)
    return _crop_p.bind(groups, boxes, **static), jax.jvp(crop, (groups,), (tangent,))[1]


ad.primitive_jvps[_crop_p] = _derivative
