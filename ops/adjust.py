"""Colours of images changed by factors: brightness, contrast, saturation, hue, gamma, mean.

Images are RGB or grey in any layout, uint8 or uint16, or 0…1 in floating point. Factors may be
traced, one for all images or one for each of their leading axes. uint8 results are Pillow's
(`ImageEnhance`, `ImageOps`), which cuts fractions off; floating-point ones are not clipped below,
so that gradients pass, but for hue, whose colours lie in 0…1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, normal_axis
from jaxsr.ops._images import (
    INTEGER_DTYPES,
    Parameter,
    channel_planes,
    in_dtype_of,
    integers,
    parameter,
    peak_of,
    picture,
    pixels,
    real_dtype,
    spread,
    unit_planes,
)
from jaxsr.ops._levels import look_up
from jaxsr.ops._typed_jax import arange, asarray, platform_dependent
from jaxsr.ops._types import Array, Float, Shaped
from jaxsr.ops.gray import luma
from jaxsr.ops.hsv import from_hue, hue_value_chroma


def adjust_brightness(
    image: Shaped[ImageLike, "*shape"], factor: Parameter, *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """Multiplies by a factor, as Pillow's `ImageEnhance.Brightness`.

    Args:
      image: input images.
      factor: 0 is black, 1 the image; any number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a factor that is not a number.
      ValueError: factors that do not belong to the images.

    Example:
      >>> ops.adjust_brightness(np.full((1, 1, 3), 100, np.uint8), 1.5).ravel().tolist()
      [150, 150, 150]
    """
    array, positions = picture(image, axes)
    return _blend(array, asarray(0, real_dtype(array)), factor, positions)


def adjust_contrast(
    image: Shaped[ImageLike, "*shape"],
    factor: Parameter,
    *,
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Moves away from the image's mean grey, as Pillow's `ImageEnhance.Contrast`.

    Args:
      image: images of one or three channels.
      factor: 0 is grey, 1 the image; any number, or one for each image.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or a factor that is not a number.
      ValueError: factors that do not belong to the images, or channels that are not 1 or 3.

    Example:
      >>> ops.adjust_contrast(np.array([[[90], [110]]], np.uint8), 2.0).ravel().tolist()
      [80, 120]
    """
    array, positions = picture(image, axes)
    mean = _grey(array, channel).mean(positions, keepdims=True)
    if array.dtype in INTEGER_DTYPES:
        mean = jnp.floor(mean + 0.5)
    return _blend(array, mean, factor, positions)


