"""Fast-SRGAN: super-resolution and restoration with a generator and a patch discriminator."""

from jaxsr.models.fast_srgan.config import LABELS, FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator

__all__ = [
    "LABELS",
    "Discriminator",
    "FastSRGANConfig",
    "Generator",
]
