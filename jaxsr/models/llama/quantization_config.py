"""Reads `quantization_config` of a Hugging Face folder: every key is understood or refused by name.

`fp8` and `fbgemm_fp8` are as in `transformers`, `compressed-tensors` as in its own package. Keys
that say how scales were found while the checkpoint was made have no effect here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxsr.errors import InputError
from jaxsr.models.llama.quantized import Float8Activations

_ANY = object()
"""Stands for any value of a key without effect here."""
_NOT_CONVERTED = {
    "quant_method": _ANY,
    "modules_to_not_convert": _ANY,
    "ignored_layers": _ANY,
    "dequantize": (False,),
}
_CALIBRATION = {name: _ANY for name in ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")}


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The computation of a checkpoint's quantised layers."""

    block: tuple[int, int] | None = None
    """(rows, columns) of the weights' blocks; None for a scale per tensor or per output."""
    activations: Literal["int8"] | Float8Activations | None = None
    """The dtype to which activations are rounded as they come."""
    layout: Literal[
        "scaled", "gptq", "awq", "pack-quantized", "bitsandbytes", "four-bit", "mxfp4"
    ] = "scaled"
    """How a layer's tensors are laid out: see `jaxsr.models.llama.group_formats`; `scaled`: a
    weight and its scale."""
    group: int | Literal["all"] | None = None
    """Inputs with one scale, where the configuration says so."""
    options: tuple[tuple[str, Any], ...] = ()
    """Options of the function that makes a layer."""


def read_quantization(stated: Mapping[str, Any]) -> Quantization:
    """Reads the entry `quantization_config`.

    Raises:
      ValueError: a key or a value that is not computed here; the message names it.
    """
    method = stated.get("quant_method")
    if method == "fp8":
        return _fp8(stated)
    if method == "mxfp4":
        _check(stated, {**_NOT_CONVERTED, "dequantize": _ANY})
        return Quantization(layout="mxfp4")
    if method == "fbgemm_fp8":
        _check(stated, {**_NOT_CONVERTED, "activation_scale_ub": _ANY})
        bound = _number(stated, "activation_scale_ub", 1200.0)
        return Quantization(activations=Float8Activations(bound=bound))
    readers = {
        "compressed-tensors": _compressed_tensors,
        "gptq": _gptq,
        "awq": _awq,
        "bitsandbytes": _bitsandbytes,
    }
    if method in readers:
        return readers[method](stated)
    raise InputError(
        f"config.json has quant_method {method!r:.60}; fp8, fbgemm_fp8, mxfp4, "
        f"{', '.join(readers)} are read: use a checkpoint that is not quantised, and --quantize"
    )


_MADE_BY = {
    name: _ANY
    for name in (
        "quant_method", "tokenizer", "dataset", "damp_percent", "damp_auto_increment",
        "true_sequential", "static_groups", "model_name_or_path", "model_file_base_name", "meta",
        "backend", "use_exllama", "max_input_length", "exllama_config", "use_cuda_fp16",
        "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block",
        "batch_size", "pad_token_id", "cache_block_outputs", "modules_in_block_to_quantize",
        "act_group_aware", "quantizer", "sym", "desc_act", "group_size", "mse", "fuse_max_seq_len",
        "modules_to_not_convert", "do_fuse", "modules_to_fuse",
    )
}  # fmt: skip
"""Fields that say how a checkpoint was made and run, or that repeat facts of its tensors."""


def _gptq(stated: Mapping[str, Any]) -> Quantization:
    known = {
        **_MADE_BY,
        "bits": (4, 8),
        "checkpoint_format": (None, "gptq", "gptq_v2"),
        "format": (None, "gptq", "gptq_v2"),
        "pack_dtype": (None, "int32"),
        "lm_head": (None, False),
        "dynamic": (None, {}),
        "is_marlin_format": (None, False),
        "desc_act": (None, True, False),
        "sym": (None, True, False),
    }
    _check(stated, known, needed=("bits",))
    second = "gptq_v2" in (stated.get("checkpoint_format"), stated.get("format"))
    options = (
        ("bits", stated["bits"]),
        ("adds_one", not second),
        ("ordered", stated.get("desc_act") is True),
        ("symmetric", stated.get("sym") is True),
    )
    return Quantization(layout="gptq", group=_group_size(stated), options=options)