def adjust_saturation(
    image: Shaped[ImageLike, "*shape"],
    factor: Parameter,
    *,
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Moves away from grey, as Pillow's `ImageEnhance.Color`.

    Args:
      image: images of one or three channels.
      factor: 0 is grey, 1 the image; any number, or one for each image.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or a factor that is not a number.
      ValueError: factors that do not belong to the images, or channels that are not 1 or 3.

    Example:
      >>> ops.adjust_saturation(np.array([[[255, 0, 0]]], np.uint8), 0.0).ravel().tolist()
      [76, 76, 76]
    """
    array, positions = picture(image, axes)
    return _blend(array, _grey(array, channel), factor, positions)


def adjust_hue(
    image: Shaped[ImageLike, "*shape"],
    shift: Parameter,
    *,
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Turns the hue of HSV, as torchvision's `adjust_hue` of tensors.

    Args:
      image: RGB images.
      shift: turns of the colour circle: 0 and 1 are the image, 0.5 its complementary colours.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or a shift that is not a number.
      ValueError: shifts that do not belong to the images, or channels that are not 3.

    Example:
      >>> ops.adjust_hue(np.array([[[255, 0, 0]]], np.uint8), 1 / 3).ravel().tolist()
      [0, 255, 0]
    """
    array, positions = picture(image, axes)
    sextant, value, chroma = hue_value_chroma(unit_planes(array, channel))
    rgb = from_hue(sextant + 6 * spread(shift, array, positions, "shift"), value, chroma, channel)
    return in_dtype_of(array, rgb * peak_of(array))


def adjust_sharpness(
    image: Shaped[ImageLike, "*shape"], factor: Parameter, *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """Moves away from a slightly blurred image, as Pillow's `ImageEnhance.Sharpness`.

    The blur is a window of 3 × 3, five times as heavy in its middle; the outermost pixels stay.

    Args:
      image: input images.
      factor: 0 is blurred, 1 the image; any number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a factor that is not a number.
      ValueError: factors that do not belong to the images.

    Example:
      >>> image = np.full((3, 3, 1), 100, np.uint8)
      >>> image[1, 1] = 152
      >>> ops.adjust_sharpness(image, 2.0)[1, 1].item()
      184
    """
    array, positions = picture(image, axes)
    x = array.astype(real_dtype(array))
    if min(array.shape[axis] for axis in positions) < 3:
        return _blend(array, x, factor, positions)
    sums, inner = x, [slice(None)] * array.ndim
    for axis in positions:
        low, middle, high = (
            jax.lax.slice_in_dim(sums, k, k + array.shape[axis] - 2, axis=axis) for k in range(3)
        )
        sums = low + middle + high
        inner[axis] = slice(1, -1)
    index = tuple(inner)
    smooth = (sums + 4 * x[index]) / 13
    if array.dtype in INTEGER_DTYPES:
        smooth = jnp.floor(smooth + 0.5)
    return _blend(array, x.at[index].set(smooth), factor, positions)


def adjust_gamma(
    image: Shaped[ImageLike, "*shape"], gamma: Parameter, *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """Raises 0…1 to a power; values below 0 count as 0.

    Args:
      image: input images.
      gamma: the exponent: below 1 shadows become lighter. One number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a gamma that is not a number.
      ValueError: exponents that do not belong to the images.

    Example:
      >>> ops.adjust_gamma(np.full((1, 1, 1), 0.25, np.float32), 0.5).item()
      0.5
    """
    array, positions = picture(image, axes)
    exponent = spread(gamma, array, positions, "gamma")

    def power(levels: jax.Array, exponent: jax.Array) -> jax.Array:
        real = levels.astype(real_dtype(array)) / peak_of(array)
        # A power of 0 has no slope below an exponent of 1: there the base is 1 instead.
        is_dark = real <= 0
        unit = jnp.where(is_dark, 1, real)
        power_of_0 = jnp.where(exponent == 0, 1, jnp.where(exponent > 0, 0, jnp.inf))
        powers = jnp.where(is_dark, power_of_0, unit**exponent)
        return in_dtype_of(array, powers * peak_of(array))

    def by_table(array: jax.Array, exponent: jax.Array) -> jax.Array:
        leading = array.shape[: array.ndim + min(positions)]
        exponents = exponent.reshape(exponent.shape[: len(leading)])
        # One power for all images of one exponent.
        table = power(arange(256).astype(jnp.uint8), exponents[..., None])
        each = jnp.broadcast_to(table, (*leading, 256))
        return look_up(each, array.reshape(*leading, -1)).reshape(array.shape)

    if array.dtype != jnp.uint8 or not array.size:
        return power(array, exponent)
    return platform_dependent(array, exponent, cpu=by_table, default=power)


def invert(
    image: Shaped[ImageLike, "*shape"], *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """The negative: white less the image, as Pillow's `ImageOps.invert`.

    Args:
      image: input images.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype.

    Example:
      >>> ops.invert(np.full((1, 1, 1), 55, np.uint8)).item()
      200
    """
    array, _ = picture(image, axes)
    return (asarray(peak_of(array), array.dtype) - array).astype(array.dtype)


def solarize(
    image: Shaped[ImageLike, "*shape"], threshold: Parameter, *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """Inverts values at or above a threshold, as Pillow's `ImageOps.solarize`.

    Args:
      image: input images.
      threshold: on the image's scale; one number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a threshold that is not a number.
      ValueError: thresholds that do not belong to the images.

    Example:
      >>> ops.solarize(np.array([[[100], [200]]], np.uint8), 128).ravel().tolist()
      [100, 55]
    """
    array, positions = picture(image, axes)
    limit = spread(threshold, array, positions, "threshold")
    return jnp.where(array.astype(real_dtype(array)) < limit, array, invert(array, axes=axes))


def posterize(
    image: Shaped[ImageLike, "*shape"], bits: int | ImageLike, *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "*shape"]:
    """Keeps the first bits of every level, as Pillow's `ImageOps.posterize`.

    Floats are cut down to multiples of 1 / 2^bits below 1, as torchvision has it.

    Args:
      image: input images.
      bits: from 0; one integer, or one for each image, traced or not.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or bits that are not integers.
      ValueError: bits that do not belong to the images.

    Example:
      >>> ops.posterize(np.full((1, 1, 1), 255, np.uint8), 3).item()
      224
    """
    array, positions = picture(image, axes)
    kept = spread(integers(bits, "bits"), array, positions, "bits").astype(jnp.int32)
    if array.dtype not in INTEGER_DTYPES:
        levels = jnp.ldexp(asarray(1, real_dtype(array)), kept)
        level = jnp.floor(array.astype(levels.dtype) * levels)
        return in_dtype_of(array, jnp.clip(level, 0, levels - 1) / levels)
    dropped = jnp.maximum(8 * array.dtype.itemsize - kept, 0)
    return ((array.astype(jnp.int32) >> dropped) << dropped).astype(array.dtype)


def standardise(
    image: Shaped[ImageLike, "*shape"],
    mean: Parameter,
    std: Parameter,
    *,
    channel: int = -1,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Float[Array, "*shape"]:
    """`(image - mean) / std`, channel by channel, as torchvision's `normalize`.

    Integers are read as parts of their white, as torchvision's `ToTensor` does first.

    Args:
      image: images of any number of channels and other axes.
      mean: on the scale of 0…1: one number, or one for each channel; traced or not.
      std: the same; not 0.
      channel: the axis of channels.
      dtype: of the result; sums run in float32 or wider.

    Raises:
      TypeError: an unsuitable dtype, or values that are not numbers.
      ValueError: the count of numbers does not match the channels.

    Example:
      >>> image = np.array([255, 0], np.uint8)
      >>> ops.standardise(image, (0.5, 0.4), (0.5, 0.2)).round(4).tolist()
      [1.0, -2.0]
    """
    array = pixels(image)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"standardise needs a floating-point dtype, got {jnp.dtype(dtype)}")
    place = normal_axis(channel, array.ndim, "channel")
    shape = [array.shape[place] if axis == place else 1 for axis in range(array.ndim)]
    numbers: list[jax.Array] = []
    for name, value in (("mean", mean), ("std", std)):
        number = parameter(value, name)
        if number.shape not in ((), (array.shape[place],)):
            raise ValueError(
                f"{name} must be one number or {array.shape[place]}, one for each channel of the "
                f"image's shape {array.shape}, got the shape {number.shape}"
            )
        numbers.append(number.reshape(shape if number.ndim else ()))
    unit = array.astype(real_dtype(array)) / peak_of(array)
    return ((unit - numbers[0]) / numbers[1]).astype(dtype)


def _blend(
    image: jax.Array, base: jax.Array, factor: Parameter, axes: tuple[int, int]
) -> jax.Array:
    """From `base` through the image, by the factor; integers cut off as in Pillow's Image.blend."""
    x = image.astype(real_dtype(image))
    apart = x - base
    step = spread(factor, image, axes, "factor") * apart
    if image.dtype not in INTEGER_DTYPES:
        return in_dtype_of(image, base + step)
    # The choice keeps compilers from contracting product and sum, which Pillow rounds apart.
    return in_dtype_of(image, jnp.floor(base + jnp.where(apart == 0, 0, step)))


def _grey(image: jax.Array, channel: int) -> jax.Array:
    planes = channel_planes(image, channel, most=1)
    grey = planes[0] if len(planes) == 1 else luma(planes, "pillow")
    return grey.astype(real_dtype(image))
