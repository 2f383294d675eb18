"""Loads causal language models of every kind that transformers knows, from a folder.

Only safetensors are read, and no code of the folder is run.
"""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jaxsr.errors import InputError, UserError, first_of, one_line
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.build_bound import bounded_build
from jaxsr.models.hugging_face.direct_weights import directly_read
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.llama.filling import fill, is_tied, packable
from jaxsr.models.llama.gguf_file import GGUFFile
from jaxsr.models.llama.gguf_tensors import read_tensors
from jaxsr.models.llama.gguf_tokenizer import stop_ids
from jaxsr.models.llama.hf_folder import read_config, read_json, weight_files
from jaxsr.models.llama.hf_folder import read_tensors as read_folder
from jaxsr.models.llama.loading import (
    LanguageModel,
    generation_settings,
    rotary_frequencies,
)
from jaxsr.models.llama.quantized import Scheme, quantize
from jaxsr.models.llama.quantized_folder import swap_quantized
from jaxsr.models.thread_patch import one_at_a_time, patched
from jaxsr.models.transformers_files import (
    architecture,
    check_field,
    config_of,
    model_from_folder,
    model_of,
    transformers_library,
)
from jaxsr.models.weight_files import check_finite

# A damaged file's numbers must not build networks without end: the largest models have 126 layers.
_MOST_LAYERS = 4096


def load_folder(
    folder: Path, *, dtype: torch.dtype = torch.float32, scheme: Scheme | None = None
) -> LanguageModel:
    """The model of a folder by its family's own code.

    Args:
      folder: with `config.json` and safetensors.
      dtype: of weights and activations.
      scheme: quantise the blocks' projections on loading.

    Raises:
      FileNotFoundError: a file is missing.
      InputError: the configuration is of no causal language model that transformers knows, is
        quantised, or does not fit the weights.
    """
    fields, files = _with_plain_ropes(read_json(folder / "config.json")), weight_files(folder)
    if fields.get("quantization_config") is not None:
        return _load_quantized(folder, fields, dtype=dtype, scheme=scheme)
    skeleton = _on_meta(fields, dtype)
    parameters = sum(p.numel() for p in skeleton.parameters())
    stored = sum(path.stat().st_size for path in files)
    if parameters > 2 * stored:
        raise InputError(
            f"{folder / 'config.json'} describes {parameters:,} parameters, but the weights are "
            f"{stored:,} bytes; get the folder again"
        )
    inner = _whole_model("AutoModelForCausalLM", folder, fields, stored, dtype=dtype)
    return _from_folder(folder, fields, inner, scheme)


def load_module(folder: Path, options: Mapping[str, Any]) -> nn.Module:
    """The model that a folder describes, of its own architecture, with the folder's weights.

    transformers gives tensors the names of today's classes where the files have earlier ones.

    Args:
      folder: with `config.json` and safetensors.
      options: values of the configuration.

    Raises:
      FileNotFoundError: a file is missing.
      InputError: transformers does not know the architecture, or the weights do not fit it.
    """
    fields = read_config(folder / "config.json") | dict(options)
    stored = sum(path.stat().st_size for path in weight_files(folder))
    network = _whole_model(architecture(config_of(fields)), folder, fields, stored)
    check_finite(network)
    return network


def _whole_model(kind: str, folder: Path, fields: JsonObject, stored: int, **options: Any) -> Any:
    """A model with a folder's weights, none missing and none left over."""
    try:
        with bounded_build(folder / "config.json", size=2 * stored):
            model, report = model_from_folder(
                kind, folder, fields, output_loading_info=True, **options
            )
    except UserError:
        raise
    except Exception as error:  # whatever a family's code raises on weights that do not fit
        raise InputError(
            f"{folder} cannot be loaded by transformers ({type(error).__name__}: "
            f"{one_line(error)}); get the folder again"
        ) from error
    for keys, problem in (("missing_keys", "lacks"), ("unexpected_keys", "has surplus")):
        if names := sorted(report.get(keys) or ()):
            raise InputError(f"the checkpoint {problem} {first_of(names)}; get the folder again")
    return model


def _load_quantized(
    folder: Path, fields: JsonObject, *, dtype: torch.dtype, scheme: Scheme | None
) -> LanguageModel:
    plain = {name: value for name, value in fields.items() if name != "quantization_config"}
    stored = sum(path.stat().st_size for path in weight_files(folder))
    inner = _without_parameters(plain, dtype, folder / "config.json", stored)
    tensors = dict(read_folder(folder))
    swap_quantized(inner, tensors, fields["quantization_config"])
    tied = _tied_names(inner) if inner.config.tie_word_embeddings else None
    tied = tied if tied and is_tied(tensors, *tied) else None
    fill(inner, tensors.items(), tied=tied)
    return _from_folder(folder, fields, inner, scheme)


def _from_folder(
    folder: Path, fields: JsonObject, inner: Any, scheme: Scheme | None
) -> LanguageModel:
    check_finite(inner)
    stated, sampling = generation_settings(folder, fields)
    network = LibraryLM(inner).requires_grad_(False).eval()
    network.check_continues()
    _quantize(network, fields, scheme)
    return LanguageModel(
        name=folder.resolve().name,
        family=str(fields.get("model_type")),
        network=network,
        stop_ids=stated,
        sampling=sampling,
    )


