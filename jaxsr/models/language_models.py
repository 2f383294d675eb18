"""Chooses who computes a language model: jaxsr's own network, or transformers' code of its family.

jaxsr's own is faster, and takes Llama and Qwen3; everything else is transformers'.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from jaxsr.errors import InputError, MissingFileError, printable
from jaxsr.models.claims import check_claims, check_folder_claims
from jaxsr.models.gguf_names import find_gguf
from jaxsr.models.hub import fetched, hub_hint
from jaxsr.models.llama import loading
from jaxsr.models.llama.config import ARCHITECTURES, LlamaConfig, foreign_field
from jaxsr.models.llama.gguf_architectures import read_config
from jaxsr.models.llama.gguf_file import open_gguf
from jaxsr.models.llama.hf_folder import read_config as read_folder
from jaxsr.models.llama.hf_folder import weight_files
from jaxsr.models.llama.loading import LanguageModel
from jaxsr.models.llama.quantized import Scheme
from jaxsr.models.weight_files import check_finite

Implementation = Literal["auto", "own", "transformers"]


def load_language_model(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    scheme: Scheme | None = None,
    implementation: Implementation = "auto",
    packed: bool = True,
) -> LanguageModel:
    """Loads a model from a Hugging Face folder or a GGUF file that exists.

    Args:
      path: the folder, or the file.
      dtype: of the weights that are not quantised, and so of the computation.
      scheme: quantise the blocks' projections on loading.
      implementation: who computes. `auto`: see `choose`.
      packed: leave the weights of a GGUF file in their blocks, unless another format is asked for.

    Raises:
      FileNotFoundError: a file in the folder is missing.
      InputError: the files are broken, or hold a model that is not computed here.
    """
    path = find_gguf(fetched(path))
    try:
        model = _loaded(path, dtype, scheme, implementation, packed)
        check_finite(model.network)
        return model
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def _loaded(
    path: Path,
    dtype: torch.dtype,
    scheme: Scheme | None,
    implementation: Implementation,
    packed: bool,
) -> LanguageModel:
    file = None if path.is_dir() else open_gguf(path)
    fields = read_folder(path / "config.json") if file is None else read_config(file)
    if file is None:
        check_folder_claims(fields, weight_files(path), source=path / "config.json")
    else:
        check_claims(fields, tensors=len(file.tensors), size=file.size, source=path)
    if choose(fields, implementation) == "own":
        if file is None:
            return loading.load_folder(path, dtype=dtype, scheme=scheme)
        return loading.load_gguf(file, fields, dtype=dtype, scheme=scheme, packed=packed)
    from jaxsr.models.hugging_face import loading as library

    if file is None:
        return library.load_folder(path, dtype=dtype, scheme=scheme)
    return library.load_gguf(file, fields, dtype=dtype, scheme=scheme, packed=packed)


def load_shapes(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    scheme: Scheme | None = None,
    implementation: Implementation = "auto",
    packed: bool = True,
) -> LanguageModel:
    """`load_language_model`, without values where a folder's `config.json` tells all shapes."""
    path = find_gguf(fetched(path))
    fields = read_folder(path / "config.json") if path.is_dir() else {}
    if path.is_file() or "quantization_config" in fields:
        return load_language_model(
            path, dtype=dtype, scheme=scheme, implementation=implementation, packed=packed
        )
    if choose(fields, implementation) == "own":
        config = LlamaConfig.from_hf(fields)
        network: Any = loading.shapes_of(config, dtype=dtype, scheme=scheme)
    else:
        from jaxsr.models.hugging_face import loading as library

        network = library.shapes_of(fields, dtype=dtype, scheme=scheme)
    stop_ids, sampling = loading.generation_settings(path, fields)
    return LanguageModel(
        name=path.resolve().name,
        family=str(fields.get("model_type")),
        network=network,
        stop_ids=stop_ids,
        sampling=sampling,
    )


def check_model(
    path: Path, implementation: Implementation = "auto", *, weights: bool = True
) -> None:
    """Rejects models that cannot be loaded, before anything large is read.

    Args:
      path: a folder or a GGUF file.
      implementation: who is to compute.
      weights: whether a folder's must be there.

    Raises:
      FileNotFoundError: there is no such file, or a folder lacks config.json, weights or some
        shards.
      InputError: config.json is broken, or describes a model that is not computed here.
    """
    path = find_gguf(fetched(path))
    if path.is_file():
        if path.suffix in (".safetensors", ".bin", ".json"):
            raise InputError(f"{path} is one file of a model; give the folder that it lies in")
        return
    if not path.is_dir():
        raise MissingFileError(
            f"no model at {path}; give a Hugging Face folder, a .gguf file, or ORG/NAME of the hub"
            + hub_hint(path)
        )
    fields = read_folder(path / "config.json")
    if choose(fields, implementation) == "own":
        LlamaConfig.from_hf(fields)
    if weights:
        weight_files(path)


def choose(
    fields: Mapping[str, Any], implementation: Implementation = "auto"
) -> Literal["own", "transformers"]:
    """Selects the implementation of the model.

    Args:
      fields: of `config.json`, or of a GGUF file's header.
      implementation: the requested one.

    Raises:
      InputError: jaxsr is asked for a family that it lacks.
    """
    kind = fields.get("model_type")
    field = foreign_field(fields) if kind in ARCHITECTURES else f"model_type {kind!r:.60}"
    if implementation == "own" and field:
        raise InputError(
            f"jaxsr's own networks are {', '.join(ARCHITECTURES)} with plain, dynamic or llama3 "
            "rotary positions, silu and full attention, which this model is not "
            f"({printable(field)}); use --implementation transformers"
        )
    if implementation == "auto":
        return "transformers" if field else "own"
    return implementation
