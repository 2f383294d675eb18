"""Loads Llama and Qwen3 networks from Hugging Face folders and GGUF files.

Checkpoints that are quantised (block and channel FP8, compressed-tensors int8) stay so.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.llama import gguf_tokenizer, hf_folder
from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.filling import fill, is_tied, packable
from jaxsr.models.llama.gguf_architectures import ROPE_FACTORS
from jaxsr.models.llama.gguf_file import GGUFFile
from jaxsr.models.llama.gguf_tensors import read_tensors
from jaxsr.models.llama.network import CausalLM, inverse_frequencies
from jaxsr.models.llama.quantized import Scheme, quantize
from jaxsr.models.llama.quantized_folder import swap_quantized
from jaxsr.models.registry import Kind, LoadedModel

_COMPUTED_HERE = "rotary_emb.inv_freq"


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModel(LoadedModel):
    """A language model, and its files' settings for using it."""

    network: Any
    """A `CausalLM` of `jaxsr.models.llama`, or a `LibraryLM` of `jaxsr.models.hugging_face`."""
    kind: Kind | None = "language model"
    stop_ids: tuple[int, ...] = ()
    """Token ids that end an output."""
    sampling: JsonObject = field(default_factory=dict)
    """Fields of the checkpoint's `generation_config.json`, where it has one."""

    @property
    def config(self) -> Any:
        """With `vocab_size` and `max_position_embeddings`."""
        return self.network.config


def load_folder(
    folder: Path, *, dtype: torch.dtype = torch.float32, scheme: Scheme | None = None
) -> LanguageModel:
    """Loads a model from a Hugging Face folder.

    Args:
      folder: with `config.json` and safetensors.
      dtype: of the weights that are not quantised, and so of the computation.
      scheme: quantise the blocks' projections on loading.

    Raises:
      FileNotFoundError: a file in the folder is missing.
      ValueError: the files are broken, or hold a model that is not computed here.
    """
    fields = hf_folder.read_json(folder / "config.json")
    config = LlamaConfig.from_hf(fields)
    tensors = dict(hf_folder.read_tensors(folder))
    network = build(config, tensors, dtype, quantization=fields.get("quantization_config"))
    stop_ids, sampling = generation_settings(folder, fields)
    return LanguageModel(
        name=folder.resolve().name,
        family=config.model_type,
        network=_finish(network, scheme),
        stop_ids=stop_ids,
        sampling=sampling,
    )


def shapes_of(config: LlamaConfig, *, dtype: torch.dtype, scheme: Scheme | None = None) -> CausalLM:
    """The network of this configuration without values."""
    with torch.device("meta"):
        network = CausalLM(config).to(dtype)
        network.model.rotary_emb.inv_freq = inverse_frequencies(config)
        return _finish(network, scheme)


def generation_settings(folder: Path, fields: JsonObject) -> tuple[tuple[int, ...], JsonObject]:
    """Tokens that end an output, and the fields of `generation_config.json`.

    Args:
      folder: may hold a `generation_config.json`.
      fields: of `config.json`.
    """
    path = folder / "generation_config.json"
    generation = hf_folder.read_json(path) if path.is_file() else {}
    stop_ids = _tokens(fields.get("eos_token_id"), folder / "config.json")
    if "eos_token_id" in generation:
        stop_ids = _tokens(generation["eos_token_id"], path)
    return stop_ids, generation


def _tokens(stated: Any, source: Path) -> tuple[int, ...]:
    """The tokens of an `eos_token_id`: one, several or none."""
    tokens = tuple(stated) if isinstance(stated, list) else () if stated is None else (stated,)
    if wrong := [token for token in tokens if type(token) is not int or token < 0]:
        raise InputError(
            f"{source} has the eos_token_id {wrong[0]!r}, which is not a token: whole numbers from "
            "0 on; correct it"
        )
    return tokens


def load_gguf(
    file: GGUFFile,
    fields: JsonObject,
    *,
    dtype: torch.dtype = torch.float32,
    scheme: Scheme | None = None,
    packed: bool = True,
) -> LanguageModel:
    """Loads a Llama or Qwen3 network from an opened GGUF file.

    Args:
      file: the file.
      fields: read from it by `gguf_architectures.read_config`.
      dtype: of the weights that are not quantised, and so of the computation.
      scheme: quantise the blocks' projections on loading.
      packed: leave the weights of linear layers and of the embedding in their blocks.

    Raises:
      InputError: the file holds a model that is not computed here.
    """
    config = LlamaConfig.from_hf(fields)
    with torch.device("meta"):
        network = CausalLM(config).to(dtype)
    network.model.rotary_emb.inv_freq = rotary_frequencies(file, inverse_frequencies(config))
    keep = packable(network) if packed and scheme is None else ()
    fill(network, read_tensors(file, fields, network.state_dict().keys(), keep=keep))
    return LanguageModel(
        name=file.path.stem,
        family=config.model_type,
        network=_finish(network, scheme),
        stop_ids=gguf_tokenizer.stop_ids(file),
        sampling=file.sampling,
    )


def rotary_frequencies(file: GGUFFile, inverse: Tensor) -> Tensor:
    """The angles per position, divided where the file says so, as for Llama 3.1."""
    if ROPE_FACTORS not in file.tensors:
        return inverse
    factors = torch.from_numpy(file.read(ROPE_FACTORS).copy())
    if factors.shape != inverse.shape:
        raise InputError(
            f"{file.path}: {ROPE_FACTORS} has {factors.numel()} factors for {inverse.numel()} "
            "rotary frequencies; fetch the file again"
        )
    return inverse / factors


def _finish(network: CausalLM, scheme: Scheme | None) -> CausalLM:
    if scheme is not None:
        quantize(network, scheme)
    return network.requires_grad_(False).eval()


def build(
    config: LlamaConfig,
    tensors: dict[str, Tensor],
    dtype: torch.dtype,
    *,
    quantization: JsonObject | None = None,
) -> CausalLM:
    """A network over these tensors, which are not copied where the dtype agrees.

    Raises:
      ValueError: tensors are missing, surplus or of the wrong shape, or the quantisation is one
        that is not computed here.
    """
    tensors = {n: t for n, t in tensors.items() if not n.endswith(_COMPUTED_HERE)}
    if config.tie_word_embeddings and not is_tied(tensors, "lm_head", "model.embed_tokens"):
        config = replace(config, tie_word_embeddings=False)
    with torch.device("meta"):
        network = CausalLM(config).to(dtype)
    network.model.rotary_emb.inv_freq = inverse_frequencies(config)
    if quantization is not None:
        swap_quantized(network, tensors, quantization)
    fill(network, tensors.items())
    return network


def fingerprint(network: Any) -> str:
    """16 hexadecimal digits of the configuration and every weight, bit for bit as it computes."""

    def digest(tensor: Tensor) -> bytes:
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return hashlib.sha256(content.data).digest()

    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    with ThreadPoolExecutor() as pool:  # hashlib releases the GIL
        digests = [*pool.map(digest, state.values())]
    layers = [(name, type(module).__name__) for name, module in network.named_modules()]
    facts = [(n, str(t.dtype), tuple(t.shape)) for n, t in state.items()]
    text = repr((sorted(asdict(network.config).items()), layers, facts))
    return hashlib.sha256(text.encode() + b"".join(digests)).hexdigest()[:16]
