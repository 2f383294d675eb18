"""One loader for everything by which a user may name a model.

A run folder of `jaxsr.train`, a weights file, a Hugging Face folder, a repository of the hub
(`jaxsr.models.hub`), a `.gguf` file, `package.module:Class`, a library's network
(`jaxsr.models.build`), a torch module, a family's name for random weights, or `clean`, `photo`,
`clean_x2`, `photo_x2`, `targets` or nothing for the weights that come with jaxsr.

A weights file is of the first of these whose names and shapes it fits exactly: the builder in its
metadata, a family of jaxsr, an architecture of spandrel. Nothing in a weights file is run, and no
module that it names is imported: see `jaxsr.models.own_network`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jaxsr.errors import InputError, MissingFileError
from jaxsr.interop.bounded_read import CONFIGURATION, read_bounded
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode, is_placed
from jaxsr.interop.weights import read_metadata
from jaxsr.models.build import (
    LIBRARIES,
    build_network,
    build_untrained,
    is_class_name,
    is_configuration,
)
from jaxsr.models.build_bound import bounded_build
from jaxsr.models.claims import check_claims
from jaxsr.models.gguf_names import find_gguf
from jaxsr.models.hub import fetched, hub_hint, is_hub_name
from jaxsr.models.own_network import load_own_network, stated_uses
from jaxsr.models.registry import (
    FAMILIES,
    Family,
    Kind,
    LoadedModel,
    Weights,
    find_family,
    random_network,
)
from jaxsr.models.spandrel_weights import freeze_merged, load_by_spandrel
from jaxsr.models.weight_files import READERS, exported_weights, load_weights, read_weights
from jaxsr.models.weight_sources import SHIPPED, check_unambiguous, shipped_weights, weights_file

_DEFAULTS = {"detector": "targets"}
"""The word that stands for no model, by the kind asked for; `clean` for others."""


def load_model(
    model: str | Path | nn.Module | None = None,
    *,
    kind: Kind | None = None,
    weights: Path | None = None,
    options: Mapping[str, Any] | None = None,
    trust_builder: bool = False,
    random_weights: bool = False,
    untrained: bool = False,
    perturbed: bool = True,
    dtype: torch.dtype = torch.float32,
    scheme: Any = None,
    implementation: Any = "auto",
    packed: bool = True,
) -> LoadedModel:
    """The model that a user names.

    Args:
      model: see the module's docstring. None: `targets` for a detector, else `clean`. A torch
        module on the CPU is put in evaluation mode; of one elsewhere, or with `weights`, a copy is
        taken.
      kind: the kind that the caller needs; another is rejected. A user's class may be anything.
      weights: for `package.module:Class`, `library:NAME` or a module; see `weights_file`.
      options: keyword arguments of the class.
      trust_builder: the user agrees that code of the user's that a weights file names is run.
      random_weights: a family's name gives a small network with random weights.
      untrained: classes without `weights`, `timm:NAME`, `torchvision:NAME`, and a Hugging Face
        folder or `config.json` give random weights; see `jaxsr.models.build`.
      perturbed: these are drawn anew, so that they hide no operation. Otherwise they are as the
        network's own code makes them, which may have trained ones.
      dtype: of a language model's weights that are not quantised.
      scheme: quantisation of a language model, see `jaxsr.models.llama.quantized.Scheme`.
      implementation: of a language model, see `jaxsr.models.language_models`.
      packed: leave the weights of a language model's GGUF file in their blocks.

    Raises:
      FileNotFoundError: no such file or folder, or no weights are shipped.
      ValueError: the file is refused, damaged, of no known family or another kind, or does not fit
        the network; or the class cannot be imported.
    """
    name = str(model)
    if model is not None and not isinstance(model, nn.Module) and is_hub_name(name):
        name = str(fetched(name))
    path = Path(name)
    if model is not None and (name in SHIPPED or (random_weights and name in FAMILIES)):
        check_unambiguous(path, option="--model")
    if random_weights and name in FAMILIES:
        family = find_family(name)
        return LoadedModel(
            network=random_network(name),
            name="random weights",
            family=name,
            kind=family.kind,
            value_range=family.value_range,
        )
    built = isinstance(model, nn.Module) or (model is not None and is_class_name(name))
    if built or ((untrained or weights is not None) and is_configuration(name)):
        if isinstance(model, nn.Module):
            is_copied = weights is not None or not is_placed(model, torch.device("cpu"))
            network = copy_module(model) if is_copied else model
        elif weights is not None and _is_transformers_folder(name, weights):
            from jaxsr.models.hugging_face.loading import load_module

            network, weights = load_module(weights, options or {}), None
        elif weights is not None:
            network = build_network(name, options)
        elif untrained:
            network = (build_untrained if perturbed else build_network)(name, options)
        else:
            raise InputError(f"--model {name} needs its weights: add --weights FILE")
        uses: dict[str, Any] = {}
        if weights is not None:
            weights = weights_file(weights, network=name, option="--weights")
            load_weights(network, read_weights(weights), source=str(weights))
            freeze_merged(network)
            if weights.suffix == ".safetensors":  # the class may be built otherwise, not used so
                uses = stated_uses(weights, read_metadata(weights))
        family_name = type(network).__name__
        name = family_name if isinstance(model, nn.Module) else name
        return LoadedModel(network=in_mode(network.cpu()), name=name, family=family_name, **uses)
    if weights is not None or options:
        raise InputError(
            "--weights and --model-options go with --model package.module:Class or library:NAME; "
            f"a run folder or a file by itself is --model {weights or name}"
        )
    if model is None:
        name = _DEFAULTS.get(kind or "", "clean")
    if name in SHIPPED:
        return _from_weights(shipped_weights(name), f"jaxsr's own, {name}", kind, trust_builder)
    if not path.exists() and path.suffix not in READERS:
        raise MissingFileError(
            f"no model {name!r}{_class_hint(name)}: {_accepted(random_weights)}{hub_hint(name)}"
        )
    if _is_language_checkpoint(path, kind):
        return _from_checkpoint(
            path, kind, dtype=dtype, scheme=scheme, implementation=implementation, packed=packed
        )
    if path.is_dir():
        path = exported_weights(path)
    elif path.suffix not in READERS:
        raise InputError(f"{path} is not a model: {_accepted(random_weights)}")
    return _from_weights(path, str(model), kind, trust_builder)


def _is_transformers_folder(name: str, weights: Path) -> bool:
    """Whether a configuration's weights are those of such a folder, maybe under earlier names."""
    return is_configuration(name) and weights.is_dir() and is_configuration(str(weights))