def _awq(stated: Mapping[str, Any]) -> Quantization:
    known = {
        **_MADE_BY,
        "bits": (4,),
        "version": (None, "gemm", "GEMM"),
        "format": (None, "gemm", "GEMM"),
        "zero_point": (None, True),
    }
    _check(stated, known, needed=("bits",))
    return Quantization(layout="awq", group=_group_size(stated))


def _bitsandbytes(stated: Mapping[str, Any]) -> Quantization:
    four = stated.get("load_in_4bit") is True
    known = {
        "quant_method": _ANY,
        "_load_in_8bit": _ANY,
        "_load_in_4bit": _ANY,
        "load_in_8bit": (None, False) if four else (True,),
        "load_in_4bit": (True,) if four else (None, False),
        "llm_int8_threshold": _ANY,
        "llm_int8_skip_modules": _ANY,
        "llm_int8_enable_fp32_cpu_offload": _ANY,
        "llm_int8_has_fp16_weight": (None, False),
        "bnb_4bit_compute_dtype": _ANY,
        "bnb_4bit_quant_storage": _ANY,
        "bnb_4bit_quant_type": _ANY,
        "bnb_4bit_use_double_quant": _ANY,
    }
    _check(stated, known, needed=() if four else ("load_in_8bit",))
    return Quantization(layout="four-bit" if four else "bitsandbytes")


def _fp8(stated: Mapping[str, Any]) -> Quantization:
    known = {
        **_NOT_CONVERTED,
        "activation_scheme": ("dynamic", "static"),
        "fmt": ("e4m3",),
        "scale_fmt": (None, "float"),
        "weight_block_size": _ANY,
    }
    _check(stated, known)
    block = _block(stated, "weight_block_size")
    if stated.get("activation_scheme") == "static":
        return Quantization(block=block, activations=Float8Activations(static=True))
    group = block[1] if block else None
    return Quantization(block=block, activations=Float8Activations(group=group))


