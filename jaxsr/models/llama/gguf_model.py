"""A Llama or Qwen3 network from a GGUF file: its configuration, and its weights by torch name."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from jaxsr.errors import InputError
from jaxsr.models.llama.config import ARCHITECTURES, LlamaConfig
from jaxsr.models.llama.gguf_file import GGUFFile

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies: how the format states Llama 3.1's scaling."""


def read_config(file: GGUFFile) -> LlamaConfig:
    """The configuration in the header.

    Raises:
      ValueError: another architecture, a missing field, or something that is not computed here.
    """
    arch = file.need("general.architecture")
    if arch not in ARCHITECTURES:
        raise InputError(
            f"{file.path} holds a {arch!r} model; jaxsr generates with "
            f"{' and '.join(ARCHITECTURES)} models"
        )
    if file.fields.get(f"{arch}.expert_count"):
        raise InputError(f"{file.path} holds a mixture of experts; only dense models are computed")
    scaling = file.fields.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        raise InputError(f"{file.path} asks for rope scaling {scaling!r}, which is not computed")
    heads = file.number(f"{arch}.attention.head_count")
    hidden = file.number(f"{arch}.embedding_length")
    head_dim = file.number(f"{arch}.attention.key_length", hidden // heads)
    if (turned := file.fields.get(f"{arch}.rope.dimension_count", head_dim)) != head_dim:
        raise InputError(
            f"{file.path} turns {turned} of {head_dim} features per head; only all is computed"
        )
    if len(getattr(file.tensors.get("token_embd.weight"), "shape", ())) != 2:
        raise InputError(f"{file.path} has no matrix token_embd.weight; it is not a whole model")
    return LlamaConfig(
        model_type=arch,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=file.number(f"{arch}.feed_forward_length"),
        num_hidden_layers=file.number(f"{arch}.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=file.number(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=file.number(f"{arch}.context_length"),
        # The header stores float32: 9.99999974e-06 is 1e-5.
        rms_norm_eps=float(f"{file.number(f'{arch}.attention.layer_norm_rms_epsilon'):.6g}"),
        rope_theta=float(file.number(f"{arch}.rope.freq_base", 10000.0)),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def read_tensors(file: GGUFFile, config: LlamaConfig) -> Iterator[tuple[str, Tensor]]:
    """Every weight as (torch name, float32 tensor).

    Raises:
      ValueError: a tensor that this network has no place for, or an unreadable quantisation.
    """
    for name in file.tensors:
        if name == ROPE_FACTORS:
            continue
        array = file.read(name)
        torch_name = _torch_name(name, file)
        # llama.cpp turns neighbouring pairs where Hugging Face turns halves, and its converter
        # reorders the rows of Q and K to suit. Qwen3 files keep the halves.
        if config.model_type == "llama" and (".attn_q." in name or ".attn_k." in name):
            if array.shape[0] % config.head_dim:
                raise InputError(
                    f"{file.path}: {name} has {array.shape[0]} rows, not whole heads of "
                    f"{config.head_dim}; fetch the file again"
                )
            array = _unpermuted(array, config.head_dim)
        if not array.flags.writeable:
            array = array.copy()  # torch warns of tensors over read-only memory
        yield torch_name, torch.from_numpy(np.ascontiguousarray(array))


def _torch_name(name: str, file: GGUFFile) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _INNER:
        return f"model.layers.{parts[1]}.{_INNER[parts[2]]}.{kind}"
    raise InputError(f"{file.path} has a tensor {name!r} that a Llama or Qwen3 network lacks")


def _unpermuted(array: np.ndarray, head_dim: int) -> np.ndarray:
    pairs = array.reshape(-1, head_dim // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
