"""Smoothing that keeps edges, and sharpening.

Images are uint8, uint16, or 0…1 in floating point, in any layout; `axes` names height and width
(NHWC by default). Sigmas and strengths may be traced, one for all images or one for each.
"""

from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, is_integer, is_number, normal_axis, number
from jaxsr.ops._border import Border, checked_border, pad_axis
from jaxsr.ops._images import (
    Parameter,
    channel_planes,
    in_dtype_of,
    peak_of,
    picture,
    pixels,
    real_dtype,
    spread,
)
from jaxsr.ops._opencv import for_each_row, opencv
from jaxsr.ops._row_primitives import in_planes, row_primitive
from jaxsr.ops._separable import filter_bordered
from jaxsr.ops._typed_jax import asarray, jit, zeros_like
from jaxsr.ops._types import Array, Shaped
from jaxsr.ops.blur import gaussian_blur
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

Pair = tuple[jax.Array, jax.Array]
_SHARED = 1 << 17
"""Pixels of an image that OpenCV filters in several threads by itself."""
_UPPER = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


def bilateral_filter(
    image: Shaped[ImageLike, "*shape"],
    sigma_color: Parameter,
    sigma_space: Parameter,
    *,
    size: int | None = None,
    border: str = "reflect101",
    axes: Sequence[int] = (-3, -2),
    channel: int | None = -1,
) -> Shaped[Array, "*shape"]:
    """Means of near pixels of like colours, by OpenCV's rules.

    Weights are Gaussian of the distance, within a disc, and of the sum of the channels' absolute
    differences. uint8 is OpenCV's but for ties, where it may differ by a level (programs for CPUs
    call OpenCV where it is installed).

    Args:
      image: input images.
      sigma_color: standard deviation of colours, on the image's scale; above 0.
      sigma_space: standard deviation of distances in pixels; above 0.
      size: the disc's diameter in pixels, odd. Static. Default: `2 round(1.5 sigma_space) + 1`.
      border: `"reflect101"`, `"symmetric"`, `"edge"`, `"constant"` (zero) or `"wrap"`.
      axes: the height and the width axis.
      channel: the axis of channels, which are compared together; None: each plane by itself.

    Raises:
      TypeError: an unsuitable dtype, a sigma that is not a number, a traced `sigma_space` without
        `size`.
      ValueError: an even size, an unknown border, or sigmas that do not belong to the images.

    Example:
      >>> row = np.array([[[10], [20], [200], [210]]], np.uint8)
      >>> ops.bilateral_filter(row, 20.0, 2.0).ravel().tolist()
      [16, 17, 203, 204]
    """
    array, positions = picture(image, axes)
    if size is None:
        if not is_number(sigma_space):
            raise TypeError("a traced sigma_space needs size, which fixes the window")
        size = 2 * max(round(1.5 * number(sigma_space, "sigma_space", above=0)), 1) + 1
    if not is_integer(size) or size < 1 or size % 2 == 0:
        raise ValueError(f"size must be an odd number of pixels, got {size!r}")
    edge = checked_border(border)
    color, space = (
        spread(value, array, positions, name)
        for value, name in ((sigma_color, "sigma_color"), (sigma_space, "sigma_space"))
    )
    place = None if channel is None else normal_axis(channel, array.ndim, "channel") - array.ndim
    if place in positions:
        raise ValueError(f"channel={channel} is also one of axes={tuple(axes)}")
    return _bilateral(array, color, space, size, edge, positions, place) if array.size else array