def _tied_names(inner: Any) -> tuple[str, str]:
    """Names of the head and of the embedding."""
    modules = {id(module): name for name, module in inner.named_modules()}
    head, embedding = inner.get_output_embeddings(), inner.get_input_embeddings()
    return modules[id(head)], modules[id(embedding)]


def load_gguf(
    file: GGUFFile,
    fields: JsonObject,
    *,
    dtype: torch.dtype = torch.float32,
    scheme: Scheme | None = None,
    packed: bool = True,
) -> LanguageModel:
    """The model of a GGUF file by its family's own code.

    Args:
      file: the opened file.
      fields: read from it by `gguf_architectures.read_config`.
      dtype: of the weights that are not quantised, and so of the computation.
      scheme: quantise the blocks' projections on loading.
      packed: leave the weights of linear layers and of the embedding in their blocks.

    Raises:
      InputError: the header makes no such model, or the tensors do not fit it.
    """
    inner = _without_parameters(fields, dtype, file.path, file.size)
    tied = _tied_names(inner) if fields["tie_word_embeddings"] else None
    names = inner.state_dict().keys()
    keep = packable(inner) if packed and scheme is None else ()
    fill(inner, read_tensors(file, fields, names, keep=keep), tied=tied)
    _scale_frequencies(inner, file)
    network = LibraryLM(inner)
    _quantize(network, fields, scheme)
    return LanguageModel(
        name=file.path.stem,
        family=str(fields["model_type"]),
        network=network.requires_grad_(False).eval(),
        stop_ids=stop_ids(file),
        sampling=file.sampling,
    )


def _scale_frequencies(inner: Any, file: GGUFFile) -> None:
    for module in inner.modules():
        if isinstance(getattr(module, "inv_freq", None), torch.Tensor):
            module.inv_freq = rotary_frequencies(file, module.inv_freq)


@contextmanager
def _parameters_without_values() -> Generator[None]:
    """Parameters that modules register lie on the meta device; buffers have their values."""
    plain = nn.Module.register_parameter

    def register(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        plain(self, name, parameter)

    with patched(nn.Module, register_parameter=register):
        yield


def _without_parameters(fields: JsonObject, dtype: torch.dtype, source: Path, stored: int) -> Any:
    with bounded_build(source, size=2 * stored):  # of four bits a weight and less
        return _built(fields, dtype, _parameters_without_values())


def shapes_of(fields: JsonObject, *, dtype: torch.dtype, scheme: Scheme | None = None) -> LibraryLM:
    """The network without values, of the fields of `config.json`; for others see `load_folder`."""
    inner = _on_meta(fields, dtype)
    inner.tie_weights()
    network = LibraryLM(inner).requires_grad_(False).eval()
    _quantize(network, fields, scheme)
    return network


def _quantize(network: LibraryLM, fields: JsonObject, scheme: Scheme | None) -> None:
    if scheme is not None:
        plain = {name: value for name, value in fields.items() if name != "quantization_config"}
        probe = LibraryLM(_on_meta(plain, torch.bfloat16)).eval()
        quantize(network, scheme, skip=directly_read(probe))


def _with_plain_ropes(fields: JsonObject) -> JsonObject:
    """The fields with default frequencies for dynamic ones, at any depth.

    They are equal up to the context, which no text exceeds; transformers' code asks for the text's
    length in Python, which a trace does not know.
    """
    inner = {n: _with_plain_ropes(v) if isinstance(v, dict) else v for n, v in fields.items()}
    if "factor" in fields and "dynamic" in (fields.get("rope_type"), fields.get("type")):
        inner = {n: v for n, v in inner.items() if n not in ("factor", "type")}
        inner["rope_type"] = "default"
    return inner


def _on_meta(fields: JsonObject, dtype: torch.dtype) -> Any:
    return _built(fields, dtype, torch.device("meta"))


def _built(fields: JsonObject, dtype: torch.dtype, where: AbstractContextManager[object]) -> Any:
    transformers = transformers_library()
    from transformers import initialization

    model_type = fields.get("model_type")

    def make(fields: JsonObject, where: AbstractContextManager[object]) -> Any:
        config = config_of(_with_plain_ropes(fields))
        layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 1)
        if layers > _MOST_LAYERS:
            raise InputError(
                f"config.json has {layers} layers; up to {_MOST_LAYERS} are computed: get it again"
            )
        with one_at_a_time, where, initialization.no_init_weights():
            return model_of("AutoModelForCausalLM", config, dtype=dtype)

    try:
        return make(fields, where)
    except InputError:
        raise
    except Exception as error:  # of the configuration's checks, and of the family's code
        check_field(fields, lambda fewer: make(fewer, torch.device("meta")), error)
        raise InputError(
            f"config.json with model_type {model_type!r} makes no causal language model "
            f"({type(error).__name__}: {one_line(error):.160}); give a folder of one that "
            f"transformers {transformers.__version__} knows"
        ) from error
