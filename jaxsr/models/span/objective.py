"""SPAN's training objective: the pixel phase of `picture_objective` alone."""

from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import Term
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import Span


def build_span_objective(config: SpanConfig) -> PictureObjective:
    """One phase, `pretrain`, with the pixel loss alone: no weights to get, no discriminator."""
    loss = Term("pixel", 1.0, PICTURE_LOSSES[config.pixel_loss])
    return PictureObjective(Span(config), pretrain=[loss])
