"""Noise by key: Gaussian, Poisson, salt and pepper, and a sensor's.

Images are uint8, uint16, or 0…1 in floating point; integers are rounded and clipped, floats are
not clipped. Amounts are on the scale 0…1 for every dtype, may be traced, and may hold one value for
each image. One key serves all images of a call, whose noise differs; the same key gives the
same noise on any mesh. `axes` names height and width (NHWC by default).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike
from jaxsr.ops._images import Parameter, in_dtype_of, peak_of, picture, real_dtype, spread
from jaxsr.ops._random import check_key, normal, uniform
from jaxsr.ops._types import Array, Shaped

_MOST_COUNTED = 1 << 30
"""Photons, above which int32 would not hold all draws."""


def gaussian_noise(
    key: jax.Array,
    image: Shaped[ImageLike, "*shape"],
    sigma: Parameter,
    *,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Adds normal noise of one standard deviation, as scikit-image's `random_noise`.

    Args:
      key: of `jax.random`.
      image: input images.
      sigma: standard deviation, where white is 1; one number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, a sigma that is not a number, or a key that is not JAX's.
      ValueError: sigmas that do not belong to the images.

    Example:
      >>> import jax
      >>> image = np.full((4, 100, 100, 1), 0.5, np.float32)
      >>> noisy = ops.gaussian_noise(jax.random.key(0), image, 0.1)
      >>> print(np.asarray(noisy).std().round(2))
      0.1
    """
    array, _ = picture(image, axes)
    return sensor_noise(key, array, shot=0.0, read=sigma, axes=axes)


def sensor_noise(
    key: jax.Array,
    image: Shaped[ImageLike, "*shape"],
    *,
    shot: Parameter,
    read: Parameter,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Adds normal noise of variance `shot * light + read²`: a camera's (Foi et al., IEEE TIP 2008).

    Args:
      key: of `jax.random`.
      image: images, whose levels are proportional to light.
      shot: variance at white: 1 / (photons at white). One number, or one for each image.
      read: standard deviation in the dark; one number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, amounts that are not numbers, or a key that is not JAX's.
      ValueError: amounts that do not belong to the images.

    Example:
      >>> import jax
      >>> image = np.full((4, 100, 100, 1), 0.5, np.float32)
      >>> noisy = ops.sensor_noise(jax.random.key(0), image, shot=0.02, read=0.0)
      >>> print(np.asarray(noisy).std().round(2))
      0.1
    """
    check_key(key)
    array, positions = picture(image, axes)
    light, white = array.astype(real_dtype(array)), peak_of(array)
    variance = spread(shot, array, positions, "shot") * jnp.maximum(light / white, 0)
    variance += spread(read, array, positions, "read") ** 2
    if light.dtype == jnp.float32:
        noise = normal(key, array.shape)
    else:
        noise = jax.random.normal(key, array.shape, light.dtype)
    # The root of 0 has no gradient.
    deviation = jnp.sqrt(jnp.where(variance > 0, variance, 1)) * (variance > 0)
    return in_dtype_of(array, light + noise * deviation * white)


def poisson_noise(
    key: jax.Array,
    image: Shaped[ImageLike, "*shape"],
    photons: Parameter,
    *,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Counts photons: levels become Poisson numbers of their mean. No gradient passes.

    Levels of more than 2³⁰ photons, infinities and NaN stay.

    Draws are repeated until all pixels have theirs, so that shards exchange one flag a round;
    `sensor_noise` needs no factor, and looks alike from some twenty photons on.

    Args:
      key: of `jax.random`, a threefry key.
      image: images, whose levels are proportional to light.
      photons: at white, above 0; one number, or one for each image.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, photons that are not numbers, or a key that is not JAX's.
      ValueError: photons that do not belong to the images.

    Example:
      >>> import jax
      >>> image = np.full((1, 4, 4, 1), 0.5, np.float32)
      >>> noisy = ops.poisson_noise(jax.random.key(0), image, 10)
      >>> bool((noisy * 10 == (noisy * 10).round()).all())
      True
    """
    check_key(key)
    array, positions = picture(image, axes)
    light, white = array.astype(real_dtype(array)), peak_of(array)
    count = spread(photons, array, positions, "photons")
    mean = jax.lax.stop_gradient(jnp.maximum(light / white, 0) * count)
    drawn = jax.random.poisson(key, mean).astype(light.dtype)
    drawn = jnp.where(mean <= _MOST_COUNTED, drawn, mean)  # NaN is not
    return in_dtype_of(array, drawn / count * white)


def salt_and_pepper(
    key: jax.Array,
    image: Shaped[ImageLike, "*shape"],
    share: Parameter,
    *,
    salt: Parameter = 0.5,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Replaces single values by white or black, as scikit-image's `random_noise`.

    Args:
      key: of `jax.random`.
      image: input images.
      share: of the values that are replaced, 0 to 1; one number, or one for each image.
      salt: the share of white among them.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, shares that are not numbers, or a key that is not JAX's.
      ValueError: shares that do not belong to the images.

    Example:
      >>> import jax
      >>> image = np.full((1, 3, 3, 1), 7, np.uint8)
      >>> np.unique(ops.salt_and_pepper(jax.random.key(0), image, 1.0)).tolist()
      [0, 255]
    """
    check_key(key)
    array, positions = picture(image, axes)
    replaced, white = uniform(key, (2, *array.shape))
    extreme = jnp.where(white < spread(salt, array, positions, "salt"), peak_of(array), 0)
    return jnp.where(
        replaced < spread(share, array, positions, "share"), extreme.astype(array.dtype), array
    )
