"""Boxes cut from images and resampled, by matrix products: on accelerators no pixel is gathered.

A box is (x1, y1, x2, y2) in pixels, the upper left corner of the image at (0, 0), end-exclusive,
and need not be whole; it may be traced, one for each image. Each axis of a cut is one product
with a matrix of weights that the box makes, in float32 (float64 for float64): fast on TPUs, the
same program for all boxes. A NaN or an infinity spreads over the rows and columns of its image's
cuts, also from outside of a box. CPUs sum the few pixels whose weights are not zero, where their
number is known: not with antialias, nor in `roi_align`.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, flag, is_integer, number, one_of, positive_pair
from jaxsr.ops._images import Parameter, in_dtype_of, parameter, per_picture, picture, real_dtype
from jaxsr.ops._opencv_crop import crop_primitive, cut_kernel
from jaxsr.ops._opencv_remap import LARGEST_EXTENT
from jaxsr.ops._sampler import METHODS, bilinear
from jaxsr.ops._typed_jax import arange, jit, optimization_barrier, platform_dependent
from jaxsr.ops._types import Array, Float, Shaped
from jaxsr.xla_calls.stored import stored


def crop_and_resize(
    image: Shaped[ImageLike, "..."],
    boxes: Parameter,
    size: int | Sequence[int],
    *,
    method: str = "bilinear",
    antialias: bool = False,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Cuts a box and resizes it, as `torch.nn.functional.interpolate` of the cut.

    Beyond the cut its edge repeats; a box may leave the image, whose edge repeats then. With
    antialias the filter ends at these edges, and it is the result's edge that repeats.

    Args:
      image: input images.
      boxes: (..., 4): (x1, y1, x2, y2), one for all images or one for each.
      size: (height, width) of the result. Static.
      method: `"nearest"` (torch's "nearest-exact"), `"bilinear"` or `"bicubic"`.
      antialias: stretch the filter where a box shrinks; bilinear and bicubic (then a = -1/2).
      axes: the height and the width axis.

    Returns:
      Images of `size` in the image's dtype; integers are rounded once.

    Raises:
      TypeError: an unsuitable dtype, or boxes that hold no numbers.
      ValueError: boxes that do not belong to the images, or options that do not go together.

    Example:
      >>> image = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
      >>> ops.crop_and_resize(image, (1, 1, 3, 3), 1).item()
      7.5
    """
    array, positions = picture(image, axes)
    corners = parameter(boxes, "boxes", (4,))
    check_filter(method, antialias)
    return _crop_and_resize(
        array, corners, positive_pair(size, "size"), method, antialias, positions
    )


def roi_align(
    features: Shaped[ImageLike, "..."],
    boxes: Parameter,
    size: int | Sequence[int],
    *,
    spatial_scale: float = 1.0,
    sampling_ratio: int = 2,
    aligned: bool = True,
    axes: Sequence[int] = (-3, -2),
) -> Float[Array, "..."]:
    """Means of features over the cells of boxes, as torchvision's `roi_align`.

    Args:
      features: floating-point maps.
      boxes: (..., K, 4): K boxes (x1, y1, x2, y2) for each map, in the image's pixels.
      size: (height, width): cells of a box. Static.
      spatial_scale: pixels of the map per pixel of the image.
      sampling_ratio: samples along a cell, at least 1. Static.
      aligned: whether positions are those of pixel centres (half a pixel less).
      axes: the height and the width axis.

    Returns:
      The cells of every box, with an axis of K in front of the axes of one map.

    Raises:
      TypeError: an unsuitable dtype, or boxes that hold no numbers.
      ValueError: boxes that do not belong to the maps, or an option outside its range.

    Example:
      >>> features = np.ones((1, 8, 8, 2), np.float32)
      >>> ops.roi_align(features, [[[0, 0, 4, 4], [2, 2, 6, 7]]], 3).shape
      (1, 2, 3, 3, 2)
    """
    array, positions = picture(features, axes, "features")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"features must be floating point, got {array.dtype}")
    corners = parameter(boxes, "boxes", (4,))
    if corners.ndim < 2:
        raise ValueError(f"boxes must be (..., K, 4), got {corners.shape}")
    if not is_integer(sampling_ratio) or sampling_ratio < 1:
        raise ValueError(f"sampling_ratio must be an integer from 1, got {sampling_ratio!r}")
    scale = number(spatial_scale, "spatial_scale", above=0)
    cells, centred = positive_pair(size, "size"), flag(aligned, "aligned")
    return _roi_align(array, corners * scale, cells, int(sampling_ratio), centred, positions)


