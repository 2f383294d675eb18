"""SPAN's training objective: Fast-SRGAN's pixel phase with SPAN as the generator."""

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.objective import FastSRGANObjective
from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import Span


def build_span_objective(config: SpanConfig) -> FastSRGANObjective:
    """One phase, `pretrain`, with the pixel loss alone: no weights to get, no discriminator."""
    losses = FastSRGANConfig(
        scale=config.scale, channels=config.channels, pixel_loss=config.pixel_loss
    )
    return FastSRGANObjective(losses, phases=("pretrain",), generator=Span(config))
