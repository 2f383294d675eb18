"""Steps that change pixels where they are: colours, blur, erased boxes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import number
from jaxsr.ops._augment.batch import (
    Augmented,
    CheckedStep,
    Layout,
    Range,
    check_range,
    check_share,
    size_of,
    uniform,
)
from jaxsr.ops._augment.geometric import random_box
from jaxsr.ops._images import in_dtype_of, real_dtype
from jaxsr.ops._typed_jax import arange, asarray
from jaxsr.ops.adjust import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation


@dataclass(frozen=True, kw_only=True)
class ColorJitter(CheckedStep):
    """Brightness, contrast, saturation and hue of RGB images, in this order."""

    brightness: float = 0.0
    """Factors lie within 1 - x and 1 + x, and not below 0."""
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    """Greatest shift to either side, in turns of the colour circle."""

    def _check_fields(self) -> None:
        for name in ("brightness", "contrast", "saturation", "hue"):
            number(getattr(self, name), name, least=0)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Changes images alone."""
        draws = uniform(keys, 4, -1.0)
        images, (axes, channel) = batch.images, layout
        if self.brightness:
            factor = jnp.maximum(1 + draws[:, 0] * self.brightness, 0)
            images = adjust_brightness(images, factor, axes=axes)
        if self.contrast:
            factor = jnp.maximum(1 + draws[:, 1] * self.contrast, 0)
            images = adjust_contrast(images, factor, axes=axes, channel=channel)
        if self.saturation:
            factor = jnp.maximum(1 + draws[:, 2] * self.saturation, 0)
            images = adjust_saturation(images, factor, axes=axes, channel=channel)
        if self.hue:
            images = adjust_hue(images, draws[:, 3] * self.hue, axes=axes, channel=channel)
        return batch._replace(images=images)


@dataclass(frozen=True, kw_only=True)
class RandomErasing(CheckedStep):
    """Fills a box of some images, as torchvision's transform of this name."""

    probability: float = 0.5
    scale: Range = (0.02, 0.33)
    """Least and greatest share of the image's area."""
    ratio: Range = (0.3, 3.3)
    """Least and greatest width / height."""
    fill: float = 0.0

    def _check_fields(self) -> None:
        check_share(self.probability, "probability")
        check_range(self.scale, "scale")
        check_range(self.ratio, "ratio")
        number(self.fill, "fill")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Changes images alone."""
        height, width = size_of(batch, layout)
        outside = in_dtype_of(batch.images, asarray(self.fill, real_dtype(batch.images)))

        def erase(key: jax.Array, image: jax.Array) -> jax.Array:
            chance, place = jax.random.split(key)
            x1, y1, x2, y2 = random_box(
                place, height=height, width=width, scale=self.scale, ratio=self.ratio
            )
            rows, columns = arange(height)[:, None], arange(width)
            inside = (rows >= y1) & (rows < y2) & (columns >= x1) & (columns < x2)
            inside &= jax.random.uniform(chance) < self.probability
            shape = [1] * image.ndim
            for axis, extent in zip(layout.axes, (height, width), strict=True):
                shape[axis] = extent
            return jnp.where(inside.reshape(shape), outside, image)

        return batch._replace(images=jax.vmap(erase)(keys, batch.images))
