"""Training Fast-SRGAN: a generator on pixels, then against a discriminator.

Data and validation are those of every super-resolution family, `super_resolution.py`.
"""

from dataclasses import asdict, dataclass, field

from jaxsr.errors import MissingFileError
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.objective import build_objective
from jaxsr.training.adversarial import AdversarialRun
from jaxsr.training.networks import Networks
from jaxsr.training.super_resolution import SuperResolution


@dataclass(frozen=True, kw_only=True)
class FastSRGANRun(AdversarialRun):
    """Options of a Fast-SRGAN run."""

    model: FastSRGANConfig = field(default_factory=FastSRGANConfig)
    """The networks and the losses' weights."""


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
DEFAULT_PRESETS = ("quick", "super-resolution")
"""`quick` for the few built-in photos, the published form for a data set."""


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
        title="fast-srgan",
        loss=config.model.pixel_loss,
        description={"family": "fast-srgan", "config": asdict(config.model)},
        labels=config.model.label_ranges if "adversarial" in phases else None,
    )
