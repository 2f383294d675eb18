"""What cameras and files do to the small picture: blur, noise and JPEG, in random order.

Images are NCHW in levels 0…255: uint8, rounded after each kind as a file would hold it, or float32
without rounding (JPEG rounds in any case). Everything random about a sample comes from its own key:
equal on any mesh and in any batch.
"""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from jaxsr.errors import InputError
from jaxsr.ops.blur import gaussian_blur
from jaxsr.ops.jpeg import jpeg
from jaxsr.ops.noise import gaussian_noise

_AXES = (-2, -1)
_WIDEST_BLUR = 5.0  # of a window of 31 pixels, half a crop of many


@dataclass(frozen=True, kw_only=True)
class Degradation:
    """Kinds of damage, each of a strength drawn uniformly for every sample."""

    blur: float = 0.0
    """Most deviation of a Gaussian blur, in pixels."""
    noise: float = 0.0
    """Most deviation of Gaussian noise, in levels of 255."""
    jpeg: tuple[int, int] | None = None
    """Least and most quality of a JPEG file, 1 to 100; its colours are subsampled, 4:2:0."""

    def __post_init__(self) -> None:
        if not 0 <= self.blur <= _WIDEST_BLUR:
            raise InputError(f"blur must be from 0 to {_WIDEST_BLUR:g} pixels, got {self.blur}")
        if not 0 <= self.noise <= 255:
            raise InputError(f"noise must be from 0 to 255 levels, got {self.noise}")
        if self.jpeg is not None and not 1 <= self.jpeg[0] <= self.jpeg[1] <= 100:
            raise InputError(
                "jpeg must be two qualities from 1 to 100, the lower one first, got "
                f"{self.jpeg[0]} {self.jpeg[1]}"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of damage that are not off."""
        return tuple(name for name in ("blur", "noise", "jpeg") if getattr(self, name))


def degrade(
    levels: Num[Array, "b c h w"], keys: Array, degradation: Degradation
) -> Num[Array, "b c h w"]:
    """Each picture with every kind of damage once, in an order of its own.

    Args:
      levels: uint8, or floating point in levels 0…255.
      keys: of `jax.random`, one for each picture.
      degradation: the kinds and their strengths.
    """
    kinds = degradation.kinds
    if not kinds:
        return levels
    integers = levels.dtype == jnp.uint8
    image = levels if integers else levels / 255
    draws = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    strength = jax.vmap(lambda key: jax.random.uniform(key, (len(kinds),)))(draws[:, 0])

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
        # small pictures cost little beside a network.
        chosen = [(choice == index)[:, None, None, None] for index in range(len(kinds))]
        return jnp.select(chosen, [damaged(image, index) for index in range(len(kinds))]), None

    orders = jnp.asarray(list(itertools.permutations(range(len(kinds)))))
    order = orders[jax.vmap(jax.random.bits)(draws[:, 2]) % len(orders)]
    image, _ = jax.lax.scan(one_kind, image, order.T)
    return image if integers else image * 255


def _noisy(key: Array, image: Array, deviation: Array) -> Array:
    return gaussian_noise(key, image, deviation, axes=_AXES)
