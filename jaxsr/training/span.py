"""Training SPAN: an enlarger that can be tiled exactly, on pixels alone.

Data and validation are those of every super-resolution family, `super_resolution.py`.
"""

from dataclasses import asdict, dataclass, field

from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.objective import build_span_objective
from jaxsr.training.networks import Networks
from jaxsr.training.super_resolution import PhotoRun, SuperResolution


@dataclass(frozen=True, kw_only=True)
class SpanRun(PhotoRun):
    """Options of a SPAN run."""

    model: SpanConfig = field(default_factory=SpanConfig)
    """The network."""


CONFIG = SpanRun

QUICK = SpanRun(
    model=SpanConfig(width=24, depth=5, block="residual", expansion=None, pixel_loss="smooth_l1"),
    steps=400,
    batch=16,
    crop=96,
    crops_per_photo=64,
    bicubic="matlab",
    optimizer="adam",
    lr=1e-3,
    schedule="cosine",
    warmup_steps=20,
    ema=0.99,
    validate_every=100,
)

# For a few dozen photos and an hour of one CPU core: it made the shipped weights, as
# jaxsr/weights/README.md says. In 400 steps residual blocks with a squared error gained 0.6 dB over
# bicubic, with an absolute one 0.5, and attention blocks 0.35; photos at one size, colours kept,
# were overfit after 8,000 steps.
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

PRESET_RUNS = {"quick": QUICK, "restore": RESTORE}
DEFAULT_PRESETS = ("quick", "restore")
"""`quick` for the few built-in photos, `restore` for a data set."""


def build(config: SpanRun) -> SuperResolution:
    """The task of a run."""
    return SuperResolution(config, "span", _networks)


def _networks(config: SpanRun) -> Networks:
    return Networks(
        objective=build_span_objective(config.model),
        blocks=tuple(f"generator.blocks.{index}" for index in range(config.model.depth)),
        title="span",
        loss=config.model.pixel_loss,
        description={"family": "span", "config": asdict(config.model)},
    )
