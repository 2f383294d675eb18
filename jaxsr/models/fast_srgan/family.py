"""Fast-SRGAN among the model families."""

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.registry import Family, Weights


def recognise(weights: Weights) -> JsonObject | None:
    """The configuration's fields from a generator's weights; None for another network's."""
    if not {"neck.0.weight", "stem.0.conv1.weight", "head.0.weight"} <= set(weights):
        return None
    neck = weights["neck.0.weight"]
    blocks = {name.split(".")[1] for name in weights if name.startswith("stem.")}
    doublings = {name.split(".")[1] for name in weights if name.startswith("upsampling.")}
    # InstanceNorm leaves no trace in a state dict, but no bias either.
    norm = "batch" if "stem.0.bn1.weight" in weights else "instance"
    if "stem.0.conv1.bias" in weights:
        norm = "none"
    if norm != "instance":  # the published network's, which predicts the image
        raise InputError(
            f"Fast-SRGAN's weights (norm {norm}) do not say whether they predict the image or its "
            "difference to bicubic; give the .safetensors file of their run, or export them with "
            "its metadata (jaxsr.interop.weights.export_weights)"
        )
    return {
        "scale": 2 ** len(doublings),
        "channels": neck.shape[1],
        "width": neck.shape[0],
        "depth": len(blocks),
        "block": "mobile" if weights["stem.0.conv1.weight"].shape[1] == 1 else "residual",
        "norm": norm,
    }


FAMILY = Family(
    kind="restorer",
    config=FastSRGANConfig,
    network=Generator,
    small=FastSRGANConfig(width=32, depth=4),
    recognise=recognise,
    prefix="generator.",
)
