"""Damage of cameras and files to the small image: blur, noise and JPEG, in random order.

Images from the web went through this twice: resized and sharpened after the first time, and
saved again (the second order of Wang et al. 2021, Real-ESRGAN, arXiv:2107.10833).

Images are NCHW in levels 0…255: uint8, rounded after each kind as a file would hold it, or float32
without rounding (JPEG rounds in any case). Everything random about a sample comes from its own key:
equal on any mesh and in any batch.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from jaxsr.data.degradation_options import Degradation
from jaxsr.ops.blur import gaussian_blur
from jaxsr.ops.jpeg import jpeg
from jaxsr.ops.noise import gaussian_noise
from jaxsr.ops.resize import resize

_AXES = (-2, -1)
_FACTORS = (0.5, 0.7, 0.85, 1.0)
"""An image that is damaged again was shrunk by one of these and enlarged back."""
_SHARPEN, _SHARPEN_BLUR = 1.5, 1.0
"""Maximum strength of its unsharp mask, and the mask's standard deviation in pixels."""
_LEAVE_OUT, _CHOICE, _AGAIN = range(3, 6)  # folded into a sample's key


def degrade(
    levels: Num[Array, "b c h w"], keys: Array, degradation: Degradation
) -> Num[Array, "b c h w"]:
    """Damages each image by every kind once or twice, in an order of its own.

    Args:
      levels: uint8, or floating point in levels 0…255.
      keys: of `jax.random`, one for each image.
      degradation: the kinds and their strengths.
    """
    if not degradation.kinds:
        return levels
    integers = levels.dtype == jnp.uint8
    image = _damaged_once(levels if integers else levels / 255, keys, degradation)
    if degradation.again:
        fold = jax.vmap(jax.random.fold_in, (0, None))
        twice = _damaged_once(_passed_on(image, keys), fold(keys, _AGAIN), degradation)
        chosen = jax.vmap(jax.random.uniform)(fold(keys, _CHOICE)) < degradation.again
        image = jnp.where(_of_each(chosen), twice, image)
    return image if integers else image * 255


def _damaged_once(image: Array, keys: Array, degradation: Degradation) -> Array:
    kinds = degradation.kinds
    draws = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    strength = jax.vmap(lambda key: jax.random.uniform(key, (len(kinds),)))(draws[:, 0])
    if degradation.share < 1:
        left_out = jax.vmap(lambda key: jax.random.fold_in(key, _LEAVE_OUT))(keys)
        drawn = jax.vmap(lambda key: jax.random.uniform(key, (len(kinds),)))(left_out)
        always = jnp.asarray([name == "jpeg" for name in kinds])
        strength = jnp.where(always | (drawn < degradation.share), strength, 0.0)

    def damaged(image: Array, index: int) -> Array:
        amount = strength[:, index]
        if kinds[index] == "blur":
            window = 2 * int(np.ceil(3 * degradation.blur)) + 1
            sigma = amount * degradation.blur
            return gaussian_blur(image, sigma=sigma, kernel_size=window, axes=_AXES, border="edge")
        if kinds[index] == "noise":
            deviation = amount * (degradation.noise / 255)
            return jax.vmap(_noisy)(draws[:, 1], image, deviation)
        assert degradation.jpeg is not None
        least, most = degradation.jpeg
        quality = jnp.minimum(least + jnp.floor(amount * (most - least + 1)), most)
        return jpeg(image, quality.astype(jnp.int32), axes=_AXES, channel=-3)

    def one_kind(image: Array, choice: Array) -> tuple[Array, None]:
        # Every kind is computed and one taken: under vmap a branch would compute all as well, and
        # small images cost little compared with a network.
        chosen = [_of_each(choice == index) for index in range(len(kinds))]
        return jnp.select(chosen, [damaged(image, index) for index in range(len(kinds))]), None

    orders = jnp.asarray(list(itertools.permutations(range(len(kinds)))))
    order = orders[jax.vmap(jax.random.bits)(draws[:, 2]) % len(orders)]
    return jax.lax.scan(one_kind, image, order.T)[0]


def _passed_on(image: Array, keys: Array) -> Array:
    """The images as somebody shows them who got them: resized, often sharpened."""
    size = image.shape[-2:]
    draw = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, _CHOICE), (3,)))(keys)
    factor = jnp.floor(draw[:, 1] * len(_FACTORS))
    resized = image
    for index, part in enumerate(_FACTORS):
        if part < 1:
            small = _bicubic(image, tuple(max(round(part * side), 1) for side in size))
            resized = jnp.where(_of_each(factor == index), _bicubic(small, size), resized)
    strength = _of_each(jnp.maximum(2.0 * draw[:, 2] - 1.0, 0.0) * _SHARPEN)
    levels = resized.astype(jnp.float32)
    blurred = gaussian_blur(levels, sigma=_SHARPEN_BLUR, axes=_AXES, border="edge")
    sharp = levels + strength * (levels - blurred)
    if image.dtype == jnp.uint8:
        return jnp.clip(jnp.floor(sharp + 0.5), 0, 255).astype(jnp.uint8)
    return jnp.clip(sharp, 0.0, 1.0)


def _bicubic(image: Array, size: tuple[int, ...]) -> Array:
    return resize(image, (size[0], size[1]), method="bicubic", antialias=True, axes=_AXES)


def _of_each(values: Array) -> Array:
    """One value for each image, to be joined with the images."""
    return values[:, None, None, None]


def _noisy(key: Array, image: Array, deviation: Array) -> Array:
    return gaussian_noise(key, image, deviation, axes=_AXES)
