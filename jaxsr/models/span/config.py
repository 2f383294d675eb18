"""Configuration of the SPAN family. Sizes are in pixels, intensities in [-1, 1]."""

from dataclasses import dataclass
from typing import Literal

from jaxsr.interop.fields import check_fields, number


@dataclass(frozen=True, kw_only=True)
class SpanConfig:
    """A small network without normalisation; checked when built, before any device is touched."""

    scale: Literal[1, 2, 4] = 4
    """Enlargement per side; 1 restores detail without changing the size."""
    channels: Literal[1, 3] = 3
    """Image channels: 1 for luma (or gray), 3 for RGB."""
    width: int = number(48, least=1, most=2**12)
    """Feature channels."""
    depth: int = number(6, least=2, most=2**10)
    """Number of blocks, at least 2, because the first and the last differ."""
    block: Literal["attention", "residual"] = "attention"
    """attention: SPAN's block of three 3×3 convolutions. residual: EDSR's block of two, which
    learns in fewer steps."""
    expansion: int | None = number(2, least=1, most=64)
    """Widening inside a convolution's trained factors; None: train the plain convolution."""
    pixel_loss: Literal["smooth_l1", "l1"] = "l1"
    """Pixel loss of training."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def receptive_radius(self) -> int:
        """Input pixels to every side that an output pixel depends on: exact tiles overlap by it."""
        per_block = 3 if self.block == "attention" else 2
        return per_block * self.depth + 3