def guided_filter(
    image: Shaped[ImageLike, "*shape"],
    guide: Shaped[ImageLike, "..."],
    size: int,
    eps: Parameter,
    *,
    border: str = "reflect101",
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Smooths where the guide is flat and keeps the guide's edges: He, Sun and Tang 2013.

    Each window is a linear function of the guide, fitted to the image (doi:10.1109/TPAMI.2012.213,
    equations 5 to 8 for grey guides, 14 to 16 for colours).

    Args:
      image: images of any number of channels.
      guide: of one channel or three, and otherwise the image's shape; may be the image.
      size: side of the windows in pixels, odd. Static.
      eps: variance of the guide, white being 1, below which windows count as flat; above 0.
      border: see `bilateral_filter`.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or an `eps` that is not a number.
      ValueError: an even size, a guide that does not fit, an unknown border.

    Example:
      >>> row = np.array([[[0.1], [0.2], [0.8], [0.9]]], np.float32)
      >>> print(np.asarray(ops.guided_filter(row, row, 3, 1e-3)).ravel().round(2))
      [0.11 0.2  0.8  0.89]
    """
    array, positions = picture(image, axes)
    leader = pixels(guide, "guide")
    place = normal_axis(channel, array.ndim, "channel")
    expected = list(array.shape)
    if leader.ndim == array.ndim:
        expected[place] = leader.shape[place]
    if list(leader.shape) != expected or leader.shape[place] not in (1, 3):
        raise ValueError(
            f"guide of shape {leader.shape} does not fit the image's {array.shape}: it needs one "
            "channel or three, and otherwise the same shape"
        )
    if not is_integer(size) or size < 1 or size % 2 == 0:
        raise ValueError(f"size must be an odd number of pixels, got {size!r}")
    edge, flat = checked_border(border), spread(eps, array, positions, "eps")
    return _guided(array, leader, flat, size, edge, positions, channel) if array.size else array


def unsharp_mask(
    image: Shaped[ImageLike, "*shape"],
    sigma: Parameter = 1.0,
    amount: Parameter = 1.0,
    *,
    kernel_size: int | Sequence[int] | None = None,
    border: str = "symmetric",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Sharpens by adding the detail that a Gaussian blur removes, as scikit-image's `unsharp_mask`.

    Integers are clipped; floats are not, unlike scikit-image's.

    Args:
      image: input images.
      sigma: of the blur in pixels; scikit-image's `radius`. See `gaussian_blur`.
      kernel_size: see `gaussian_blur`; a traced sigma needs it.
      amount: of the difference; one number, or one for each image, traced or not.
      border: see `bilateral_filter`.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or an amount that is not a number.
      ValueError: as `gaussian_blur`, or amounts that do not belong to the images.

    Example:
      >>> row = np.array([[[50], [50], [150], [150]]], np.uint8)
      >>> ops.unsharp_mask(row, 1.0).ravel().tolist()
      [44, 20, 180, 156]
    """
    array, positions = picture(image, axes)
    share = spread(amount, array, positions, "amount")
    x = array.astype(real_dtype(array))
    blurred = gaussian_blur(x, sigma=sigma, kernel_size=kernel_size, border=border, axes=axes)
    x = x + (x - blurred) * share
    return in_dtype_of(array, x)


@jit("size", "border", "axes", "channel")
def _bilateral(
    image: jax.Array,
    sigma_color: jax.Array,
    sigma_space: jax.Array,
    size: int,
    border: Border,
    axes: tuple[int, int],
    channel: int | None,
) -> jax.Array:
    channels = 1 if channel is None else image.shape[channel]
    # OpenCV's least size is 3.
    if image.dtype != jnp.uint8 or border != "reflect101" or channels not in (1, 3) or size == 1:
        return _bilateral_in_jax(image, sigma_color, sigma_space, size, border, axes, channel)
    sigmas = (jax.lax.stop_gradient(sigma) for sigma in (sigma_color, sigma_space))
    function = partial(_bilateral_p.bind, size=size)
    if channel is not None:
        return in_planes(function, image, axes, *sigmas, channel=channel)

    def of_planes(planes: jax.Array, *sigmas: jax.Array) -> jax.Array:
        return function(planes[..., None], *sigmas)[..., 0]

    return in_planes(of_planes, image, axes, *sigmas)


@kernel("jaxsr_opencv_bilateral")
def _bilateral_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # OpenCV takes images of one channel without an axis for it.
    pictures, results = (x[..., 0] if x.shape[-1] == 1 else x for x in (inputs[0], outputs[0]))
    (color, space), (size,) = inputs[1:], attributes["size"]

    def smooth(row: int) -> None:
        sigmas = float(color[row]), float(space[row])
        opencv().bilateralFilter(pictures[row], size, *sigmas, results[row])

    is_large = pictures.shape[1] * pictures.shape[2] >= _SHARED
    for_each_row(smooth, len(pictures), large=is_large)


def _bilateral_of_levels(
    pictures: jax.Array, color: jax.Array, space: jax.Array, *, size: int
) -> jax.Array:
    color, space = (sigma[:, None, None, None] for sigma in (color, space))
    return _bilateral_in_jax(pictures, color, space, size, "reflect101", (-3, -2), -1)


_bilateral_p = row_primitive("bilateral", _bilateral_of_levels, {"OpenCV": _bilateral_by_opencv})


def _bilateral_in_jax(
    image: jax.Array,
    sigma_color: jax.Array,
    sigma_space: jax.Array,
    size: int,
    border: Border,
    axes: tuple[int, int],
    channel: int | None,
) -> jax.Array:
    radius = size // 2
    x = image.astype(real_dtype(image))
    wide = x
    for axis in axes:
        wide = pad_axis(wide, axis + x.ndim, radius, radius, border)
    reach = range(-radius, radius + 1)
    offsets = np.array([(row, column) for row in reach for column in reach])
    squares = np.square(offsets).sum(-1)
    inside = squares <= radius * radius
    by_color, by_space = (-0.5 / jnp.square(s) for s in (sigma_color, sigma_space))

    def add(sums: Pair, tap: Pair) -> tuple[Pair, None]:
        offset, square = tap
        near = wide
        for axis, start in zip(axes, (offset[0], offset[1]), strict=True):
            near = jax.lax.dynamic_slice_in_dim(near, start, x.shape[axis], axis + x.ndim)
        apart = jnp.abs(near - x)
        if channel is not None:
            apart = apart.sum(channel, keepdims=True)
        weight = jnp.exp(jnp.square(apart) * by_color + square * by_space)
        # Infinite pixels have no weight beside finite ones.
        part = jnp.where(weight == 0, 0, near * weight)
        return (sums[0] + part, sums[1] + weight), None

    taps = asarray(offsets[inside] + radius), asarray(squares[inside], x.dtype)
    weights = x if channel is None else x.sum(channel, keepdims=True)
    (total, weight), _ = jax.lax.scan(add, (zeros_like(x), zeros_like(weights)), taps)
    return in_dtype_of(image, total / weight)


@jit("size", "border", "axes", "channel")
def _guided(
    image: jax.Array,
    guide: jax.Array,
    eps: jax.Array,
    size: int,
    border: Border,
    axes: tuple[int, int],
    channel: int,
) -> jax.Array:
    # Around half grey, where float32's differences of squares are least.
    def centred(x: jax.Array) -> jax.Array:
        return x.astype(real_dtype(image)) / peak_of(x) - 0.5

    def mean(x: jax.Array) -> jax.Array:
        for axis in axes:
            x = filter_bordered(x, (1 / size,) * size, axis + x.ndim, border)
        return x

    x = centred(image)
    planes = [centred(plane) for plane in channel_planes(guide, channel, most=1)]
    means, mean_x = [mean(plane) for plane in planes], mean(x)
    covariances = [
        mean(plane * x) - average * mean_x for plane, average in zip(planes, means, strict=True)
    ]

    def moment(i: int, j: int) -> jax.Array:
        return mean(planes[i] * planes[j]) - means[i] * means[j] + (eps if i == j else 0)

    if len(planes) == 1:
        slopes = [covariances[0] / moment(0, 0)]
    else:
        slopes = _solved([moment(i, j) for i, j in _UPPER], covariances)
    offset = mean_x - _sum_of_products(slopes, means)
    slopes = [mean(slope) for slope in slopes]
    result = _sum_of_products(slopes, planes) + mean(offset) + 0.5
    return in_dtype_of(image, result * peak_of(image))


def _solved(upper: list[jax.Array], right: list[jax.Array]) -> list[jax.Array]:
    """A symmetric system of three by its adjugate; `upper` in the order of `_UPPER`."""
    a, b, c, d, e, f = upper
    cofactors = [
        [d * f - e * e, c * e - b * f, b * e - c * d],
        [c * e - b * f, a * f - c * c, b * c - a * e],
        [b * e - c * d, b * c - a * e, a * d - b * b],
    ]
    determinant = _sum_of_products([a, b, c], cofactors[0])
    return [_sum_of_products(row, right) / determinant for row in cofactors]


def _sum_of_products(first: list[jax.Array], second: list[jax.Array]) -> jax.Array:
    return reduce(jnp.add, (x * y for x, y in zip(first, second, strict=True)))
