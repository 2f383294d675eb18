"""The operations of RandAugment, TrivialAugment and AugMix, one for each image.

Every operation is computed for the whole batch and chosen image by image; the five that move
pixels are one warp. Images are uint8 or uint16, or 0…1 in floating point, where results are
clipped. uint8 results are Pillow's.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._augment.batch import Augmented, Layout, expanded, matrix_of, size_of
from jaxsr.ops._augment.geometric import warped
from jaxsr.ops._images import INTEGER_DTYPES, peak_of
from jaxsr.ops._typed_jax import asarray, ones_like, zeros_like
from jaxsr.ops.adjust import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    posterize,
    solarize,
)
from jaxsr.ops.histograms import autocontrast, equalize
from jaxsr.ops.warps import rotation_matrix

OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate",
    "Brightness", "Color", "Contrast", "Sharpness",
    "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
"""By torchvision's names. The first six move pixels."""
SIGNED = OPERATIONS[1:10]
"""Operations whose magnitude has a random sign."""
IDENTITY = 0


def apply_operation(
    batch: Augmented,
    layout: Layout,
    operation: jax.Array,
    magnitude: jax.Array,
    method: str,
    fill: float,
) -> Augmented:
    """The batch, each image changed by its operation.

    Args:
      batch: images, and the masks, boxes and points that move with them.
      layout: its axes.
      operation: (N,) places in `OPERATIONS`.
      magnitude: (N,): slopes, whole pixels, degrees, factors less 1, bits, and shares of white.
      method, fill: of the warp, see `warp_affine`.
    """
    images = batch.images
    for name, change in _changes(layout).items():
        changed = change(batch.images, magnitude)
        if name in SIGNED and images.dtype not in INTEGER_DTYPES:
            changed = jnp.clip(changed, 0, 1)
        chosen = expanded(operation == OPERATIONS.index(name), images)
        images = jnp.where(chosen, changed, images)
    matrix = _matrix(operation, magnitude, size_of(batch, layout))
    return warped(batch._replace(images=images), layout, matrix, method, "constant", fill)


def _changes(layout: Layout) -> dict[str, Callable[[jax.Array, jax.Array], jax.Array]]:
    axes, channel = layout

    def blended(adjust: Callable[..., jax.Array], images: jax.Array, m: jax.Array) -> jax.Array:
        return adjust(images, 1 + m, axes=axes)

    def bits(images: jax.Array, m: jax.Array) -> jax.Array:
        return posterize(images, m.astype(jnp.int32), axes=axes)

    def light(images: jax.Array, m: jax.Array) -> jax.Array:
        return solarize(images, m * peak_of(images), axes=axes)

    def stretched(images: jax.Array, _: jax.Array) -> jax.Array:
        return autocontrast(images, axes=axes)

    def levelled(images: jax.Array, _: jax.Array) -> jax.Array:
        return equalize(images, axes=axes)

    return {
        "Brightness": partial(blended, adjust_brightness),
        "Color": partial(blended, partial(adjust_saturation, channel=channel)),
        "Contrast": partial(blended, partial(adjust_contrast, channel=channel)),
        "Sharpness": partial(blended, adjust_sharpness),
        "Posterize": bits,
        "Solarize": light,
        "AutoContrast": stretched,
        "Equalize": levelled,
    }


def _matrix(operation: jax.Array, magnitude: jax.Array, size: tuple[int, int]) -> jax.Array:
    """(N, 2, 3) of pixels' centres; shears leave the upper left corner of the image."""

    def only(name: str, otherwise: float = 0.0) -> jax.Array:
        return jnp.where(operation == OPERATIONS.index(name), magnitude, otherwise)

    across, down = only("ShearX"), only("ShearY")
    # Cut off, as torchvision's `int`.
    right, below = jnp.trunc(only("TranslateX")), jnp.trunc(only("TranslateY"))
    one = ones_like(magnitude)
    sheared = matrix_of(
        (one, -across, right - across / 2), (zeros_like(one) - down, one, below - down / 2)
    )
    middle = (size[0] - 1) / 2, (size[1] - 1) / 2
    turned = rotation_matrix(only("Rotate"), one, middle)
    is_turned = operation == OPERATIONS.index("Rotate")
    return jnp.where(is_turned[:, None, None], turned, sheared)


class Space:
    """Magnitudes of operations in so many steps, and draws of both."""

    def __init__(self, tables: dict[str, np.ndarray | None], bins: int) -> None:
        self.operations = asarray([OPERATIONS.index(name) for name in tables], jnp.int32)
        self.signed = asarray([name in SIGNED for name in tables])
        rows = [np.zeros(bins) if row is None else row for row in tables.values()]
        self.magnitudes = asarray(np.stack(rows), jnp.float32)

    def draw(
        self, keys: jax.Array, step: jax.Array | int, limit: int | None
    ) -> tuple[jax.Array, jax.Array]:
        """(N,) operations and their magnitudes.

        Args:
          keys: one for each image.
          step: the magnitude's, where it is fixed.
          limit: steps to draw from, where it is not.
        """

        def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            which, strength, sign = jax.random.split(key, 3)
            place = jax.random.randint(which, (), 0, self.operations.shape[0])
            chosen = step if limit is None else jax.random.randint(strength, (), 0, limit)
            magnitude = self.magnitudes[place, chosen]
            negative = self.signed[place] & jax.random.bernoulli(sign)
            return self.operations[place], jnp.where(negative, -magnitude, magnitude)

        return jax.vmap(one)(keys)
