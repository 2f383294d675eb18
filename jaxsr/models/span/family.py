"""SPAN among the model families."""

import math

from jaxsr.interop.annotations import JsonObject
from jaxsr.models.registry import Family, Weights
from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import Span, merge


def recognise(weights: Weights) -> JsonObject | None:
    """The configuration's fields from the weights; None for another network's."""
    if not {"conv_cat.weight", "upsampler.0.weight"} <= set(weights):
        return None
    factored = "conv_1.sk.weight" in weights
    channels = weights["conv_1.sk.weight" if factored else "conv_1.weight"].shape[1]
    return {
        "scale": math.isqrt(weights["upsampler.0.weight"].shape[0] // channels),
        "channels": channels,
        "width": weights["conv_cat.weight"].shape[0],
        "depth": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "block": "attention" if any(".c3_r." in name for name in weights) else "residual",
        "expansion": weights["conv_1.conv.0.weight"].shape[0] // channels if factored else None,
    }


def _merged(network: Span) -> Span:
    return merge(network) if network.config.expansion is not None else network


FAMILY = Family(
    kind="restorer",
    config=SpanConfig,
    network=Span,
    small=SpanConfig(width=24, depth=4, expansion=None),
    recognise=recognise,
    prefix="generator.",
    finish=_merged,
)
