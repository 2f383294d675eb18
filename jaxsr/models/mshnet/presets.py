"""Recipes that train MSHNet: the paper's, and one in the manner of the BasicIRSTD toolbox.

The toolbox's way of training takes the same DNA-Net from 87 to 94 IoU on NUDT-SIRST.
"""

from dataclasses import dataclass
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.models.mshnet.config import MSHNetConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training hyper-parameters as plain data, for a run's configuration to start from."""

    optimizer: Literal["adam", "adamw", "sgd", "adagrad"]
    """torch's optimiser of that name, with torch's definition of its start and epsilon."""
    lr: float
    """Learning rate at `batch` images a step."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the optimiser's two moments, where it has them."""
    weight_decay: float = 0.0
    """Weight decay, as the optimiser understands it."""
    schedule: Literal["constant", "cosine"]
    """Course of the learning rate over the run."""
    batch: int
    """Images per step over the whole mesh."""
    epochs: int
    """Passes over the training list."""
    warmup_epochs: int
    """Epochs that train the finest head alone."""
    base: int
    """Side in pixels that images are scaled about (`augment="scale"`) and evaluated at."""
    crop: int
    """Side in pixels of the square that the network trains on."""
    augment: Literal["scale", "patch"]
    """Rescaled, flipped and blurred about `base`, or patches of the image as it is, flipped and
    turned, half of them with a target inside."""
    normalise: Literal["imagenet", "dataset"]
    """ImageNet's mean and deviation per channel, or those of the training list's gray values."""
    evaluate: Literal["base", "native"]
    """Image and mask resized to base × base, or as they are."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_epochs < self.epochs:
            raise InputError(
                f"warmup_epochs must be at least 0 and below epochs={self.epochs}, "
                f"got {self.warmup_epochs}: the fused output is trained after the warm-up only"
            )


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What to build and how to train it."""

    model: MSHNetConfig
    """The network and the form of its loss."""
    recipe: Recipe
    """The training hyper-parameters."""


PAPER = Preset(
    model=MSHNetConfig(loss="paper"),
    recipe=Recipe(
        optimizer="adagrad",
        lr=0.05,
        schedule="constant",
        batch=4,
        epochs=400,
        warmup_epochs=5,
        base=256,
        crop=256,
        augment="scale",
        normalise="imagenet",
        evaluate="base",
    ),
)

TOOLBOX = Preset(
    model=MSHNetConfig(loss="corrected"),
    recipe=Recipe(
        optimizer="adam",
        lr=5e-4,
        schedule="constant",
        batch=16,
        epochs=400,
        warmup_epochs=5,
        base=256,
        crop=256,
        augment="patch",
        normalise="dataset",
        evaluate="native",
    ),
)

PRESETS = {"mshnet-paper": PAPER, "mshnet-toolbox": TOOLBOX}
"""The presets by the name that the command line knows."""
