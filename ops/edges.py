"""Edges: derivatives by Sobel and Laplace, and Canny's thin lines.

Images are uint8, uint16 or floating point in any layout; `axes` names height and width (NHWC by
default). Each channel is an image of its own. Derivatives are OpenCV's, unscaled; those of
integers are float32.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, is_integer
from jaxsr.ops._border import Border, checked_border, pad_axis
from jaxsr.ops._images import INTEGER_DTYPES, Parameter, picture, real_dtype, spread
from jaxsr.ops._opencv import for_each_row, opencv, opencv_border
from jaxsr.ops._regions import greatest_in_region
from jaxsr.ops._row_primitives import in_pictures, in_planes, row_primitive, without_single_channel
from jaxsr.ops._separable import filter_bordered
from jaxsr.ops._typed_jax import jit
from jaxsr.ops._types import Array, Bool, Float, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel
from jaxsr.xla_calls.stored import stored

_SIZES = (3, 5, 7)
_CANNY_SIZES = (3, 5)
_TAN_22 = 13573
"""The tangent of 22.5° in 2⁻¹⁵, as OpenCV rounds it."""


def sobel(
    image: Shaped[ImageLike, "*shape"],
    orders: tuple[int, int],
    *,
    kernel_size: int = 3,
    border: str = "reflect101",
    axes: Sequence[int] = (-3, -2),
) -> Float[Array, "*shape"]:
    """A derivative, smoothed across: OpenCV's `Sobel`.

    Args:
      image: input images.
      orders: of the derivative, down the rows and along the columns: (0, 1) is OpenCV's `dx=1`.
      kernel_size: 3, 5 or 7. Static.
      border: `"reflect101"`, `"symmetric"`, `"edge"`, `"constant"` (zero) or `"wrap"`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: other sizes, orders that the window cannot hold, or an unknown border.

    Example:
      >>> ops.sobel(np.array([[[0], [10], [30]]], np.uint8), (0, 1)).ravel().tolist()
      [0.0, 120.0, 0.0]
    """
    array, positions = picture(image, axes)
    if kernel_size not in _SIZES:
        raise ValueError(f"kernel_size must be one of {_SIZES}, got {kernel_size!r}")
    down, along = _checked_orders(orders, kernel_size)
    windows = _derivative(down, kernel_size), _derivative(along, kernel_size)
    edge = checked_border(border)
    return _separable(array, windows, edge, positions) if array.size else _real(array)


def laplacian(
    image: Shaped[ImageLike, "*shape"],
    *,
    kernel_size: int = 1,
    border: str = "reflect101",
    axes: Sequence[int] = (-3, -2),
) -> Float[Array, "*shape"]:
    """The sum of both second derivatives: OpenCV's `Laplacian`, with size 1 also SciPy's `laplace`.

    Args:
      image: input images.
      kernel_size: 1 (four neighbours), 3, 5 or 7. Static.
      border: see `sobel`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: other sizes, or an unknown border.

    Example:
      >>> ops.laplacian(np.array([[[0], [10], [30]]], np.uint8)).ravel().tolist()
      [20.0, 10.0, -40.0]
    """
    array, positions = picture(image, axes)
    if kernel_size not in (1, *_SIZES):
        raise ValueError(f"kernel_size must be one of {(1, *_SIZES)}, got {kernel_size!r}")
    edge = checked_border(border)
    if not array.size:
        return _real(array)
    return _laplacian(array, kernel_size, edge, positions)


def canny(
    image: Shaped[ImageLike, "*shape"],
    low: Parameter,
    high: Parameter,
    *,
    kernel_size: int = 3,
    euclidean: bool = False,
    axes: Sequence[int] = (-3, -2),
) -> Bool[Array, "*shape"]:
    """Thin lines where the gradient is greatest: OpenCV's `Canny`, equal to it on uint8.

    Lines are followed from strong pixels to weak ones by a loop that ends when nothing changes.
    Over a sharded batch all devices agree on that end, one bit a round; under `shard_map` they do
    not.

    Args:
      image: images; blur noise away first.
      low: gradients above it go on with a line; on the image's scale, one number or one for each
        image, traced or not.
      high: gradients above it begin a line.
      kernel_size: of Sobel's derivatives, 3 or 5. Static.
      euclidean: the length of the gradient instead of the sum of its two magnitudes.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or thresholds that are not numbers.
      ValueError: other sizes, or thresholds that do not belong to the images.

    Example:
      >>> image = np.zeros((4, 6, 1), np.uint8)
      >>> image[:, 3:] = 200
      >>> np.asarray(ops.canny(image, 100, 200))[1, :, 0].astype(int).tolist()
      [0, 0, 1, 0, 0, 0]
    """
    array, positions = picture(image, axes)
    if kernel_size not in _CANNY_SIZES:
        raise ValueError(f"kernel_size must be one of {_CANNY_SIZES}, got {kernel_size!r}")
    limits = spread(low, array, positions, "low"), spread(high, array, positions, "high")
    if not array.size:
        return array.astype(bool)
    return _canny(array, *limits, positions, size=kernel_size, euclidean=bool(euclidean))


def _real(image: jax.Array) -> jax.Array:
    return image.astype(real_dtype(image)) if image.dtype in INTEGER_DTYPES else image


def _checked_orders(orders: tuple[int, int], size: int) -> tuple[int, int]:
    pair = tuple(orders)
    if len(pair) != 2 or not all(is_integer(order) and 0 <= order < size for order in pair):
        raise ValueError(
            f"orders must be two whole numbers from 0 to {size - 1}, got {orders!r}; "
            "(0, 1) differs along the columns"
        )
    return int(pair[0]), int(pair[1])


def _derivative(order: int, size: int) -> tuple[int, ...]:
    """Binomial weights, differenced `order` times."""
    weights = np.ones(1, int)
    for step in range(size - 1):
        weights = np.convolve(weights, [-1, 1] if step < order else [1, 1])
    return tuple(weights.tolist())


@jit("windows", "border", "axes")
def _separable(
    image: jax.Array,
    windows: tuple[tuple[int, ...], tuple[int, ...]],
    border: Border,
    axes: tuple[int, int],
) -> jax.Array:
    x = image.astype(real_dtype(image))
    for axis, window in zip(axes, windows, strict=True):
        x = filter_bordered(x, window, axis + x.ndim, border)
    return x if image.dtype in INTEGER_DTYPES else x.astype(image.dtype)


@jit("size", "border", "axes")
def _laplacian(image: jax.Array, size: int, border: Border, axes: tuple[int, int]) -> jax.Array:
    if image.dtype == jnp.uint8 and border in _LIBRARY_BORDERS:
        edge = _LIBRARY_BORDERS.index(border)
        return in_pictures(partial(_laplacian_p.bind, size=size, border=edge), image, axes)
    return _laplacian_in_jax(image, size, border, axes)


def _laplacian_in_jax(
    image: jax.Array, size: int, border: Border, axes: tuple[int, int]
) -> jax.Array:
    curve, flat = _derivative(2, max(size, 3)), _derivative(0, size)
    x = image.astype(real_dtype(image))
    pairs = (curve, flat), (flat, curve)
    total = jnp.add(*(_separable(x, pair, border, axes) for pair in pairs))
    return total if image.dtype in INTEGER_DTYPES else total.astype(image.dtype)


@kernel("jaxsr_opencv_laplacian")
def _laplacian_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    cv2, (size,) = opencv(), attributes["size"]
    pictures, results = without_single_channel(inputs[0]), without_single_channel(outputs[0])
    border = opencv_border(_LIBRARY_BORDERS[attributes["border"][0]])

    def find(row: int) -> None:
        cv2.Laplacian(pictures[row], cv2.CV_32F, results[row], size, borderType=border)

    for_each_row(find, len(pictures))


def _laplacian_of_levels(pictures: jax.Array, *, size: int, border: int) -> jax.Array:
    return _laplacian_in_jax(pictures, size, _LIBRARY_BORDERS[border], (-3, -2))


_LIBRARY_BORDERS: tuple[Border, ...] = ("reflect101", "symmetric", "edge", "constant")
_laplacian_p = row_primitive(
    "laplacian", _laplacian_of_levels, {"OpenCV": _laplacian_by_opencv}, dtype="float32"
)


@jit("axes", "size", "euclidean")
def _canny(
    image: jax.Array, low: jax.Array, high: jax.Array, axes: tuple[int, int], **options: int
) -> jax.Array:
    if image.dtype != jnp.uint8:
        return _canny_in_jax(image, low, high, axes, **options)
    limits = (jax.lax.stop_gradient(limit) for limit in (low, high))
    return in_planes(partial(_canny_p.bind, **options), image, axes, *limits)


@kernel("jaxsr_opencv_canny")
def _canny_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (planes, low, high), edges = inputs, outputs[0][..., 0]
    (size,), (euclidean,) = attributes["size"], attributes["euclidean"]

    def find(row: int) -> None:
        limits = float(low[row]), float(high[row])
        levels = opencv().Canny(planes[row], *limits, apertureSize=size, L2gradient=bool(euclidean))
        np.greater(levels, 0, out=edges[row])

    for_each_row(find, len(planes), large=True)  # OpenCV also shares out small images


def _canny_of_levels(
    planes: jax.Array, low: jax.Array, high: jax.Array, **options: int
) -> jax.Array:
    low, high = low[:, None, None], high[:, None, None]
    return _canny_in_jax(planes, low, high, (-2, -1), **options)


_canny_p = row_primitive(
    "canny", _canny_of_levels, {"OpenCV": _canny_by_opencv}, dtype="bool", planes=True
)


def _canny_in_jax(
    image: jax.Array,
    low: jax.Array,
    high: jax.Array,
    axes: tuple[int, int],
    *,
    size: int,
    euclidean: int,
) -> jax.Array:
    x = image.astype(real_dtype(image))
    smooth, slope = _derivative(0, size), _derivative(1, size)
    along, down = (_separable(x, pair, "edge", axes) for pair in ((smooth, slope), (slope, smooth)))
    if image.dtype == jnp.uint8:
        along, down = along.astype(jnp.int32), down.astype(jnp.int32)
    low, high = jnp.minimum(low, high), jnp.maximum(low, high)
    if euclidean:
        strength, low, high = along**2 + down**2, low**2, high**2
    else:
        strength = jnp.abs(along) + jnp.abs(down)
    strength = stored(strength)  # of equal neighbours one is the crest
    if image.dtype == jnp.uint8:
        low, high = (jnp.floor(limit).astype(jnp.int32) for limit in (low, high))

    def neighbour(rows: int, columns: int) -> jax.Array:
        x = strength
        for axis, step in zip(axes, (rows, columns), strict=True):
            place, extent = axis + x.ndim, x.shape[axis]
            wide = pad_axis(x, place, 1, 1, "constant")
            x = jax.lax.slice_in_dim(wide, 1 + step, 1 + step + extent, axis=place)
        return x

    across, upright = jnp.abs(along), jnp.abs(down)
    if image.dtype == jnp.uint8:
        upright <<= 15
        flat = across * _TAN_22
        is_flat, is_steep = upright < flat, upright > flat + (across << 16)
    else:
        flat = across * (_TAN_22 / (1 << 15))
        is_flat, is_steep = upright < flat, upright > flat + 2 * across
    falls = (along < 0) != (down < 0)

    def crest(before: jax.Array, after: jax.Array, strict: bool = False) -> jax.Array:
        return (strength > before) & ((strength > after) if strict else (strength >= after))

    diagonal = jnp.where(
        falls,
        crest(neighbour(-1, 1), neighbour(1, -1), strict=True),
        crest(neighbour(-1, -1), neighbour(1, 1), strict=True),
    )
    is_crest = jnp.where(
        is_flat,
        crest(neighbour(0, -1), neighbour(0, 1)),
        jnp.where(is_steep, crest(neighbour(-1, 0), neighbour(1, 0)), diagonal),
    )
    weak = is_crest & (strength > low)
    strong = weak & (strength > high)
    return greatest_in_region(strong.astype(jnp.int32), weak, axes, diagonal=True) > 0