def check_filter(method: str, antialias: bool) -> None:
    """Options of `crop_and_resize`."""
    one_of(method, tuple(METHODS), "method")
    if flag(antialias, "antialias") and method == "nearest":
        raise ValueError("antialias=True needs method bilinear or bicubic, got 'nearest'")


def cut_within(
    image: jax.Array,
    boxes: jax.Array,
    size: tuple[int, int],
    *,
    method: str,
    antialias: bool,
    axes: tuple[int, int],
) -> jax.Array:
    """`crop_and_resize` of boxes that are at most as large as the images."""
    return _crop_and_resize(image, boxes, size, method, antialias, axes, within=True)


@jit("size", "method", "antialias", "axes", "within")
def _crop_and_resize(
    image: jax.Array,
    boxes: jax.Array,
    size: tuple[int, int],
    method: str,
    antialias: bool,
    axes: tuple[int, int],
    within: bool = False,
) -> jax.Array:
    few = all(max(size[k], image.shape[axis]) <= LARGEST_EXTENT for k, axis in enumerate(axes))
    if image.dtype == jnp.float32 and method == "bilinear" and not antialias and image.size and few:

        def by_library(x: jax.Array, box: jax.Array) -> jax.Array:
            places = axes[0], axes[1]
            return _cut_p.bind(x[None], box.astype(x.dtype)[None], size=size, places=places)[0]

        return per_picture(by_library, image, axes, {"boxes": (boxes, 1)})
    cut = partial(
        _cut_in_jax,
        size=size,
        method=method,
        antialias=antialias,
        axes=axes,
        within=within,
    )
    return per_picture(cut, image, axes, {"boxes": (boxes, 1)})


def _cut_in_jax(
    x: jax.Array,
    box: jax.Array,
    *,
    size: tuple[int, int],
    method: str,
    antialias: bool,
    axes: tuple[int, int],
    within: bool,
) -> jax.Array:
    counts = [
        _most_taps(x.shape[axis], outputs, method, antialias)
        for axis, outputs in zip(axes, size, strict=True)
    ]
    weights = [
        _weights(box[k], box[k + 2], x.shape[axis], outputs, method, antialias)
        for k, axis, outputs in zip((1, 0), axes, size, strict=True)
    ]
    products = partial(_products, axes=axes)
    if antialias and not within:
        return in_dtype_of(x, products(x, weights))
    few = partial(_sums_of_taps, axes=axes, counts=counts)
    return in_dtype_of(x, platform_dependent(x, weights, cpu=few, default=products))


def _cut_bilinear(
    groups: jax.Array, boxes: jax.Array, *, size: tuple[int, int], places: tuple[int, int]
) -> jax.Array:
    cut = partial(
        _cut_in_jax,
        size=size,
        method="bilinear",
        antialias=False,
        axes=places,
        within=True,
    )
    return cut(groups[0], boxes[0])[None] if len(groups) == 1 else jax.vmap(cut)(groups, boxes)


_cut_p = crop_primitive(
    "cut", {"OpenCV 5 with IPP": cut_kernel}, _cut_bilinear, is_differentiable=True
)


@jit("size", "samples", "aligned", "axes")
def _roi_align(
    features: jax.Array,
    boxes: jax.Array,
    size: tuple[int, int],
    samples: int,
    aligned: bool,
    axes: tuple[int, int],
) -> jax.Array:
    def cells(x: jax.Array, box: jax.Array) -> jax.Array:
        weights = [
            _cell_weights(box[k], box[k + 2], x.shape[axis], outputs, samples, aligned)
            for k, axis, outputs in zip((1, 0), axes, size, strict=True)
        ]
        return in_dtype_of(x, _products(x, weights, axes))

    each = jax.vmap(cells, (None, 0))
    return per_picture(each, features, axes, {"boxes": (boxes, 2)})


def _products(image: jax.Array, weights: list[jax.Array], axes: tuple[int, int]) -> jax.Array:
    x = image.astype(real_dtype(image))
    for axis, matrix in zip(axes, weights, strict=True):
        place = axis + x.ndim
        # A TPU rounds float32 operands to bfloat16 by default.
        sums = jnp.tensordot(x, matrix.astype(x.dtype), ((place,), (1,)), precision="highest")
        x = jnp.moveaxis(sums, -1, place)
    return x


