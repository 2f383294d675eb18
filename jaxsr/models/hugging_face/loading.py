"""Loads causal language models of every kind that transformers knows, from a folder.

Only safetensors are read, and no code of the folder is run.
"""

from pathlib import Path
from typing import Any

import torch

from jaxsr.errors import InputError, first_of, one_line
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.llama.hf_folder import read_json, weight_files
from jaxsr.models.llama.loading import LanguageModel, generation_settings

# A damaged file's numbers must not build networks without end: the largest models have 126 layers.
_MOST_LAYERS = 4096


def load_folder(folder: Path, *, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The model of a folder by its family's own code.

    Args:
      folder: with `config.json` and safetensors.
      dtype: of weights and activations.

    Raises:
      FileNotFoundError: a file is missing.
      InputError: the configuration is of no causal language model that transformers knows, is
        quantised, or does not fit the weights.
    """
    transformers = _transformers()
    fields, files = read_json(folder / "config.json"), weight_files(folder)
    if "quantization_config" in fields:
        method = fields["quantization_config"]
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise InputError(
            f"{folder} is quantised ({method!r}), which is read for Llama and Qwen3 only; use a "
            "checkpoint that is not quantised"
        )
    skeleton = _on_meta(fields, dtype)
    parameters = sum(p.numel() for p in skeleton.parameters())
    stored = sum(path.stat().st_size for path in files)
    if parameters > 2 * stored:
        raise InputError(
            f"{folder / 'config.json'} describes {parameters:,} parameters, but the weights are "
            f"{stored:,} bytes; get the folder again"
        )
    try:
        inner, report = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # whatever a family's code raises on weights that do not fit
        raise InputError(
            f"{folder} cannot be loaded by transformers ({type(error).__name__}: "
            f"{one_line(error)}); get the folder again"
        ) from error
    for kind, problem in (("missing_keys", "lacks"), ("unexpected_keys", "has surplus")):
        if names := sorted(report.get(kind) or ()):
            raise InputError(f"the checkpoint {problem} {first_of(names)}; get the folder again")
    stop_ids, sampling = generation_settings(folder, fields)
    network = LibraryLM(inner).requires_grad_(False).eval()
    network.check_continues()
    return LanguageModel(
        name=folder.resolve().name,
        family=str(fields.get("model_type")),
        network=network,
        stop_ids=stop_ids,
        sampling=sampling,
    )


def shapes_of_folder(folder: Path, *, dtype: torch.dtype) -> LibraryLM:
    """The network without values; of the folder only `config.json` is read."""
    inner = _on_meta(read_json(folder / "config.json"), dtype)
    return LibraryLM(inner).requires_grad_(False).eval()


def _on_meta(fields: dict[str, Any], dtype: torch.dtype) -> Any:
    transformers = _transformers()
    model_type = fields.get("model_type")
    try:
        config = transformers.AutoConfig.for_model(**fields)
        layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 1)
        if layers > _MOST_LAYERS:
            raise InputError(
                f"config.json has {layers} layers; up to {_MOST_LAYERS} are computed: get it again"
            )
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    except InputError:
        raise
    except Exception as error:  # of the configuration's checks, and of the family's code
        raise InputError(
            f"config.json with model_type {model_type!r} makes no causal language model "
            f"({type(error).__name__}: {one_line(error)}); give a folder of one that transformers "
            f"{transformers.__version__} knows"
        ) from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "this model is computed by transformers' own code, which is not installed; install "
            "jaxsr's extra generate"
        ) from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers
