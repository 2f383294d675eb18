"""Finds the network to restore with: shipped, trained here, published, or the user's own.

Nothing in a weights file is run (`jaxsr.models.weight_files`). A network takes and returns
pictures, (batch, channels, height, width), of one channel or three, in the intensities of its
`value_range`.
"""

import functools
import importlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, MissingFileError
from jaxsr.models.weight_files import load_weights, read_weights
from jaxsr.restoration.families import build_known
from jaxsr.restoration.receptive_field import Reach, measure_reach

SHIPPED = "restore_x4.safetensors"
"""Name of the default weights in the package's `weights` folder."""

WEIGHT_ENDINGS = (".safetensors", ".pt", ".pth")
UNIT, SIGNED = (0.0, 1.0), (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class RestorationModel:
    """A network and what it takes for a picture."""

    network: nn.Module
    """On the CPU, in evaluation mode."""
    name: str
    """Where it is from, for reports."""
    channels: int
    """1 (luma or gray) or 3 (RGB)."""
    value_range: tuple[float, float]
    """Intensities of black and white."""

    @functools.cached_property
    def reach(self) -> Reach:
        """Scale and tile margin, measured on the network."""
        return measure_reach(self.network, channels=self.channels)

    @property
    def scale(self) -> int:
        return self.reach.scale


def find_model(
    model: str | Path | nn.Module | None = None,
    *,
    weights: Path | None = None,
    options: Mapping[str, Any] | None = None,
    channels: int | None = None,
    value_range: tuple[float, float] | None = None,
) -> RestorationModel:
    """The network that a user means.

    Args:
      model: a run folder of `jaxsr.train`; a `.safetensors`, `.pt` or `.pth` file of a known
        family, or
        of one of spandrel's if that is installed; `package.module:Class`; a module; or None, for
        the weights that jaxsr ships.
      weights: file for `package.module:Class` or a module.
      options: keyword arguments of the class.
      channels: of the network's input. Default: from its first convolution.
      value_range: intensities of black and white. Default: what the family says, else 0 and 1.

    Raises:
      FileNotFoundError: no such file or folder, or no weights are shipped.
      ValueError: the file is refused, damaged, of an unknown family, or does not fit the network;
        or the class's module cannot be imported.
    """
    if isinstance(model, nn.Module):
        network, name, default = model, type(model).__name__, UNIT
        if weights is not None:
            load_weights(network, read_weights(weights), source=str(weights))
    elif model is not None and ":" in str(model) and not Path(model).exists():
        network, name, default = _own_class(str(model), weights, options or {}), str(model), UNIT
    else:
        if weights is not None or options:
            raise InputError(
                "--weights and --model-options go with --model package.module:Class; "
                "a weights file of a known family is given to --model itself"
            )
        path = _shipped() if model is None else Path(model)
        network, default = _from_file(_weights_in(path) if path.is_dir() else path)
        name = str(path) if model is not None else "jaxsr's own"
    if channels is None:
        channels = _input_channels(network)
    if channels not in (1, 3):
        raise InputError(
            f"{name} takes pictures of {channels} channels; restoring works with 1 (luma, gray) "
            "and 3 (RGB): wrap the network in a module that takes one of these"
        )
    low, high = value_range or default
    if not low < high:
        raise InputError(
            f"value_range must be (black, white) with black below white, got {low}, {high}"
        )
    return RestorationModel(
        network=network.cpu().eval(), name=name, channels=channels, value_range=(low, high)
    )


def _shipped() -> Path:
    path = Path(str(resources.files("jaxsr").joinpath("weights", SHIPPED)))
    if not path.is_file():
        raise MissingFileError(
            "this installation holds no weights of jaxsr's own; train some with `python -m "
            "jaxsr.train span --out runs/mine` and give --model runs/mine, or name a weights file"
        )
    return path


def _weights_in(folder: Path) -> Path:
    """The network that a run exported last; its best by validation can be named by file."""
    found = sorted(p for p in folder.glob("*.safetensors") if not p.stem.endswith(".best"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise MissingFileError(
            f"{folder} holds no exported network (*.safetensors): let the run reach its first "
            "export, or give the weights file itself"
        )
    names = ", ".join(path.name for path in found[:4])
    raise InputError(f"{folder} holds several weights files ({names}); give one of them to --model")


def _from_file(path: Path) -> tuple[nn.Module, tuple[float, float]]:
    if path.exists() and path.suffix not in WEIGHT_ENDINGS:
        raise InputError(
            f"--model {path} is neither a run folder, nor a {', '.join(WEIGHT_ENDINGS)} file, nor "
            "package.module:Class"
        )
    weights = read_weights(path)
    known = build_known(weights, _metadata(path), source=str(path))
    if known is not None:
        return known, SIGNED
    return _by_spandrel(path, weights), UNIT


def _metadata(path: Path) -> dict[str, Any]:
    """What a safetensors file says of itself: values are JSON, others' plain text is left out."""
    if path.suffix != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        notes = file.metadata() or {}
    said = {}
    for name in ("family", "config", "model"):
        try:
            said[name] = json.loads(notes[name])
        except (KeyError, json.JSONDecodeError):
            continue
    # A description may be one object that holds family and configuration.
    if isinstance(said.get("model"), dict):
        said = {**said["model"], **said}
    return said


def _by_spandrel(path: Path, weights: Mapping[str, Tensor]) -> nn.Module:
    said = f"{path} is of no family that jaxsr knows (its first names: {', '.join([*weights][:3])})"
    try:
        from spandrel import (  # type: ignore[import-not-found]
            ImageModelDescriptor,
            ModelLoader,
            UnsupportedModelError,
        )
    except Exception as error:  # torchvision, which it needs, may fail to import in many ways
        raise InputError(
            f"{said}; give --model package.module:Class --weights {path}, or install jaxsr's "
            f"extra spandrel, which knows many architectures ({type(error).__name__}: {error})"
        ) from error
    try:
        descriptor = ModelLoader("cpu").load_from_state_dict(dict(weights))
    except UnsupportedModelError:
        raise InputError(
            f"{said}, nor one that spandrel knows; give --model package.module:Class --weights "
            f"{path}"
        ) from None
    if not isinstance(descriptor, ImageModelDescriptor):
        raise InputError(f"{path} is a {type(descriptor).__name__}; restoring needs one picture in")
    return descriptor.model


def _own_class(model: str, weights: Path | None, options: Mapping[str, Any]) -> nn.Module:
    module_name, _, class_name = model.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"--model {model}: cannot import {module_name} ({error}); run where it can be "
            "imported, or set PYTHONPATH"
        ) from error
    made = getattr(module, class_name, None)
    if not callable(made):
        raise InputError(f"--model {model}: {module_name} has no class or function {class_name!r}")
    try:
        inspect.signature(made).bind(**options)
    except TypeError as error:
        raise InputError(
            f"--model {model}: {class_name} does not take these arguments ({error}); give them as "
            "--model-options '{\"name\": value}'"
        ) from error
    network = made(**options)
    if not isinstance(network, nn.Module):
        raise InputError(f"--model {model} made a {type(network).__name__}, not a torch module")
    if weights is None:
        raise InputError(f"--model {model} needs its weights: add --weights FILE")
    load_weights(network, read_weights(weights), source=str(weights))
    return network


def _input_channels(network: nn.Module) -> int:
    """Channels that the network accepts: those of its first convolution, or what a trial shows."""
    first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    guesses = [first.in_channels] if first is not None else []
    for channels in dict.fromkeys([*guesses, 3, 1]):
        try:
            with torch.no_grad():
                network.eval()(torch.zeros(1, channels, 64, 64))
            return channels
        except (RuntimeError, ValueError):  # what modules raise for a wrong number of channels
            continue
    raise InputError(
        f"{type(network).__name__} takes neither (1, 3, 64, 64) nor (1, 1, 64, 64); wrap it in a "
        "module that takes pictures (batch, channels, height, width)"
    )
