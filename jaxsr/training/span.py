"""Training SPAN: an enlarger that can be tiled exactly, on pixels alone.

Data and validation are those of every super-resolution family, `photo_task.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from jaxsr.interop.annotations import JsonObject
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import Term
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import Span
from jaxsr.training import photo_task
from jaxsr.training.photo_task import PhotoRun, PhotoTask


@dataclass(frozen=True, kw_only=True)
class SpanRun(PhotoRun):
    """Options of a SPAN run."""

    model: SpanConfig = field(default_factory=SpanConfig)
    """The network."""


QUICK = SpanRun(
    model=SpanConfig(width=24, depth=5, block="residual", expansion=None, pixel_loss="smooth_l1"),
    bicubic="matlab",
    lr=1e-3,
    **photo_task.QUICK,
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


class SpanTask(PhotoTask):
    """SPAN on photos: one phase, `pretrain`, with the pixel loss alone."""

    Config = SpanRun
    presets = {"quick": QUICK, "restore": RESTORE}  # noqa: RUF012
    default_presets = ("quick", "restore")
    config: SpanRun
    title = "span"

    @property
    def remat_blocks(self) -> Sequence[str]:
        return [f"blocks.{index}" for index in range(self.config.model.depth)]

    def networks(self) -> PictureObjective:
        model = self.config.model
        loss = Term("pixel", 1.0, PICTURE_LOSSES[model.pixel_loss])
        return PictureObjective(Span(model), pretrain=[loss])

    def builder(self) -> JsonObject:
        return {"family": "span", "config": asdict(self.config.model)}
