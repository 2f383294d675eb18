"""Records what the authors' packages compute for the cases of `test_losses.py`.

    pip install --no-deps pytorch-msssim focal-frequency-loss DISTS_pytorch
    python -m tests.models.record_losses

writes `recorded_losses.json` beside this file, in float64. The tests compare with that file.
"""

import json
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jaxsr.models.trunks import VGG16

RECORDED = Path(__file__).with_name("recorded_losses.json")
SIZES = {
    "ms_ssim": [(2, 3, 176, 192), (1, 1, 192, 208)],
    "focal_frequency": [(2, 3, 17, 24), (1, 1, 16, 16)],
    "dists": [(2, 3, 64, 48), (1, 3, 33, 51)],
}


def recorded() -> dict[str, list[float]]:
    """The losses by name, one for each size."""
    return json.loads(RECORDED.read_text())


def case(*size: int) -> tuple[Tensor, Tensor]:
    """Smooth pictures in 0…1 and what noise makes of them."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[: size[2], : size[3]]
    phases = rng.random((*size[:2], 1, 1)) * 6
    target = 0.5 + 0.4 * np.sin(rows / 5 + phases) * np.cos(columns / 7 - phases)
    image = np.clip(target + 0.1 * rng.standard_normal(size), 0, 1)
    return torch.from_numpy(image), torch.from_numpy(target)


def vgg16() -> VGG16:
    """VGG16 with random weights that keep the features' size."""
    rng, network = np.random.default_rng(1), VGG16()
    for layer in network.features:
        if isinstance(layer, nn.Conv2d):
            scale = (2 / layer.weight[0].numel()) ** 0.5
            values = scale * rng.standard_normal(tuple(layer.weight.shape))
            layer.weight.data = torch.from_numpy(values)
            assert layer.bias is not None
            layer.bias.data = torch.from_numpy(0.1 * rng.standard_normal(len(layer.bias)))
    return network.double()


def dists_weights() -> tuple[Tensor, Tensor]:
    """Weights of texture and structure."""
    values = np.random.default_rng(2).random((2, 1475)) + 0.5
    return torch.from_numpy(values[0]), torch.from_numpy(values[1])


def _dists(image: Tensor, target: Tensor) -> Tensor:
    # Only torchvision's list of layers is stood in for.
    layers = types.SimpleNamespace(features=vgg16().features)
    torchvision: Any = types.ModuleType("torchvision")
    torchvision.models = types.SimpleNamespace(vgg16=lambda **_: layers)
    torchvision.transforms = None
    sys.modules["torchvision"] = torchvision
    from DISTS_pytorch.DISTS_pt import DISTS  # pyright: ignore[reportMissingImports]

    theirs = DISTS(load_weights=False).double()
    for name, value in zip(("alpha", "beta"), dists_weights(), strict=True):
        getattr(theirs, name).data = value.reshape(1, -1, 1, 1)
    return theirs(image, target).mean()


def main() -> None:
    """Writes the file."""
    import focal_frequency_loss  # pyright: ignore[reportMissingImports]
    import pytorch_msssim  # pyright: ignore[reportMissingImports]

    functions = {
        "ms_ssim": lambda a, b: 1 - pytorch_msssim.ms_ssim(a, b, data_range=1.0),
        "focal_frequency": focal_frequency_loss.FocalFrequencyLoss(),
        "dists": _dists,
    }
    packages = ("pytorch-msssim", "focal-frequency-loss", "DISTS_pytorch")
    recorded = {
        "source": ", ".join(f"{package} {version(package)}" for package in packages),
        **{
            name: [float(functions[name](*case(*size))) for size in sizes]
            for name, sizes in SIZES.items()
        },
    }
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
