"""Options and presets of Fast-SRGAN."""

from dataclasses import dataclass, field

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.training.presets import photos
from jaxsr.training.presets.photos import AdversarialRun
from jaxsr.training.task_config import TaskOptions


@dataclass(frozen=True, kw_only=True)
class FastSRGANRun(AdversarialRun):
    """Options of a Fast-SRGAN run."""

    model: FastSRGANConfig = field(default_factory=FastSRGANConfig)
    """The networks and the weights of the losses."""


# Without normalisation there are no statistics to settle, and the network only adds to the bicubic
# image.
QUICK = FastSRGANRun(
    model=FastSRGANConfig(
        width=24, depth=4, norm="none", predict="residual", perceptual_weight=0.0
    ),
    lr=2e-3,
    **photos.QUICK,
)

# The published forms. Their sources give no lengths: these suit some thousand photos. Weight decay
# of the first is torch's default for AdamW, which the public code keeps.
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

# The source gives no warm-up that leaves steps for the second phase: a tenth here.
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


class FastSRGANPresets(TaskOptions):
    """Options and presets of Fast-SRGAN."""

    Config = FastSRGANRun
    presets = {  # noqa: RUF012
        "quick": QUICK,
        "super-resolution": SUPER_RESOLUTION,
        "restoration": RESTORATION,
    }
    # The published forms need weights that are installed separately, so they are never the default.
    default_presets = ("quick", "quick")
