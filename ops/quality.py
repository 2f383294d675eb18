"""PSNR, PSNR-B, SSIM and MS-SSIM, one value per image, under jit.

Images are uint8 (0…255) or floating point (0…1 unless `data_range` says otherwise), NHWC by
default; `axes` and `channel` name other layouts, and every axis left over is a batch axis.

The super-resolution literature's figures are `psnr(a, b, luma="matlab", crop_border=scale)` and
the same for `ssim`: Y of BT.601 in studio range, a border of `scale` pixels cut off. On uint8
images Y is rounded to levels first, as MATLAB scripts do; on float images it is not, as in BasicSR.

SSIM is Wang et al. 2004 (doi:10.1109/TIP.2003.819861), equations 13 to 17. The window only visits
positions where it fits ("valid"). scikit-image averages the same pixels, so `ssim(a, b)` equals
`structural_similarity(a, b, gaussian_weights=True, use_sample_covariance=False)`, and `ssim(a, b,
window="uniform", sample_covariance=True)` equals its default.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import (
    ImageLike,
    compute_dtype,
    image_and_axes,
    image_array,
    is_integer,
    normal_axis,
    number,
    one_of,
)
from jaxsr.ops._border import pad_axis
from jaxsr.ops._separable import filter_valid, filter_valid_apart, fold_channels
from jaxsr.ops._typed_jax import arange, jit, zeros
from jaxsr.ops._types import Array, Float, Shaped
from jaxsr.ops.colour import CONVENTIONS, Convention, luma_of_difference, rgb_to_y

_K1, _K2 = 0.01, 0.03  # Wang et al. 2004, section III-B
_TRUNCATE = 3.5  # scikit-image's radius of the Gaussian window, in sigmas: 11 pixels at 1.5
MS_SSIM_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Wang et al. 2003, section 3.2."""
_CHUNKS = 16  # of an axis, added elementwise before the others are summed


class ImagePair(NamedTuple):
    """Two images to compare: checked options, axes from the front."""

    peak: float
    luma: Convention | None
    crop_border: int
    height: int
    width: int
    channel: int | None

    @property
    def axes(self) -> tuple[int, ...]:
        axes = self.height, self.width
        return axes if self.channel is None else (*axes, self.channel)


def psnr(
    image: Shaped[ImageLike, "..."],
    reference: Shaped[ImageLike, "..."],
    *,
    data_range: float | None = None,
    luma: Convention | None = None,
    crop_border: int = 0,
    axes: Sequence[int] = (-3, -2),
    channel: int | None = -1,
) -> Float[Array, "..."]:
    """Peak signal-to-noise ratio in decibels; infinite where two images are equal.

    Args:
      image: batch to judge, RGB or grey.
      reference: the correct image; same shape and dtype.
      data_range: the peak. Default: 255 for uint8, 1 for floating point.
      luma: compare Y in this convention instead of the channels as they stand.
      crop_border: pixels cut from each side first.
      axes: the height and the width axis.
      channel: the channel axis, `None` if there is none.

    Returns:
      float32 (float64 for float64), one value for each index of the remaining axes.

    Raises:
      TypeError: not uint8 or floating point, or two dtypes.
      ValueError: two shapes, a range that is not positive, or a border that leaves no pixel.

    Example:
      >>> image = np.full((1, 8, 8, 3), 0.5, np.float32)
      >>> ops.psnr(image + np.float32(0.1), image).round(1).tolist()
      [20.0]
    """
    checked = check_comparison(
        image, reference, data_range, luma, crop_border, axes, channel, window=1
    )
    return _psnr(*checked)


def psnr_b(
    image: Shaped[ImageLike, "..."],
    reference: Shaped[ImageLike, "..."],
    *,
    block_size: int = 8,
    data_range: float | None = None,
    luma: Convention | None = None,
    crop_border: int = 0,
    axes: Sequence[int] = (-3, -2),
    channel: int | None = -1,
) -> Float[Array, "..."]:
    """PSNR that also counts the edges of blocks, for images out of JPEG files.

    Yim and Bovik 2011 (doi:10.1109/TIP.2010.2061859), equations 8 to 14: where steps between blocks
    are larger than those within them, the difference of their mean squares adds to the error. Other
    arguments and errors are those of `psnr`.

    Args:
      image: batch to judge, grey, or RGB with `luma`. Its blocks begin in the upper left corner.
      block_size: side of the blocks in pixels.

    Raises:
      ValueError: several channels without `luma`, or images without an edge between blocks.

    Example:
      >>> blocks = np.kron([[0.4, 0.6], [0.6, 0.4]], np.ones((8, 8))).astype(np.float32)[..., None]
      >>> grey = np.full_like(blocks, 0.5)
      >>> round(float(ops.psnr(blocks, grey)), 2), round(float(ops.psnr_b(blocks, grey)), 2)
      (20.0, 15.94)
    """
    if not is_integer(block_size) or block_size < 2:
        raise ValueError(f"block_size must be a whole number from 2, got {block_size!r}")
    checked = check_comparison(
        image, reference, data_range, luma, crop_border, axes, channel, window=block_size + 1
    )
    one_channel("psnr_b", checked[0], checked[2])
    return _psnr_b(*checked, block_size)


