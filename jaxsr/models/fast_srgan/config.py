"""The one configuration of the Fast-SRGAN family: super-resolution and restoration forms alike.

Sizes are in pixels, intensities of images in [-1, 1]. Defaults are the super-resolution form of
https://github.com/HasnainRaz/Fast-SRGAN. Presets of both: `jaxsr/training/presets/fast_srgan.py`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.interop.fields import check_fields, number

Norm = Literal["instance", "batch", "none"]

LABELS = ("label_real", "label_fake", "label_generator")
"""Batch keys of the random targets; the data pipeline draws them from the fields so named."""


@dataclass(frozen=True, kw_only=True)
class FastSRGANConfig:
    """Both networks and their losses; checked when built, before any device is touched."""

    scale: Literal[1, 2, 4] = 4
    """Enlargement per side; 1 restores detail without changing the size."""
    channels: Literal[1, 3] = 3
    """Image channels: 1 for luma (or gray), 3 for RGB."""
    width: int = number(64, least=1, most=2**12)
    """Feature channels of the generator."""
    depth: int = number(8, least=1, most=2**10)
    """Blocks of the generator between its neck and its bottleneck."""
    block: Literal["residual", "mobile"] = "residual"
    """residual: two 3×3 convolutions. mobile: one depthwise 3×3 and one 1×1, a sixteenth of the
    arithmetic."""
    norm: Norm = "instance"
    """Generator's normalisation. With instance each pixel depends on the whole input, so tiles
    cannot be exact."""
    predict: Literal["image", "residual"] = "image"
    """image: tanh output, as in the public model. residual: the output is added to the enlarged
    input."""
    discriminator_width: int = number(64, least=1, most=2**12)
    """Feature channels of the discriminator's first convolution; later ones have up to 8 times as
    many."""
    discriminator_layers: int = number(7, least=1, most=64)
    """Normalised convolutions of the discriminator between its neck and its 1×1 head."""
    discriminator_layout: Literal["alternating", "strided"] = "alternating"
    """alternating: strides 2, 1, 2, …, and the width doubles at each 1. strided: stride 2 and
    doubling throughout."""
    discriminator_norm: Norm = "instance"
    """Discriminator's normalisation."""
    pixel_loss: Literal["smooth_l1", "l1"] = "smooth_l1"
    """Distance between pixels; smooth_l1 is quadratic below 1, half of the intensity range."""
    pixel_weight: float = number(0.0, least=0)
    """Weight of the pixel loss in the adversarial phase; the pretrain phase has no other loss."""
    perceptual_weight: float = number(0.5, least=0)
    """Weight of SmoothL1 between VGG16 features up to relu5_3, in the adversarial phase."""
    adversarial_weight: float = number(0.05, least=0)
    """Weight of the generator's binary cross-entropy (the public code's 0.5 · 0.1)."""
    label_real: tuple[float, float] = (0.8, 1.1)
    """Range of the discriminator's targets for real images, drawn uniformly per logit."""
    label_fake: tuple[float, float] = (0.0, 0.3)
    """Range of the discriminator's targets for generated images."""
    label_generator: tuple[float, float] = (0.7, 1.0)
    """Range of the generator's targets for its images."""

    def __post_init__(self) -> None:
        check_fields(self)
        weights = ("pixel_weight", "perceptual_weight", "adversarial_weight")
        if not any(getattr(self, name) for name in weights):
            raise InputError(f"{', '.join(weights)} are all 0; at least one must be positive")
        for name in LABELS:
            low, high = getattr(self, name)
            # A mean target above 1 rewards infinite logits: the cross-entropy has no minimum.
            if not (low <= high and 0 <= (low + high) / 2 <= 1):
                raise InputError(
                    f"{name} must be (low, high) with low ≤ high and a mean within 0 and 1, "
                    f"got ({low}, {high})"
                )

    @property
    def discriminator_blocks(self) -> tuple[tuple[int, int], ...]:
        """(width, stride) of each normalised convolution of the discriminator, in order."""
        blocks = []
        for index in range(self.discriminator_layers):
            if self.discriminator_layout == "strided":
                doublings, stride = index, 2
            else:
                doublings, stride = (index + 1) // 2, 2 - index % 2
            blocks.append((self.discriminator_width * 2 ** min(doublings, 3), stride))
        return tuple(blocks)

    @property
    def discriminator_stride(self) -> int:
        """Pixels of the image per patch logit, along each side."""
        return math.prod(stride for _, stride in self.discriminator_blocks)

    @property
    def label_ranges(self) -> dict[str, tuple[float, float]]:
        """Ranges of the uniform draws that an adversarial batch carries, by batch key."""
        return {name: getattr(self, name) for name in LABELS}

    def label_shape(self, *, crop: int) -> tuple[int, int, int]:
        """Shape of one image's labels: one draw per patch logit of a `crop` × `crop` image.

        A pipeline that draws one label per image, shape (1, 1, 1), is served as well.
        """
        side = math.ceil(crop / self.discriminator_stride)
        return (1, side, side)

    @property
    def receptive_radius(self) -> int | None:
        """Input pixels to every side that an output pixel depends on; None where it is all of them.

        A tile that overlaps its neighbours by this much gives exactly the whole image's output.
        """
        if self.norm == "instance":
            return None
        per_block = 2 if self.block == "residual" else 1
        radius, step = 1.0 + per_block * self.depth + 1.0, 1.0
        for _ in range(self.scale.bit_length() - 1):
            radius, step = radius + step, step / 2
        radius += step  # the head, at the output's resolution
        return math.ceil(radius)