def _class_hint(name: str) -> str:
    """The way to write a class whose module is named with a dot before it, `torch.nn.GELU`."""
    module, _, kind = name.rpartition(".")
    dotted = all(part.isidentifier() for part in name.split(".")) and kind[:1].isupper()
    return f" (did you mean {module}:{kind}?)" if module and dotted else ""


def _accepted(random_weights: bool) -> str:
    names = f", nor a family ({', '.join(FAMILIES)})" if random_weights else ""
    libraries = ", ".join(f"{library}:NAME" for library in LIBRARIES)
    return (
        "it is neither a run folder, a Hugging Face folder, a .gguf file, package.module:Class, "
        f"{libraries}, nor a weights file (weights are read from {', '.join(READERS)} files)"
        f"{names}; give one of these"
    )


def _is_language_checkpoint(path: Path, kind: Kind | None) -> bool:
    if kind == "language model" or path.suffix == ".gguf" or find_gguf(path) != path:
        return path.suffix not in READERS
    config = path / "config.json"
    content = read_bounded(config, most_bytes=CONFIGURATION) if config.is_file() else b""
    # A run of `jaxsr.train` has a config.json as well, which begins with its digest.
    return b"model_type" in content and not content.startswith(b'{"digest"')


def _from_checkpoint(path: Path, kind: Kind | None, **options: Any) -> LoadedModel:
    if kind not in (None, "language model"):
        raise InputError(
            f"{path} alone is a language model to --model; give a {kind}, or, for a network of "
            f"transformers that is one, --model {path} --weights {path}"
        )
    from jaxsr.models.language_models import load_language_model

    return load_language_model(path, **options)


def _from_weights(path: Path, name: str, kind: Kind | None, trust_builder: bool) -> LoadedModel:
    weights = read_weights(path)
    metadata = read_metadata(path) if path.suffix == ".safetensors" else {}
    if "builder" in metadata:
        model = load_own_network(path, weights, metadata, name=name, trust_builder=trust_builder)
        return _of_kind(model, path, kind)
    refusals: list[str] = []
    for family_name in FAMILIES:
        family = find_family(family_name)
        bare = _without_prefix(weights, family.prefix)
        stated = metadata.get("config") if metadata.get("family") == family_name else None
        config = stated if isinstance(stated, dict) else _recognise(family, bare)
        if config is None:
            continue
        try:
            size = path.stat().st_size
            check_claims(config, tensors=len(weights), size=size, source=path, least=1024)
            with bounded_build(path, size=size, tensors=len(weights)):
                network = family.build(config)
            load_weights(network, bare, source=str(path))
        except InputError as error:
            refusals.append(str(error))
            continue
        loaded = LoadedModel(
            network=family.finish(network).cpu().eval(),
            name=name,
            family=family_name,
            kind=family.kind,
            value_range=family.value_range,
            metadata=metadata,
        )
        return _of_kind(loaded, path, kind)
    return _of_kind(load_by_spandrel(path, weights, name=name, refusals=refusals), path, kind)


def _of_kind(loaded: LoadedModel, path: Path, kind: Kind | None) -> LoadedModel:
    if kind is not None and loaded.kind not in (None, kind):
        raise InputError(f"{path} holds a {loaded.family}, a {loaded.kind}; give a {kind} instead")
    return loaded


def _without_prefix(weights: Weights, prefix: str) -> Weights:
    if weights and all(key.startswith(prefix) for key in weights):
        return {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights


def _recognise(family: Family, weights: Weights) -> Mapping[str, Any] | None:
    try:
        return family.recognise(weights)
    except (LookupError, ArithmeticError):  # names of the family with other layers or shapes
        return None
