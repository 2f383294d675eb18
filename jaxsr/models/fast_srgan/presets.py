"""The two published forms of Fast-SRGAN: a network configuration and the recipe that trained it."""

from dataclasses import dataclass
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.models.fast_srgan.config import FastSRGANConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training hyper-parameters as plain data, for a run's configuration to start from."""

    optimizer: Literal["adam", "adamw"]
    """torch's optimiser of that name: `adam` adds its weight decay to the gradient."""
    lr: float
    """Learning rate of both networks at `batch` images a step."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the optimiser's two moments."""
    weight_decay: float
    """Weight decay, as the optimiser understands it."""
    schedule: Literal["constant", "cosine"]
    """Course of the learning rate over each run."""
    batch: int
    """Images per step over the whole mesh."""
    crop: int
    """Side of the high-resolution crop in pixels."""
    pretrain_share: float
    """Part of the run's steps in which the generator moves alone; the rest is adversarial."""

    def __post_init__(self) -> None:
        # The predecessor's default gave every epoch to the warm-up: no adversarial step ran.
        if not 0 < self.pretrain_share < 1:
            raise InputError(
                f"pretrain_share must be above 0 and below 1, got {self.pretrain_share}; for a run "
                "without an adversarial phase name the phases instead"
            )


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What to build and how to train it."""

    model: FastSRGANConfig
    """The networks and the losses' weights."""
    recipe: Recipe
    """The training hyper-parameters."""


SUPER_RESOLUTION = Preset(
    model=FastSRGANConfig(),
    # Weight decay is torch's default for AdamW, which the public code leaves alone; its phases are
    # given equal iterations.
    recipe=Recipe(
        optimizer="adamw",
        lr=1e-4,
        weight_decay=1e-2,
        schedule="constant",
        batch=24,
        crop=96,
        pretrain_share=0.5,
    ),
)

RESTORATION = Preset(
    model=FastSRGANConfig(
        scale=1,
        channels=1,
        discriminator_layers=4,
        discriminator_layout="strided",
        pixel_weight=1.0,
        perceptual_weight=1.0,
        adversarial_weight=1e-3,
    ),
    # The source names no warm-up that leaves steps for the second phase: a tenth here.
    recipe=Recipe(
        optimizer="adam",
        lr=1e-4,
        weight_decay=1e-4,
        schedule="cosine",
        batch=8,
        crop=96,
        pretrain_share=0.1,
    ),
)

PRESETS = {"super-resolution": SUPER_RESOLUTION, "restoration": RESTORATION}
"""The presets by the name that the command line knows."""