def _compressed_tensors(stated: Mapping[str, Any]) -> Quantization:
    known = {
        "quant_method": _ANY,
        "format": (None, "float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
        "quantization_status": (None, "compressed", "frozen"),
        "global_compression_ratio": _ANY,
        "ignore": _ANY,
        "version": _ANY,
        "kv_cache_scheme": (None,),
        "sparsity_config": (None, {}),
        "transform_config": (None, {}),
        "config_groups": _ANY,
    }
    _check(stated, known)
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _refused("config_groups", groups, "needs at least one group")
    packed = stated.get("format") == "pack-quantized"
    read = [_group(group, f"config_groups.{name}", packed=packed) for name, group in groups.items()]
    if any(one != read[0] for one in read):
        raise _refused("config_groups", [*groups], "has groups that differ; one scheme is computed")
    return read[0]


def _group(group: Any, place: str, *, packed: bool) -> Quantization:
    if not isinstance(group, Mapping):
        raise _refused(place, group, "must be an object")
    formats = (None, "float-quantized", "int-quantized", "naive-quantized")
    if packed or group.get("format") == "pack-quantized":
        return _packed_group(group, place)
    known = {
        "targets": _ANY, "weights": _ANY, "input_activations": _ANY, "output_activations": (None,),
        "format": formats,
    }  # fmt: skip
    _check(group, known, place)
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise _refused(f"{place}.weights", weights, "must be an object")
    common = {
        "num_bits": (8,), "type": ("int", "float"), "symmetric": (True,), "actorder": (None, False),
        **_CALIBRATION,
    }  # fmt: skip
    known = {
        **common,
        "strategy": (None, "tensor", "channel", "block"),
        "block_structure": _ANY,
        "group_size": (None,),
        "dynamic": (False,),
    }
    _check(weights, known, f"{place}.weights", needed=("num_bits",))
    block = _block(weights, "block_structure", f"{place}.weights")
    if (weights.get("strategy") == "block") != (block is not None):
        raise _refused(f"{place}.weights.block_structure", block, "goes with strategy 'block'")
    rounded = group.get("input_activations")
    if rounded is None:
        return Quantization(block=block)
    place = f"{place}.input_activations"
    if not isinstance(rounded, Mapping):
        raise _refused(place, rounded, "must be an object")
    kind = weights.get("type", "int")
    if kind == "float" and rounded.get("dynamic") is False:
        known = common | {
            "type": (kind,), "strategy": ("tensor",), "dynamic": (False,), "group_size": (None,),
            "block_structure": (None,),
        }  # fmt: skip
        _check(rounded, known, place, needed=("num_bits", "strategy"))
        return Quantization(block=block, activations=Float8Activations(static=True))
    known = {
        **common,
        "type": (kind,),
        "strategy": ("token", "group") if kind == "float" else ("token",),
        "group_size": _ANY if rounded.get("strategy") == "group" else (None,),
        "block_structure": (None,),
        "dynamic": (True,),
    }
    _check(rounded, known, place, needed=("num_bits", "strategy", "dynamic"))
    if kind == "int":
        return Quantization(block=block, activations="int8")
    group_size = rounded.get("group_size")
    if rounded["strategy"] == "group" and not (isinstance(group_size, int) and group_size > 0):
        raise _refused(f"{place}.group_size", group_size, "must be a positive whole number")
    return Quantization(block=block, activations=Float8Activations(group=group_size))


def _packed_group(group: Mapping[str, Any], place: str) -> Quantization:
    known = {
        "targets": _ANY, "weights": _ANY, "input_activations": (None,),
        "output_activations": (None,), "format": (None, "pack-quantized"),
    }  # fmt: skip
    _check(group, known, place)
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise _refused(f"{place}.weights", weights, "must be an object")
    known = {
        "num_bits": (4, 8), "type": (None, "int"), "symmetric": (True, False),
        "actorder": (None, False, "static", "weight"), "strategy": ("channel", "group"),
        "group_size": _ANY, "block_structure": (None,), "dynamic": (None, False), **_CALIBRATION,
    }  # fmt: skip
    _check(weights, known, f"{place}.weights", needed=("num_bits", "strategy"))
    options = (("bits", weights["num_bits"]), ("symmetric", weights.get("symmetric", True)))
    group_size = "all" if weights["strategy"] == "channel" else _group_size(weights)
    return Quantization(layout="pack-quantized", group=group_size, options=options)


def _group_size(stated: Mapping[str, Any]) -> int | Literal["all"] | None:
    """Inputs of a group; None where nothing is stated."""
    value = stated.get("group_size")
    if value is not None and (type(value) is not int or not (value > 0 or value == -1)):
        raise _refused("group_size", value, "must be a positive whole number, or -1 for all inputs")
    return "all" if value == -1 else value


def _check(
    stated: Mapping[str, Any],
    known: Mapping[str, Any],
    place: str = "",
    *,
    needed: tuple[str, ...] = (),
) -> None:
    """Refuses keys that are not in `known`, and values that are not among those listed there."""
    for name, value in stated.items():
        key = f"{place}.{name}" if place else name
        if name not in known:
            raise _refused(key, value, f"is not understood; known are {', '.join(known)}")
        if known[name] is not _ANY and not any(_same(value, one) for one in known[name]):
            computed = ", ".join(map(repr, known[name]))
            raise _refused(key, value, f"is not computed here; {computed} is")
    for name in needed:
        if name not in stated:
            raise _refused(f"{place}.{name}" if place else name, None, "is missing")


def _same(value: Any, one: Any) -> bool:
    """Equality that tells numbers and truth values apart."""
    return value == one and isinstance(value, bool) == isinstance(one, bool)


def _block(stated: Mapping[str, Any], name: str, place: str = "") -> tuple[int, int] | None:
    value = stated.get(name)
    if value is None:
        return None
    sizes = isinstance(value, list | tuple) and len(value) == 2
    if not sizes or not all(type(size) is int and size > 0 for size in value):
        raise _refused(f"{place}.{name}" if place else name, value, "must be two positive sizes")
    return (value[0], value[1])


def _number(stated: Mapping[str, Any], name: str, default: float) -> float:
    value = stated.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise _refused(name, value, "must be a positive number")
    return float(value)


def _refused(key: str, value: Any, rule: str) -> InputError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return InputError(
        f"config.json's quantization_config has {key} = {shown}, which {rule}; use a checkpoint "
        "that is not quantised so, and --quantize"
    )
