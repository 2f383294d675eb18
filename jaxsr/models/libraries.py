"""Networks of timm, torchvision and transformers, with random weights; nothing is downloaded.

`timm:resnet18`, `torchvision:vit_b_16`, a folder with transformers' `config.json`, or that file.
"""

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jaxsr.errors import InputError, UserError, one_line
from jaxsr.models.llama.hf_folder import read_json
from jaxsr.models.registry import perturb

LIBRARIES = ("timm", "torchvision")
_SEED = 20261121


def is_of_library(model: str) -> bool:
    """Whether these words name a network that `library_network` makes."""
    return model.partition(":")[0] in LIBRARIES or _config_file(model) is not None


def library_network(model: str, options: Mapping[str, Any]) -> nn.Module:
    """The network, on the CPU, with random weights that hide no operation.

    Args:
      model: `timm:NAME`, `torchvision:NAME`, a folder with a `config.json`, or that file.
      options: keyword arguments of the builder; for transformers, values of the configuration.

    Raises:
      InputError: the library is not installed, knows no such name, or refuses the options.
    """
    library, _, name = model.partition(":")
    config = _config_file(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            if config is not None:
                network = _transformers(config, options)
            elif library == "timm":
                network = _module("timm").create_model(name, pretrained=False, **options)
            else:
                network = _torchvision(name, options)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{model} cannot be built: {type(error).__name__}: {one_line(error)}"
            ) from error
        with torch.no_grad():
            for key, parameter in network.named_parameters():
                perturb(key, parameter)
            for key, buffer in network.named_buffers():
                if key.endswith(("running_mean", "running_var")):
                    perturb(key, buffer)
    return network


def _torchvision(name: str, options: Mapping[str, Any]) -> nn.Module:
    models = _module("torchvision.models")
    names = ("weights", "weights_backbone")  # neither is downloaded
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    return models.get_model(name, **{n: None for n in names if n in accepted} | dict(options))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # torchvision fails in many ways beside another torch
        library = name.partition(".")[0]
        raise InputError(
            f"{library} cannot be imported ({type(error).__name__}: {one_line(error)}); install it "
            f"beside this torch: pip install --no-deps {library}"
        ) from error


def _config_file(model: str) -> Path | None:
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if path.name != "config.json" and path.suffix != ".json":
        return None
    try:
        content = read_json(path)
    except UserError:
        return None
    return path if "model_type" in content else None


def _transformers(path: Path, options: Mapping[str, Any]) -> nn.Module:
    transformers = _module("transformers")
    values = read_json(path) | dict(options)
    config = transformers.AutoConfig.for_model(**values)
    name = next(iter(getattr(config, "architectures", None) or []), None)
    if name is not None and hasattr(transformers, name):
        return getattr(transformers, name)(config)
    return transformers.AutoModel.from_config(config)