def ssim(
    image: Shaped[ImageLike, "..."],
    reference: Shaped[ImageLike, "..."],
    *,
    data_range: float | None = None,
    window: Literal["gaussian", "uniform"] = "gaussian",
    window_size: int | None = None,
    sigma: float = 1.5,
    sample_covariance: bool = False,
    luma: Convention | None = None,
    crop_border: int = 0,
    axes: Sequence[int] = (-3, -2),
    channel: int | None = -1,
) -> Float[Array, "..."]:
    """Structural similarity, at most 1, averaged over positions and channels.

    Arguments and errors are those of `psnr`, and these:

    Args:
      window: weights of the moving window.
      window_size: its side in pixels, odd. Default: 3.5 sigma to each side for the Gaussian (11 at
        1.5), 7 for the uniform one.
      sigma: standard deviation of the Gaussian window in pixels.
      sample_covariance: divide variances by n - 1 instead of n, n the pixels of the window.

    Returns:
      float32 (float64 for float64), one value for each index of the remaining axes.

    Raises:
      ValueError: an even window, one larger than the image without its border, or sigma not
        positive.

    Example:
      >>> image = np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 8, 8, 3)
      >>> ops.ssim(image, image, window="uniform").tolist()
      [1.0]
    """
    one_of(window, ("gaussian", "uniform"), "window")
    sigma = number(sigma, "sigma", above=0)
    if window_size is None:
        window_size = 2 * int(_TRUNCATE * sigma + 0.5) + 1 if window == "gaussian" else 7
    if not is_integer(window_size) or window_size < 3 or window_size % 2 == 0:
        raise ValueError(f"window_size must be odd and at least 3, got {window_size}")
    checked = check_comparison(
        image, reference, data_range, luma, crop_border, axes, channel, window=window_size
    )
    weights = window_weights(window, window_size, sigma)
    correction = window_size**2 / (window_size**2 - 1) if sample_covariance else 1.0
    return _ssim(*checked, weights, correction)


def ms_ssim(
    image: Shaped[ImageLike, "..."],
    reference: Shaped[ImageLike, "..."],
    *,
    data_range: float | None = None,
    weights: Sequence[float] = MS_SSIM_WEIGHTS,
    window_size: int = 11,
    sigma: float = 1.5,
    luma: Convention | None = None,
    crop_border: int = 0,
    axes: Sequence[int] = (-3, -2),
    channel: int | None = -1,
) -> Float[Array, "..."]:
    """Structural similarity over scales, at most 1: Wang, Simoncelli and Bovik 2003, equation 7.

    Contrast and structure are compared at each scale, luminance at the coarsest. Images are
    halved by means of 2 × 2 pixels. Channels are compared apart and averaged; a mean similarity
    below 0 counts as 0. Other arguments and errors are those of `psnr`.

    Args:
      weights: exponents, from the finest scale to the coarsest; above 0. Static.
      window_size: side of the Gaussian window in pixels, odd.
      sigma: standard deviation of the Gaussian window in pixels.

    Returns:
      float32 (float64 for float64), one value for each index of the remaining axes.

    Raises:
      ValueError: images that are smaller than the window at the coarsest scale: 161 pixels for
        the default, an even window, or weights that are not positive.

    Example:
      >>> image = np.linspace(0, 1, 44 * 44 * 3, dtype=np.float32).reshape(1, 44, 44, 3)
      >>> ops.ms_ssim(image, image, weights=(0.3, 0.3, 0.4)).round(4).tolist()
      [1.0]
    """
    sigma = number(sigma, "sigma", above=0)
    if not is_integer(window_size) or window_size < 3 or window_size % 2 == 0:
        raise ValueError(f"window_size must be odd and at least 3, got {window_size}")
    exponents = tuple(number(weight, "weights", above=0) for weight in weights)
    if not exponents:
        raise ValueError("weights must hold one number for each scale, got none")
    least = (window_size - 1) * 2 ** (len(exponents) - 1) + 1
    checked = check_comparison(
        image, reference, data_range, luma, crop_border, axes, channel, least
    )
    return _ms_ssim(*checked, window_weights("gaussian", window_size, sigma), exponents)


