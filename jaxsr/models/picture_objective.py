"""A generator's two phases: alone on the images' losses, then against a discriminator.

A batch holds `low` (B, C, h, w) and `high` (B, C, scale·h, scale·w); in the adversarial phase also
`label_real`, `label_fake` and `label_generator`, the targets of the discriminator's logits.

The players' order and losses are those of https://github.com/HasnainRaz/Fast-SRGAN: the
discriminator moves first, on the output of the generator as it stands, then the generator against
the moved discriminator.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.models.losses.adversarial import logit_loss
from jaxsr.models.losses.terms import Term, register_losses, weighted_sum
from jaxsr.models.losses.weights import ADVERSARIAL
from jaxsr.models.outputs import answer_of, tensors_of

PRETRAIN = Phase(name="pretrain", players=(Player(network="generator", loss="pretrain_loss"),))
ADVERSARIAL_PHASE = Phase(
    name="adversarial",
    players=(
        Player(network="discriminator", loss="discriminator_loss", through_shared=False),
        Player(network="generator", loss="generator_loss"),
    ),
)

Terms = tuple[Tensor, dict[str, Tensor]]


class PictureObjective(Objective):
    """The networks and losses of one run on images."""

    def __init__(
        self,
        generator: nn.Module,
        *,
        pretrain: Sequence[Term] = (),
        adversarial: Sequence[Term] = (),
        discriminator: nn.Module | None = None,
        value_range: tuple[float, float] | None = None,
    ) -> None:
        """Args:
        generator: takes `low`; its result is compared with `high`. pretrain: losses of the first
        phase; if empty, the phase is left out. adversarial: losses of the second phase, including
        `ADVERSARIAL`; if empty, it is left out. discriminator: gives logits of images; for the
        second phase. value_range: intensities of black and white in the batch, which the losses are
        to see as 0
          and 1. Default: they see the images as they are.
        """
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.perceptual: nn.Module | None = None
        phases = ((PRETRAIN, pretrain), (ADVERSARIAL_PHASE, adversarial))
        self.phases = tuple(phase for phase, terms in phases if terms)
        self._pretrain, self._adversarial = tuple(pretrain), tuple(adversarial)
        self._value_range = value_range
        register_losses(self, (*pretrain, *adversarial))

    def share(self, batch: Batch) -> dict[str, Tensor]:
        """The generator's output for the batch's low images."""
        return {"fake": answer_of(self.generator(batch["low"]))}

    def pretrain_loss(self, shared: Batch, batch: Batch) -> Terms:
        """The weighted sum of the first phase's losses; metrics are unweighted."""
        return self._sum(self._pretrain, shared["fake"], batch)

    def discriminator_loss(self, shared: Batch, batch: Batch) -> Terms:
        """Half the cross-entropy on real images plus half of it on generated ones."""
        real_logits, fake_logits = self._logits(batch["high"]), self._logits(shared["fake"])
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
        """The weighted sum of the second phase's losses; metrics are unweighted."""
        return self._sum(self._adversarial, shared["fake"], batch)

    def _sum(self, terms: Sequence[Term], fake: Tensor, batch: Batch) -> Terms:
        prediction, target = self._unit(fake), self._unit(batch["high"])
        metrics = {
            term.name: logit_loss(self._logits(fake), batch["label_generator"])
            if term.name == ADVERSARIAL
            else term.value(prediction, target)
            for term in terms
        }
        return weighted_sum((term.weight, metrics[term.name]) for term in terms), metrics

    def _unit(self, pictures: Tensor) -> Tensor:
        if self._value_range in (None, (0.0, 1.0)):
            return pictures
        low, high = self._value_range
        return (pictures - low) / (high - low)

    def _logits(self, pictures: Tensor) -> Tensor:
        assert self.discriminator is not None
        logits, *others = tensors_of(self.discriminator(pictures), name="--discriminator")
        if others:
            raise InputError(
                f"--discriminator returned {1 + len(others)} tensors; wrap it in a module that "
                "returns one, of logits for each image"
            )
        # One logit an image, or several that are not map: each against its image's label.
        return logits if logits.ndim == 4 else logits.reshape(len(logits), -1, 1, 1)
