"""The tensors of a GGUF file under the names and in the layout of transformers' modules.

llama.cpp's converter renames tensors and rearranges some; this undoes it. Names are translated by
the `gguf` package. The converter's code for each architecture:
https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jaxsr.errors import InputError
from jaxsr.models.llama.block_formats import FORMATS, Blocks
from jaxsr.models.llama.gguf_architectures import ROPE_FACTORS
from jaxsr.models.llama.gguf_file import GGUFFile

Config = Mapping[str, Any]
Rearrangement = Callable[[np.ndarray, Config], np.ndarray]

_ELSEWHERE = {ROPE_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight"}
"""Tensors that belong to the configuration."""


@dataclass(frozen=True, kw_only=True)
class _Restore:
    """How tensors whose GGUF name matches a pattern get transformers' layout back."""

    pattern: str
    function: Rearrangement
    by_row: bool = False
    """Whether only rows move, so that quantised blocks stay unchanged."""


def _halves_of_heads(rows: np.ndarray, config: Config) -> np.ndarray:
    """llama.cpp turns neighbouring pairs where transformers turns halves of a head."""
    size = config["head_dim"]
    if rows.shape[0] % size:
        raise ValueError(f"{rows.shape[0]} rows are not complete heads of {size}")
    pairs = rows.reshape(-1, size // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _heads_interleaved(rows: np.ndarray, config: Config) -> np.ndarray:
    """BLOOM: query, key and value of each head together."""
    parts = rows.reshape(3, config["n_head"], -1, *rows.shape[1:])
    return parts.swapaxes(0, 1).reshape(rows.shape)


def _groups_interleaved(rows: np.ndarray, config: Config) -> np.ndarray:
    """Falcon: the queries of each key-value head, its key and its value together."""
    groups, queries = config["num_kv_heads"], config["hidden_size"]
    size = queries // config["num_attention_heads"]
    q, k, v = np.split(rows, [queries, queries + groups * size])
    parts = [part.reshape(groups, -1, *rows.shape[1:]) for part in (q, k, v)]
    return np.concatenate(parts, 1).reshape(rows.shape)


_PERMUTED = _Restore(pattern=r"\.attn_[qk]\.(weight|bias)$", function=_halves_of_heads, by_row=True)
_ONE_ADDED = _Restore(pattern=r"norm\.weight$", function=lambda array, _: array - 1)
_RESTORES: Mapping[str, tuple[_Restore, ...]] = {
    "bloom": (_Restore(pattern=r"\.attn_qkv\.", function=_heads_interleaved, by_row=True),),
    "falcon": (_Restore(pattern=r"\.attn_qkv\.", function=_groups_interleaved, by_row=True),),
    "gemma": (_ONE_ADDED,),
    "gemma2": (_ONE_ADDED,),
    "gemma3": (_ONE_ADDED,),
    "gpt2": (
        _Restore(
            pattern=r"\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$",
            function=lambda array, _: array.T,
        ),
    ),
    "granite": (_PERMUTED,),
    "lfm2": (
        _Restore(pattern=r"\.shortconv\.conv\.weight$", function=lambda array, _: array[:, None]),
    ),
    "llama": (_PERMUTED,),
    "mamba": (
        _Restore(pattern=r"\.ssm_conv1d\.weight$", function=lambda array, _: array[:, None]),
        _Restore(pattern=r"\.ssm_a$", function=lambda array, _: np.log(-array)),
    ),
    "nemotron": (_ONE_ADDED,),
    "qwen2moe": (
        _Restore(
            pattern=r"\.ffn_gate_inp_shexp\.weight$",
            function=lambda array, _: array.reshape(1, -1),
        ),
    ),
}


def _gate_then_up(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.concatenate((gate, up), 1)


def _gate_and_up_in_turn(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gpt-oss: the columns of both in turn, inputs first."""
    both = np.stack((gate, up), 2).reshape(gate.shape[0], -1, *gate.shape[2:])
    return np.swapaxes(both, 1, 2) if both.ndim == 3 else both


def _turned(array: np.ndarray) -> np.ndarray:
    return np.swapaxes(array, 1, 2)


_EXPERTS: Mapping[str, tuple[tuple[str, ...], Callable[..., np.ndarray]]] = {
    "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), _gate_then_up),
    "mlp.e_score_correction_bias": (("exp_probs_b.bias",), lambda array: array),
}
_GPT_OSS = {
    "mlp.experts.gate_up_proj": (
        ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        _gate_and_up_in_turn,
    ),
    "mlp.experts.gate_up_proj_bias": (
        ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
        _gate_and_up_in_turn,
    ),
    "mlp.experts.down_proj": (("ffn_down_exps.weight",), _turned),
    "mlp.experts.down_proj_bias": (("ffn_down_exps.bias",), lambda array: array),
    "self_attn.sinks": (("attn_sinks.weight",), lambda array: array),
}
"""Ends of names in a block -> the tensors that such a parameter is made of, and how."""


def read_tensors(
    file: GGUFFile, config: Config, names: Collection[str], *, keep: Collection[str] = ()
) -> Iterator[tuple[str, Tensor | Blocks]]:
    """Every parameter as (name, float32 tensor, or the blocks as they are stored).

    Args:
      file: the opened file.
      config: read from it by `gguf_architectures.read_config`.
      names: of the network's parameters; those that the file lacks are left out.
      keep: names whose blocks are to stay packed, where their format allows.

    Raises:
      InputError: the file has a tensor that no parameter is made of, or that cannot be read.
    """
    architecture = file.fields["general.architecture"]
    used = set(_ELSEWHERE)
    translate = _translator(architecture, config["num_hidden_layers"])
    parts = _GPT_OSS if architecture == "gpt-oss" else _EXPERTS
    for name in names:
        special = _parts(name, parts)
        sources, join = special or ((translate(name, file),), lambda array: array)
        if not all(source in file.tensors for source in sources):
            continue
        used.update(sources)
        arrays = [
            _restored(file, source, config, packed=name in keep and special is None)
            for source in sources
        ]
        if isinstance(arrays[0], Blocks):
            yield name, arrays[0]
            continue
        array = np.ascontiguousarray(join(*arrays))
        # torch warns of tensors over read-only memory
        yield name, torch.from_numpy(array if array.flags.writeable else array.copy())
    for name in file.tensors:
        if name not in used:
            raise InputError(
                f"{file.path} has a tensor {name!r:.80}, which a {config['model_type']} network "
                "lacks; use the model's Hugging Face folder"
            )


def _translator(architecture: str, blocks: int) -> Callable[[str, GGUFFile], str]:
    import gguf

    known = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known[architecture], blocks)

    def translate(name: str, file: GGUFFile) -> str:
        # The map knows BLOOM's names without their front.
        for form in (name, name.partition(".")[2]):
            translated = names.get_name(form, try_suffixes=(".weight", ".bias"))
            if translated is not None:
                endings = ("", ".weight") if "." in translated else ("",)
                return next(
                    (translated + e for e in endings if translated + e in file.tensors), translated
                )
        return ""

    return translate


def _parts(name: str, parts: Mapping[str, Any]) -> Any:
    match = re.fullmatch(r"(?:\w+\.)*?layers\.(\d+)\.(.+)", name)
    if match is None or match[2] not in parts:
        return None
    sources, join = parts[match[2]]
    return tuple(f"blk.{match[1]}.{source}" for source in sources), join


def _restored(file: GGUFFile, name: str, config: Config, *, packed: bool) -> np.ndarray | Blocks:
    restores = [
        r
        for r in _RESTORES.get(file.fields["general.architecture"], ())
        if re.search(r.pattern, name)
    ]
    tensor = file.tensors[name]
    keeps_blocks = packed and tensor.kind in FORMATS and all(r.by_row for r in restores)
    array = file.rows(name) if keeps_blocks else file.read(name)
    for restore in restores:
        try:
            array = restore.function(array, config)
        except ValueError as error:
            raise InputError(
                f"{file.path}: {name} of shape {tensor.shape} does not fit the header ({error}); "
                "fetch the file again"
            ) from error
    return Blocks(kind=tensor.kind, rows=array, shape=tensor.shape) if keeps_blocks else array