def window_weights(kind: str, size: int, sigma: float) -> tuple[float, ...]:
    if kind == "uniform":
        return (1 / size,) * size
    weights = [math.exp(-0.5 * ((k - size // 2) / sigma) ** 2) for k in range(size)]
    return tuple(weight / sum(weights) for weight in weights)


def check_comparison(
    image: ImageLike,
    reference: ImageLike,
    data_range: float | None,
    luma: Convention | None,
    crop_border: int,
    axes: Sequence[int],
    channel: int | None,
    window: int,
) -> tuple[jax.Array, jax.Array, ImagePair]:
    image, (height, width) = image_and_axes(image, axes)
    reference = image_array(reference, "reference")
    if image.shape != reference.shape:
        raise ValueError(
            f"image and reference must have one shape, got {image.shape} and {reference.shape}"
        )
    if image.dtype != reference.dtype:
        raise TypeError(
            f"image and reference must have one dtype, got {image.dtype} and {reference.dtype}; "
            "their ranges differ, so convert one of them first"
        )
    if channel is not None:
        channel = normal_axis(channel, image.ndim, "channel")
        if channel in (height, width):
            raise ValueError(f"channel={channel} is also one of axes={tuple(axes)}")
    if luma is not None:
        one_of(luma, CONVENTIONS, "colour convention")
        if channel is None:
            raise ValueError(f"luma={luma!r} needs a channel axis of R, G and B; name it")
    if not is_integer(crop_border) or crop_border < 0:
        raise ValueError(f"crop_border must be a whole number from 0, got {crop_border!r}")
    extent = min(image.shape[height], image.shape[width]) - 2 * crop_border
    if extent < window:
        raise ValueError(
            f"a border of {crop_border} px leaves {extent} px of "
            f"{image.shape[height]}x{image.shape[width]}, but {window} are needed"
        )
    if data_range is None:
        data_range = 255 if image.dtype == jnp.uint8 else 1
    peak = number(data_range, "data_range", above=0)
    return image, reference, ImagePair(peak, luma, crop_border, height, width, channel)


def one_channel(name: str, image: jax.Array, of: ImagePair) -> None:
    """Refuses images of several channels where no luma is asked for.

    Raises:
      ValueError: naming the function.
    """
    if of.luma is None and of.channel is not None and image.shape[of.channel] != 1:
        raise ValueError(
            f"{name} judges one channel, got {image.shape[of.channel]}; name luma, or cut one out"
        )


def _cut(image: jax.Array, of: ImagePair) -> jax.Array:
    """Without its border, in the dtype of sums; of a uint8 image Y, rounded to levels, if asked."""
    for axis in (of.height, of.width):
        stop = image.shape[axis] - of.crop_border
        image = jax.lax.slice_in_dim(image, of.crop_border, stop, axis=axis)
    if of.luma is not None and of.channel is not None and image.dtype == jnp.uint8:
        image = rgb_to_y(image, convention=of.luma, channel=of.channel)
    return image.astype(compute_dtype(image.dtype))


def _folded(x: jax.Array, of: ImagePair) -> tuple[jax.Array, dict[int, int], tuple[int, ...]]:
    """`x` with a trailing channel axis folded into the columns; steps; the axes to average."""
    axes = of.height, of.width
    last = max(axes)
    if last + 1 < x.ndim and of.channel != x.ndim - 1:
        return x, dict.fromkeys(axes, 1), of.axes
    flat, steps = fold_channels(x, axes)
    return flat, steps, tuple(axis for axis in of.axes if axis <= last)


def _mean(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Mean over `axes`: chunks of the first are added before anything else.

    A sum of slices vectorises; a reduction fused with its operands does not. Adding like parts
    first keeps float32's digits.
    """
    axis, count = axes[0], math.prod(x.shape[a] for a in axes)
    rows = x.shape[axis] // _CHUNKS

    def part(start: int, stop: int) -> jax.Array:
        return jax.lax.slice_in_dim(x, start, stop, axis=axis)

    total = part(_CHUNKS * rows, x.shape[axis]).sum(axes)
    if rows:
        chunks = [part(k * rows, (k + 1) * rows) for k in range(_CHUNKS)]
        total += reduce(jnp.add, chunks).sum(axes)
    return total / count


@jit("of")
def _psnr(image: jax.Array, reference: jax.Array, of: ImagePair) -> jax.Array:
    # The difference comes first, so that equal images differ by exactly 0.
    difference = (_cut(image, of) - _cut(reference, of)) / of.peak
    if of.luma is not None and of.channel is not None and image.dtype != jnp.uint8:
        difference = luma_of_difference(difference, of.luma, of.channel)
    difference, _, averaged = _folded(difference, of)
    return -10 * jnp.log10(_mean(jnp.square(difference), averaged))


@jit("of", "size")
def _psnr_b(image: jax.Array, reference: jax.Array, of: ImagePair, size: int) -> jax.Array:
    x, y = planes(image, of), planes(reference, of)
    height, width = x.shape[-2:]
    edges, others = zeros(x.shape[:-2], x.dtype), zeros(x.shape[:-2], x.dtype)
    for axis, extent in ((x.ndim - 2, height), (x.ndim - 1, width)):
        steps = jnp.square(jnp.diff(x, axis=axis))
        is_edge = arange(1, extent) % size == 0
        is_edge = is_edge[:, None] if axis == x.ndim - 2 else is_edge
        edges += jnp.where(is_edge, steps, 0).sum((-2, -1))
        others += jnp.where(is_edge, 0, steps).sum((-2, -1))
    # Counts by the paper's own formula, which is one too few in each direction.
    edge_count = 2 * height * width / size - 2
    other_count = height * (width - 1) + width * (height - 1) - edge_count
    effect = edges / edge_count - others / other_count
    share = math.log2(size) / math.log2(min(height, width))
    error = _mean(jnp.square(x - y), (x.ndim - 2, x.ndim - 1))
    result = -10 * jnp.log10(error + share * jnp.maximum(effect, 0))
    return result if of.channel is None else result[0]


@jit("of", "weights", "correction")
def _ssim(
    image: jax.Array,
    reference: jax.Array,
    of: ImagePair,
    weights: tuple[float, ...],
    correction: float,
) -> jax.Array:
    x, steps, averaged = _folded(_in_unit_range(image, of), of)
    y, _, _ = _folded(_in_unit_range(reference, of), of)
    luminance, structure = _similarities(x, y, steps, weights, correction)
    return _mean(luminance * structure, averaged)


@jit("of", "weights", "exponents")
def _ms_ssim(
    image: jax.Array,
    reference: jax.Array,
    of: ImagePair,
    weights: tuple[float, ...],
    exponents: tuple[float, ...],
) -> jax.Array:
    x, y = planes(image, of), planes(reference, of)
    rows, columns = x.ndim - 2, x.ndim - 1
    factors: list[jax.Array] = []
    for level, exponent in enumerate(exponents, start=1):
        luminance, structure = _similarities(x, y, {rows: 1, columns: 1}, weights, 1.0)
        similarity = luminance * structure if level == len(exponents) else structure
        # Negative ones have no power; Wang's are complex numbers then.
        mean = jnp.maximum(_mean(similarity, (rows, columns)), 0)
        factors.append(jnp.where(mean > 0, jnp.where(mean > 0, mean, 1) ** exponent, 0))
        if level < len(exponents):
            x, y = _halved(x), _halved(y)
    product = reduce(jnp.multiply, factors)
    return product if of.channel is None else product.mean(0)


def planes(image: jax.Array, of: ImagePair) -> jax.Array:
    """In unit range, channels first as a batch, height and width last."""
    x = _in_unit_range(image, of)
    if of.channel is None:
        return jnp.moveaxis(x, (of.height, of.width), (-2, -1))
    return jnp.moveaxis(x, (of.channel, of.height, of.width), (0, -2, -1))


def _halved(x: jax.Array) -> jax.Array:
    """Means of 2 × 2 pixels; an odd last row or column stands for two."""
    for axis in (x.ndim - 2, x.ndim - 1):
        x = pad_axis(x, axis, 0, x.shape[axis] % 2, "edge")
        first, second = (jax.lax.slice_in_dim(x, start, x.shape[axis], 2, axis) for start in (0, 1))
        x = (first + second) / 2
    return x


def _in_unit_range(image: jax.Array, of: ImagePair) -> jax.Array:
    plane = _cut(image, of) / of.peak
    if of.luma is None or of.channel is None or image.dtype == jnp.uint8:
        return plane
    return rgb_to_y(plane, convention=of.luma, channel=of.channel)


def _similarities(
    x: jax.Array,
    y: jax.Array,
    steps: dict[int, int],
    weights: tuple[float, ...],
    correction: float,
) -> tuple[jax.Array, jax.Array]:
    """Luminance, and contrast with structure, at each position of the window."""
    # Variances do not depend on the level, but float32's E[x²] - E[x]² does: take off half grey.
    level = 0.5

    first, second = sorted(steps)
    u, v = x - level, y - level
    # In one stack, because XLA computes the parts of a concatenation once and not for every tap.
    moments = jnp.stack([u, v, u * u + v * v, u * v])
    moments = filter_valid_apart(moments, weights, first + 1, steps[first])
    moments = filter_valid(moments, weights, second + 1, steps[second])
    mean_u, mean_v, squares, products = moments
    # Only the sum of the variances enters the formula, so four windowed means do for five.
    variances = correction * (squares - mean_u**2 - mean_v**2)
    covariance = correction * (products - mean_u * mean_v)
    mean_x, mean_y = mean_u + level, mean_v + level
    c1, c2 = _K1**2, _K2**2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (variances + c2)
    return luminance, structure
