"""MSHNet among the model families."""

from itertools import count, takewhile

from jaxsr.interop.annotations import JsonObject
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet
from jaxsr.models.registry import Family, Weights


def recognise(weights: Weights) -> JsonObject | None:
    """The configuration's fields, but for the loss, from the weights; None for another's."""
    middle = weights.get("middle_layer.0.conv1.weight")
    stages = [f"encoder_{k}" for k in _count(weights, "encoder_{}.0.conv1.weight")]
    if middle is None or not stages or "conv_init.weight" not in weights:
        return None
    hidden = weights.get("middle_layer.0.ca.fc1.weight")
    stages.append("middle_layer")
    return {
        "channels": weights["conv_init.weight"].shape[1],
        "widths": tuple(weights[f"{stage}.0.conv1.weight"].shape[0] for stage in stages),
        "blocks": tuple(len(_count(weights, f"{stage}.{{}}.conv1.weight")) for stage in stages),
        "attention_ratio": middle.shape[0] // hidden.shape[0] if hidden is not None else 16,
    }


def _count(weights: Weights, pattern: str) -> list[int]:
    return list(takewhile(lambda k: pattern.format(k) in weights, count()))


FAMILY = Family(
    kind="detector",
    config=MSHNetConfig,
    network=MSHNet,
    small=MSHNetConfig(),
    recognise=recognise,
    prefix="network.",
)
