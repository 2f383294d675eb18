"""Steps that make images worse as cameras do: blur, smaller sizes, noise, JPEG.

Their order is the policy's. Super-resolution's usual one is blur, `Resize`, noise, JPEG.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import is_integer, one_of
from jaxsr.ops._augment.batch import (
    Augmented,
    CheckedStep,
    Layout,
    Range,
    by_matrix,
    check_range,
    check_share,
    expanded,
    folded,
    matrix_of,
    moved,
    size_of,
    two,
    uniform,
)
from jaxsr.ops._images import in_dtype_of, real_dtype
from jaxsr.ops._traced_window import correlate, gaussian
from jaxsr.ops._typed_jax import asarray
from jaxsr.ops.jpeg import SUBSAMPLINGS, jpeg
from jaxsr.ops.motion import motion_blur
from jaxsr.ops.noise import sensor_noise
from jaxsr.ops.resize import checked_options, checked_size, resize


@dataclass(frozen=True, kw_only=True)
class RandomBlur(CheckedStep):
    """Blurs by a Gaussian of random sigma, as torchvision's GaussianBlur."""

    sigma: Range = (0.1, 2.0)
    """Least and greatest standard deviation, in pixels."""
    probability: float = 1.0

    def _check_fields(self) -> None:
        check_range(self.sigma, "sigma")
        check_share(self.probability, "probability")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Changes images alone."""
        draws = uniform(keys, 2)
        sigma = jnp.where(draws[:, 1] < self.probability, _within(self.sigma, draws[:, 0]), 0)
        weights = gaussian(sigma, 2 * int(4 * self.sigma[1] + 0.5) + 1)
        images = batch.images.astype(real_dtype(batch.images))
        for window in (weights[:, :, None], weights[:, None, :]):
            images = correlate(images, window, layout.axes, "reflect101")
        return batch._replace(images=in_dtype_of(batch.images, images))


@dataclass(frozen=True, kw_only=True)
class RandomMotionBlur(CheckedStep):
    """Blurs along a segment of random length and direction."""

    length: Range = (1.0, 9.0)
    """Least and greatest length, in pixels."""
    probability: float = 1.0

    def _check_fields(self) -> None:
        check_range(self.length, "length")
        check_share(self.probability, "probability")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Changes images alone."""
        draws = uniform(keys, 3)
        chosen = draws[:, 2] < self.probability
        length = jnp.where(chosen, _within(self.length, draws[:, 0]), 0)
        size = int(self.length[1] / 2) * 2 + 3
        images = motion_blur(batch.images, length, 180 * draws[:, 1], size=size, axes=layout.axes)
        return batch._replace(images=images)


@dataclass(frozen=True, kw_only=True)
class RandomNoise(CheckedStep):
    """Adds a sensor's noise, of variance `shot * light + read²` where white is 1."""

    read: Range = (0.0, 0.02)
    """Least and greatest standard deviation in the dark."""
    shot: Range = (0.0, 0.01)
    """Least and greatest variance at white."""
    probability: float = 1.0

    def _check_fields(self) -> None:
        check_range(self.read, "read", least=0)
        check_range(self.shot, "shot", least=0)
        check_share(self.probability, "probability")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Changes images alone."""
        draws = uniform(folded(keys, 0), 3)
        chosen = draws[:, 2] < self.probability
        read, shot = (
            jnp.where(chosen, _within(limits, draws[:, k]), 0)
            for k, limits in enumerate((self.read, self.shot))
        )

        def one(key: jax.Array, image: jax.Array, shot: jax.Array, read: jax.Array) -> jax.Array:
            return sensor_noise(key, image, shot=shot, read=read, axes=layout.axes)

        images = jax.vmap(one)(folded(keys, 1), batch.images, shot, read)
        return batch._replace(images=images)


@dataclass(frozen=True, kw_only=True)
class RandomJPEG(CheckedStep):
    """Compresses with a random quality; uint8 or 0…1 in floating point."""

    quality: tuple[int, int] = (30, 95)
    """Least and greatest quality, from 1 to 100."""
    subsampling: str = "4:2:0"
    probability: float = 1.0

    def _check_fields(self) -> None:
        low, high = two(self.quality, "quality", "(least, greatest) of 1 to 100")
        if not (is_integer(low) and is_integer(high) and 1 <= low <= high <= 100):
            raise ValueError(f"quality must be (least, greatest) of 1 to 100, got {self.quality}")
        one_of(self.subsampling, tuple(SUBSAMPLINGS), "subsampling")
        check_share(self.probability, "probability")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Changes images alone."""
        draws, (low, high) = uniform(keys, 2), self.quality
        quality = low + jnp.floor(draws[:, 0] * (high + 1 - low)).astype(jnp.int32)
        compress = partial(jpeg, subsampling=self.subsampling, channel=layout.channel)
        images = compress(batch.images, quality, axes=layout.axes)
        chosen = expanded(draws[:, 1] < self.probability, images)
        return batch._replace(images=jnp.where(chosen, images, batch.images))


@dataclass(frozen=True, kw_only=True)
class Resize(CheckedStep):
    """Resizes all images alike, and masks by the nearest pixel."""

    size: int | tuple[int, int]
    """(height, width) of the result."""
    method: str = "bilinear"
    antialias: bool = True

    def _check_fields(self) -> None:
        checked_size(self.size, 2)
        checked_options(self.method, self.antialias)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Boxes and points are scaled."""
        rows, columns = size = checked_size(self.size, 2)
        height, width = size_of(batch, layout)
        change = partial(resize, size=size, axes=layout.axes)
        images = change(batch.images, method=self.method, antialias=self.antialias)
        masks = None if batch.masks is None else change(batch.masks, method="nearest-exact")
        zero = asarray([0.0])
        down, across = asarray([rows / height]), asarray([columns / width])
        matrix = matrix_of((across, zero, zero), (zero, down, zero))
        return moved(batch, images, masks, by_matrix(matrix), (rows, columns))


def _within(limits: Range, share: jax.Array) -> jax.Array:
    return limits[0] + (limits[1] - limits[0]) * share