def _sums_of_taps(
    image: jax.Array, weights: list[jax.Array], axes: tuple[int, int], counts: list[int]
) -> jax.Array:
    """`_products` where no more than `counts` weights of an output follow its first one."""
    x = image
    for axis, matrix, count in zip(axes, weights, counts, strict=True):
        # XLA would sum rows anew for every column, and both for all that reads the result. It does
        # not fuse a concatenation, so each half is summed apart; a barrier does not stop it.
        middle, place = matrix.shape[0] // 2, axis + x.ndim
        halves = [half for half in (matrix[:middle], matrix[middle:]) if half.shape[0]]
        x = optimization_barrier(
            jnp.concatenate([_along(x, half, place, count) for half in halves], place)
        )
    return x


def _along(x: jax.Array, matrix: jax.Array, axis: int, count: int) -> jax.Array:
    first = jnp.minimum(jnp.argmax(matrix != 0, 1), matrix.shape[1] - count)
    shape = [1] * x.ndim
    shape[axis] = matrix.shape[0]

    def tap(k: int) -> jax.Array:
        pixels = jnp.take(x, first + k, axis=axis, mode="clip").astype(real_dtype(x))
        weight = jnp.take_along_axis(matrix, (first + k)[:, None], 1).reshape(shape)
        unread = (weight == 0) & ~jnp.isfinite(pixels)
        return jnp.where(unread, 0, pixels) * weight.astype(pixels.dtype)

    return sum((tap(k) for k in range(1, count)), tap(0))


def _most_taps(extent: int, outputs: int, method: str, antialias: bool) -> int:
    """Pixels that an output reads of a box no larger than the image."""
    if not antialias:
        return min({"nearest": 1, "bilinear": 2, "bicubic": 4}[method], extent)
    support = {"bilinear": 1, "bicubic": 2}[method] * max(1.0, extent / outputs)
    return min(math.floor(2 * support) + 1, extent)


def _one_hot(index: jax.Array, extent: int) -> jax.Array:
    return index[:, None] == arange(extent)


def _weights(
    low: jax.Array, high: jax.Array, extent: int, outputs: int, method: str, antialias: bool
) -> jax.Array:
    """(outputs, extent): weight of each image pixel in each pixel of the cut."""
    low, high = stored(low), stored(high)
    step = (high - low) / outputs
    offset = (arange(outputs) + 0.5) * step
    centre = low + offset - 0.5
    first = jnp.clip(jnp.floor(low), 0, extent - 1)
    last = jnp.clip(jnp.ceil(high) - 1, first, extent - 1)
    if antialias:
        # The filter reads the image alone; outputs beyond it are those at its edge.
        centre = jnp.clip(centre, first - 0.5, last + 0.5)
        pixel, stretch = arange(extent), jnp.maximum(step, 1)
        distance = jnp.abs(pixel - centre[:, None]) / stretch
        weight = jnp.where((pixel >= first) & (pixel <= last), _KERNELS[method](distance), 0)
        return weight / weight.sum(1, keepdims=True)
    if method == "nearest":
        # For whole boxes, the sum before which torch rounds.
        index = jnp.floor(low) + jnp.floor(low - jnp.floor(low) + offset)
        return _one_hot(jnp.clip(index, first, last), extent).astype(step.dtype)
    base, shares = METHODS[method](stored(centre))
    taps = [
        share[:, None] * _one_hot(jnp.clip(base + place, first, last), extent)
        for place, share in enumerate(shares)
    ]
    return sum(taps[1:], taps[0])


def _triangle(x: jax.Array) -> jax.Array:
    return jnp.maximum(0.0, 1 - x)


def _keys_cubic(x: jax.Array) -> jax.Array:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return jnp.where(x < 1, near, jnp.where(x < 2, far, 0.0))


_KERNELS = {"bilinear": _triangle, "bicubic": _keys_cubic}


def _cell_weights(
    low: jax.Array, high: jax.Array, extent: int, outputs: int, samples: int, aligned: bool
) -> jax.Array:
    """(outputs, extent): means over the samples of each cell; torchvision's rule at the edges."""
    length = high - low if aligned else jnp.maximum(high - low, 1)
    start = low - 0.5 if aligned else low
    position = stored(start + (arange(outputs * samples) + 0.5) * (length / (outputs * samples)))
    inside = (position >= -1) & (position <= extent)
    base, shares = bilinear(jnp.clip(position, 0, extent - 1))
    taps = [
        (share * inside)[:, None] * _one_hot(jnp.clip(base + place, 0, extent - 1), extent)
        for place, share in enumerate(shares)
    ]
    return sum(taps[1:], taps[0]).reshape(outputs, samples, extent).mean(1)
