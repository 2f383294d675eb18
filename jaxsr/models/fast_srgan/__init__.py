"""Fast-SRGAN: super-resolution and restoration with a generator and a patch discriminator."""

from jaxsr.models.fast_srgan.config import LABELS, FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.fast_srgan.objective import FastSRGANObjective, build_objective

__all__ = [
    "LABELS",
    "Discriminator",
    "FastSRGANConfig",
    "FastSRGANObjective",
    "Generator",
    "build_objective",
]
