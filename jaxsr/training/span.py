"""Training SPAN: an enlarger that can be tiled exactly, trained on pixels alone.

Data and validation are those of every super-resolution family, see `photo_task.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict

from jaxsr.interop.annotations import JsonObject
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import Term
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.models.span.generator import Span
from jaxsr.training.photo_task import PhotoTask
from jaxsr.training.presets.span import SpanPresets, SpanRun


class SpanTask(SpanPresets, PhotoTask):
    """SPAN on photos: one phase, `pretrain`, with the pixel loss alone."""

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
