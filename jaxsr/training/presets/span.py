"""Options and presets of SPAN."""

from dataclasses import dataclass, field

from jaxsr.models.span.config import SpanConfig
from jaxsr.training.presets import photos
from jaxsr.training.presets.photos import PhotoRun
from jaxsr.training.task_config import TaskOptions


@dataclass(frozen=True, kw_only=True)
class SpanRun(PhotoRun):
    """Options of a SPAN run."""

    model: SpanConfig = field(default_factory=SpanConfig)
    """The network."""


QUICK = SpanRun(
    model=SpanConfig(width=24, depth=5, block="residual", expansion=None, pixel_loss="smooth_l1"),
    bicubic="matlab",
    lr=1e-3,
    **photos.QUICK,
)

# For a few dozen photos and an hour on one CPU core: these options made the included weights, see
# jaxsr/weights/README.md. In 400 steps residual blocks gained 0.6 dB over bicubic with a squared
# error and 0.5 with an absolute one; attention blocks gained 0.35. Photos at one size, colours
# kept, were overfit after 8,000 steps.
RESTORE = SpanRun(
    model=SpanConfig(width=48, depth=8, block="residual", expansion=None, pixel_loss="smooth_l1"),
    built_in=True,
    held_out=0.2,
    validation_px=1024,
    steps=16_000,
    batch=8,
    crop=128,
    crops_per_photo=64,
    fractions=(1.0, 0.8, 0.6),
    swap_colours=True,
    bicubic="matlab",
    optimizer="adam",
    lr=1e-3,
    schedule="cosine",
    warmup_steps=200,
    ema=0.999,
    log_every=100,
    validate_every=2_000,
    save_every=500,
)


class SpanPresets(TaskOptions):
    """Options and presets of SPAN."""

    Config = SpanRun
    presets = {"quick": QUICK, "restore": RESTORE}  # noqa: RUF012
    default_presets = ("quick", "restore")
