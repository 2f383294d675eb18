"""Steps that mix two images, and their labels.

Neighbours exchange: image 0 with 1, 2 with 3, and so on, so that shards of an even number of
images do not communicate. Batches are to be shuffled, as loaders do. Every image has a share of
its own, as timm's `mode="elem"`; torchvision draws one for a batch.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import number
from jaxsr.ops._augment.batch import (
    Augmented,
    CheckedStep,
    Layout,
    check_share,
    expanded,
    folded,
    log_gamma,
    size_of,
    uniform,
)
from jaxsr.ops._images import in_dtype_of, real_dtype
from jaxsr.ops._typed_jax import arange, asarray


@dataclass(frozen=True, kw_only=True)
class Mixup(CheckedStep):
    """Blends each image with its neighbour (Zhang et al., ICLR 2018)."""

    alpha: float = 1.0
    """Parameter of the Beta distribution of an image's own share; 1 is uniform."""
    probability: float = 1.0

    def _check_fields(self) -> None:
        number(self.alpha, "alpha", above=0)
        check_share(self.probability, "probability")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Refuses masks, boxes and points: a blend has none."""
        _check(batch, "Mixup", masks=False)
        own = _shares(keys, self.alpha, self.probability)
        real = batch.images.astype(real_dtype(batch.images))
        weight = expanded(own, real)
        images = in_dtype_of(batch.images, real * weight + _neighbours(real) * (1 - weight))
        return batch._replace(images=images, labels=_mixed(batch.labels, own))


@dataclass(frozen=True, kw_only=True)
class CutMix(CheckedStep):
    """Replaces a box of each image by its neighbour's (Yun et al., ICCV 2019)."""

    alpha: float = 1.0
    """Parameter of the Beta distribution of the share that is kept; 1 is uniform."""
    probability: float = 1.0

    def _check_fields(self) -> None:
        number(self.alpha, "alpha", above=0)
        check_share(self.probability, "probability")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Cuts masks alike; refuses boxes and points. Labels have the shares of the areas."""
        _check(batch, "CutMix", masks=True)
        height, width = size_of(batch, layout)
        side = 0.5 * jnp.sqrt(1 - _shares(keys, self.alpha, self.probability))
        place = uniform(folded(keys, 1), 2)
        ends: list[tuple[jax.Array, jax.Array]] = []
        for k, extent in enumerate((height, width)):
            middle, half = jnp.floor(place[:, k] * extent), jnp.floor(side * extent)
            ends.append((jnp.maximum(middle - half, 0), jnp.minimum(middle + half, extent)))
        (top, bottom), (left, right) = ends
        own = 1 - (bottom - top) * (right - left) / (height * width)

        def pasted(x: jax.Array) -> jax.Array:
            inside = asarray(True)
            for axis, (start, stop) in zip(layout.axes, ends, strict=True):
                shape = [1] * x.ndim
                shape[axis] = x.shape[axis]
                position = arange(x.shape[axis]).reshape(shape)
                inside &= (position >= expanded(start, x)) & (position < expanded(stop, x))
            return jnp.where(inside, _neighbours(x), x)

        masks = None if batch.masks is None else pasted(batch.masks)
        labels = _mixed(batch.labels, own)
        return batch._replace(images=pasted(batch.images), masks=masks, labels=labels)


def _check(batch: Augmented, name: str, *, masks: bool) -> None:
    count = batch.images.shape[0]
    if count % 2:
        raise ValueError(f"{name} needs an even batch, got {count} images; leave one out")
    if batch.boxes is not None or batch.points is not None:
        raise ValueError(f"{name} cannot mix boxes or points; leave them out")
    if batch.masks is not None and not masks:
        raise ValueError(f"{name} cannot mix masks; leave them out, or use CutMix")


def _shares(keys: jax.Array, alpha: float, probability: float) -> jax.Array:
    """(N,) of every image the share that stays its own."""

    def draw(key: jax.Array) -> jax.Array:
        share, chance = jax.random.split(key)
        mine, other = log_gamma(share, alpha, 2)
        own = jax.nn.sigmoid(mine - other)
        return jnp.where(jax.random.uniform(chance) < probability, own, 1.0)

    return jax.vmap(draw)(folded(keys, 0))


def _neighbours(x: jax.Array) -> jax.Array:
    pairs = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
    return jnp.flip(pairs, 1).reshape(x.shape)


def _mixed(labels: jax.Array | None, own: jax.Array) -> jax.Array | None:
    if labels is None:
        return None
    weight = expanded(own, labels)
    return labels * weight + _neighbours(labels) * (1 - weight)
