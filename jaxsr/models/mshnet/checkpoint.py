"""MSHNet with weights from a file: a published checkpoint or one that jaxsr exported.

The names tell the configuration but for the loss: widths and blocks are read off the shapes.
Published files hold a bare state dict, or one under `state_dict` or `net`, with or without a
`module.` prefix; jaxsr's hold the network alone or, named `network.…`, within its objective.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from jaxsr.errors import InputError
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet
from jaxsr.models.weight_files import load_weights, read_weights


def load_mshnet(path: Path) -> MSHNet:
    """The network in evaluation mode, built to fit the weights in `path`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged, refused, or not of an MSHNet.
    """
    weights = read_weights(path)
    inside = "network."
    if weights and all(name.startswith(inside) for name in weights):
        weights = {name.removeprefix(inside): value for name, value in weights.items()}
    network = MSHNet(config_of(weights, source=str(path)))
    load_weights(network, weights, source=str(path))
    return network.eval()


def config_of(weights: Mapping[str, Tensor], *, source: str) -> MSHNetConfig:
    """The configuration whose network has these weights' names and shapes.

    Raises:
      ValueError: the names are not MSHNet's.
    """
    widths: list[int] = []
    blocks: list[int] = []
    while (name := f"encoder_{len(widths)}.0.conv1.weight") in weights:
        widths.append(weights[name].shape[0])
        blocks.append(_count_blocks(weights, f"encoder_{len(blocks)}"))
    first, middle = weights.get("conv_init.weight"), weights.get("middle_layer.0.conv1.weight")
    if first is None or middle is None or not widths:
        raise InputError(
            f"{source} holds no MSHNet: it lacks conv_init, encoder_0 or middle_layer; "
            f"its names begin with {', '.join(list(weights)[:3])}"
        )
    widths.append(middle.shape[0])
    blocks.append(_count_blocks(weights, "middle_layer"))
    hidden = weights.get("middle_layer.0.ca.fc1.weight")
    ratio = middle.shape[0] // hidden.shape[0] if hidden is not None else 16
    return MSHNetConfig(
        channels=first.shape[1], widths=tuple(widths), blocks=tuple(blocks), attention_ratio=ratio
    )


def _count_blocks(weights: Mapping[str, Tensor], stage: str) -> int:
    count = 0
    while f"{stage}.{count}.conv1.weight" in weights:
        count += 1
    return count
