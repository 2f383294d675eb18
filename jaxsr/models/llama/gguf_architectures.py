"""The configuration of a model from the header of its GGUF file, as in its `config.json`.

Names of fields: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Each field of the model
is read, or checked to have the one value that is computed; an unread field is refused.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxsr.errors import InputError
from jaxsr.models.llama.gguf_file import GGUFFile

Config = dict[str, Any]

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies: how the format states Llama 3.1's scaling."""
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

_REFUSED = {
    "t5": "an encoder and a decoder",
    "t5encoder": "an encoder",
    "bert": "an encoder",
    "nomic-bert": "an encoder",
    "deci": "no model of transformers",
    "clip": "an encoder of images",
}
"""Architectures that are not causal language models of transformers, and their descriptions."""


class Header:
    """Fields of one file's architecture, which notes those that were read."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = str(file.need("general.architecture"))
        # No result depends on these: the layout of the converter's input, and its history.
        self._read = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned"}

    def get(self, name: str, default: Any = None) -> Any:
        """A field's value; a float32 as the shortest decimal number that it came from."""
        self._read.add(name)
        value = self.file.fields.get(f"{self.architecture}.{name}", default)
        return float(f"{value:.6g}") if isinstance(value, float) else value

    def number(self, name: str, default: float | None = None) -> Any:
        """A positive number; `InputError` where the file has something else."""
        self._read.add(name)
        value = self.file.number(f"{self.architecture}.{name}", default)
        return float(f"{value:.6g}") if isinstance(value, float) else value

    def only(self, name: str, *values: Any) -> None:
        """Refuses another value than these, of a field that the file may lack."""
        value = self.get(name, values[0])
        if value not in values:
            raise InputError(
                f"{self.file.path}: {self.architecture}.{name} is {value!r:.60}, and only "
                f"{' or '.join(map(repr, values))} is computed; use the model's Hugging Face folder"
            )

    def has(self, tensor: str) -> bool:
        """Whether there is such a tensor, "*" for a block's number."""
        front, star, back = tensor.partition("*")
        if not star:
            return tensor in self.file.tensors
        return any(n.startswith(front) and n.endswith(back) for n in self.file.tensors)

    def refuse_unread(self) -> None:
        """Refuses a field of the architecture that was not read."""
        for name, value in self.file.fields.items():
            prefix, _, rest = name.partition(".")
            if prefix == self.architecture and rest not in self._read:
                raise InputError(
                    f"{self.file.path}: the field {name} = {value!r:.60} is not understood for "
                    f"{self.architecture} models; use the model's Hugging Face folder"
                )


def read_config(file: GGUFFile) -> Config:
    """The values of `config.json` that the header states.

    Raises:
      InputError: an architecture or a field that is not computed here, or a missing field.
    """
    header = Header(file)
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        what = f" ({_REFUSED[architecture]})" if architecture in _REFUSED else ""
        raise InputError(
            f"{file.path} holds a {architecture!r:.40} model{what}; GGUF files are read of "
            f"{', '.join(ARCHITECTURES)}: use the model's Hugging Face folder"
        )
    if len(getattr(file.tensors.get("token_embd.weight"), "shape", ())) != 2:
        raise InputError(
            f"{file.path} has no matrix token_embd.weight, so it is not a complete model; fetch it "
            "again"
        )
    config = _shared(header) | ARCHITECTURES[architecture](header)
    header.refuse_unread()
    return config


def _shared(header: Header) -> Config:
    """The settings that all architectures state alike."""
    heads = header.get("attention.head_count") or 1
    width = header.number("embedding_length")
    size = header.get("attention.key_length", width // heads if isinstance(heads, int) else None)
    header.only("attention.value_length", size)
    header.only("attention.causal", True)
    ids = {
        f"{name}_token_id": header.file.fields.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in {"bos": "bos", "eos": "eos", "pad": "padding"}.items()
    }
    return {
        "vocab_size": header.file.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "num_hidden_layers": header.number("block_count"),
        "tie_word_embeddings": not header.has("output.weight"),
        **ids,
    }


def _attention(header: Header, *, eps: str = "rms_norm_eps") -> Config:
    """A decoder with rotary attention."""
    heads = header.number("attention.head_count")
    head_dim = header.number("attention.key_length", header.number("embedding_length") // heads)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": header.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": header.get("feed_forward_length"),
        "max_position_embeddings": header.number("context_length"),
        eps: _epsilon(header),
        "rope_parameters": _rope(header, head_dim),
    }


def _epsilon(header: Header) -> float:
    rms = header.get("attention.layer_norm_rms_epsilon")
    plain = header.get("attention.layer_norm_epsilon")
    if not isinstance(rms or plain, float):
        raise InputError(
            f"{header.file.path} states no epsilon of its norms "
            f"({header.architecture}.attention.layer_norm_rms_epsilon); fetch it again"
        )
    return rms or plain


_PARTIAL_ROTARY = ("phi3", "stablelm", "nemotron", "minimax-m2")
"""Architectures whose code in transformers can turn a part of a head's features."""


def _rope(header: Header, head_dim: int) -> Config:
    """`rope_parameters`, with scaling and the share of a head's features that are turned."""
    rope: Config = {
        "rope_type": "default",
        "rope_theta": float(header.number("rope.freq_base", 10000.0)),
    }
    turned = header.number("rope.dimension_count", head_dim)
    if turned != head_dim:
        if header.architecture not in _PARTIAL_ROTARY or not 0 < turned < head_dim or turned % 2:
            raise InputError(
                f"{header.file.path} turns {turned} of a head's {head_dim} features "
                f"({header.architecture}.rope.dimension_count), which is not computed for "
                f"{header.architecture} models; use the model's Hugging Face folder"
            )
        rope["partial_rotary_factor"] = turned / head_dim
    original = header.get("rope.scaling.original_context_length")
    if header.has(_LONG_FACTORS) or header.has(_SHORT_FACTORS):
        return rope | _longrope(header, original)
    kind = header.get("rope.scaling.type", "linear")
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear")) or 1.0
    is_factor = isinstance(factor, float | int) and factor > 0
    if kind == "none" or (kind == "linear" and factor == 1):
        return rope
    if kind == "linear" and is_factor:
        return rope | {"rope_type": "linear", "factor": float(factor)}
    if kind == "yarn" and is_factor and original:
        scaling = {"factor": float(factor), "original_max_position_embeddings": original}
        for ours, theirs in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            scaling[ours] = float(header.get(f"rope.scaling.yarn_{ours}", theirs))
        return rope | {"rope_type": "yarn", **scaling}
    raise InputError(
        f"{header.file.path} scales rotary positions by {kind!r:.40} with factor {factor} and "
        f"original context {original}, which is not computed; use the model's Hugging Face folder"
    )


def _longrope(header: Header, original: Any) -> Config:
    header.only("rope.scaling.type", "longrope", "linear", "none")
    for name in ("rope.scaling.factor", "rope.scale_linear"):
        header.only(name, 1.0)
    factors = {}
    for name, tensor in (("long_factor", _LONG_FACTORS), ("short_factor", _SHORT_FACTORS)):
        if not header.has(tensor):
            raise InputError(f"{header.file.path} has one of {_LONG_FACTORS} and {_SHORT_FACTORS}, "
                             "but both are needed; fetch it again")  # fmt: skip
        factors[name] = [float(f"{x:.6g}") for x in header.file.read(tensor).flatten()]
    context = header.number("context_length")
    original = original or context
    scaling: Config = {
        "rope_type": "longrope",
        "original_max_position_embeddings": original,
        "factor": context / original,
        **factors,
    }
    if (scale := header.get("rope.scaling.attn_factor")) is not None:
        scaling["attention_factor"] = scale
    return scaling


def _experts(header: Header, count: str) -> Config:
    return {
        count: header.number("expert_count"),
        "num_experts_per_tok": header.number("expert_used_count"),
    }


# ---- an architecture's own fields


def _llama(header: Header) -> Config:
    config = {"model_type": "llama", **_attention(header)}
    if header.get("expert_count", 0):
        return config | {"model_type": "mixtral", **_experts(header, "num_local_experts")}
    header.only("expert_used_count", 0)
    return config | {
        "attention_bias": header.has("blk.0.attn_q.bias"),
        "mlp_bias": header.has("blk.0.ffn_gate.bias"),
    }


def _of_type(model_type: str, **constants: Any) -> Callable[[Header], Config]:
    """A rotary decoder without fields of its own."""
    return lambda header: {"model_type": model_type, **_attention(header), **constants}


def _qwen2_moe(header: Header) -> Config:
    header.only("expert_weights_norm", False)
    return {
        "model_type": "qwen2_moe",
        **_attention(header),
        **_experts(header, "num_experts"),
        "moe_intermediate_size": header.number("expert_feed_forward_length"),
        "shared_expert_intermediate_size": header.number("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
    }


def _qwen3_moe(header: Header) -> Config:
    header.only("expert_weights_norm", True)
    return {
        "model_type": "qwen3_moe",
        **_attention(header),
        **_experts(header, "num_experts"),
        "moe_intermediate_size": header.number("expert_feed_forward_length"),
        "norm_topk_prob": True,  # llama.cpp always does
    }


def _gpt_oss(header: Header) -> Config:
    config = {
        "model_type": "gpt_oss",
        **_attention(header),
        **_experts(header, "num_local_experts"),
        "intermediate_size": header.number("expert_feed_forward_length"),
        "sliding_window": header.number("attention.sliding_window"),
    }
    config["rope_parameters"]["truncate"] = False
    return config


def _lfm2(header: Header) -> Config:
    per_block = header.get("attention.head_count_kv")
    if not isinstance(per_block, list) or not any(per_block):
        raise InputError(
            f"{header.file.path}: lfm2.attention.head_count_kv is {per_block!r:.60}, not a number "
            "for each block; fetch it again"
        )
    heads = header.number("attention.head_count")
    return {
        "model_type": "lfm2",
        "num_attention_heads": heads,
        "num_key_value_heads": max(per_block),
        "layer_types": ["full_attention" if kv else "conv" for kv in per_block],
        "intermediate_size": header.number("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "max_position_embeddings": header.number("context_length"),
        "norm_eps": _epsilon(header),
        "conv_L_cache": header.number("shortconv.l_cache"),
        "conv_bias": header.has("blk.*.shortconv.in_proj.bias"),
        "rope_parameters": _rope(header, header.number("embedding_length") // heads),
    }


def _falcon(header: Header) -> Config:
    config = _attention(header, eps="layer_norm_epsilon")
    del config["head_dim"]  # follows from the others
    separate = header.has("blk.0.attn_norm_2.weight")
    return config | {
        "model_type": "falcon",
        "num_kv_heads": config["num_key_value_heads"],
        "ffn_hidden_size": config["intermediate_size"],
        "new_decoder_architecture": separate,
        "multi_query": not separate and config["num_key_value_heads"] == 1,
        "parallel_attn": True,
        "alibi": False,
        "bias": header.has("blk.0.attn_qkv.bias"),
    }


def _phi3(header: Header) -> Config:
    config = _attention(header)
    original = config["rope_parameters"].get("original_max_position_embeddings")
    return config | {
        "model_type": "phi3",
        "sliding_window": header.get("attention.sliding_window") or None,
        "original_max_position_embeddings": original or config["max_position_embeddings"],
    }


def _bloom(header: Header) -> Config:
    header.only("attention.max_alibi_bias", 8.0)
    heads = header.number("attention.head_count")
    header.only("attention.head_count_kv", heads)
    header.only("feed_forward_length", 4 * header.number("embedding_length"))
    header.number("context_length")
    return {
        "model_type": "bloom",
        "n_layer": header.number("block_count"),
        "n_head": heads,
        "layer_norm_epsilon": _epsilon(header),
    }


def _stablelm(header: Header) -> Config:
    parallel = not header.has("blk.0.ffn_norm.weight")
    header.only("use_parallel_residual", parallel)
    return {
        "model_type": "stablelm",
        **_attention(header, eps="layer_norm_eps"),
        "use_qkv_bias": header.has("blk.0.attn_q.bias"),
        "use_parallel_residual": parallel,
        "qk_layernorm": header.has("blk.0.attn_q_norm.weight"),
    }


def _gpt2(header: Header) -> Config:
    heads = header.number("attention.head_count")
    header.only("attention.head_count_kv", heads)
    return {
        "model_type": "gpt2",
        "n_embd": header.number("embedding_length"),
        "n_layer": header.number("block_count"),
        "n_head": heads,
        "n_positions": header.number("context_length"),
        "n_inner": header.number("feed_forward_length"),
        "layer_norm_epsilon": _epsilon(header),
    }


def _starcoder2(header: Header) -> Config:
    return {
        "model_type": "starcoder2",
        **_attention(header, eps="norm_epsilon"),
        "use_bias": header.has("blk.0.attn_q.bias"),
        "sliding_window": header.get("attention.sliding_window") or None,
    }


def _mamba(header: Header) -> Config:
    header.only("ssm.dt_b_c_rms", False)
    for name in ("attention.head_count", "feed_forward_length"):
        header.only(name, 0)
    header.number("context_length")
    inner = header.number("ssm.inner_size")
    return {
        "model_type": "mamba",
        "conv_kernel": header.number("ssm.conv_kernel"),
        "state_size": header.number("ssm.state_size"),
        "time_step_rank": header.number("ssm.time_step_rank"),
        "intermediate_size": inner,
        "expand": inner // header.number("embedding_length"),
        "layer_norm_epsilon": _epsilon(header),
        "use_conv_bias": header.has("blk.0.ssm_conv1d.bias"),
        "use_bias": header.has("blk.0.ssm_in.bias"),
    }


def _nemotron(header: Header) -> Config:
    return {
        "model_type": "nemotron",
        **_attention(header, eps="norm_eps"),
        "attention_bias": header.has("blk.0.attn_q.bias"),
        "mlp_bias": header.has("blk.0.ffn_up.bias"),
    }


def _gemma2(header: Header) -> Config:
    config = _attention(header)
    return config | {
        "model_type": "gemma2",
        "sliding_window": header.number("attention.sliding_window", 4096),
        "attn_logit_softcapping": header.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.get("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _gemma_scalar(header, config, blocks_of_27b=46),
    }


def _gemma3(header: Header) -> Config:
    config = _attention(header)
    local = {
        "rope_type": "default",
        "rope_theta": float(header.number("rope.freq_base_swa", 10000.0)),
    }
    header.only("attention.sliding_window_pattern", 6)
    return config | {
        "model_type": "gemma3_text",
        "sliding_window": header.number("attention.sliding_window"),
        "attn_logit_softcapping": header.get("attn_logit_softcapping"),
        "final_logit_softcapping": header.get("final_logit_softcapping"),
        "query_pre_attn_scalar": _gemma_scalar(header, config, blocks_of_27b=62),
        "rope_parameters": {
            "full_attention": config["rope_parameters"],
            "sliding_attention": local,
        },
    }


def _gemma_scalar(header: Header, config: Config, *, blocks_of_27b: int) -> int:
    """Queries are divided by the root of this; llama.cpp knows the 27B models by their blocks."""
    if header.number("block_count") == blocks_of_27b:
        return header.number("embedding_length") // config["num_attention_heads"]
    return config["head_dim"]


def _minimax_m2(header: Header) -> Config:
    header.only("expert_gating_func", 2)
    return {
        "model_type": "minimax_m2",
        **_attention(header),
        **_experts(header, "num_local_experts"),
        "intermediate_size": header.number(
            "expert_feed_forward_length", header.number("feed_forward_length")
        ),
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
    }


def _granite(header: Header) -> Config:
    return {
        "model_type": "granite",
        **_attention(header),
        "attention_multiplier": header.number("attention.scale"),
        "embedding_multiplier": header.number("embedding_scale"),
        "residual_multiplier": header.number("residual_scale"),
        "logits_scaling": header.number("logit_scale"),
        "attention_bias": header.has("blk.0.attn_q.bias"),
        "mlp_bias": header.has("blk.0.ffn_gate.bias"),
    }


ARCHITECTURES: Mapping[str, Callable[[Header], Config]] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gemma": _of_type("gemma"),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "gpt2": _gpt2,
    "granite": _granite,
    "lfm2": _lfm2,
    "llama": _llama,
    "mamba": _mamba,
    "minimax-m2": _minimax_m2,
    "nemotron": _nemotron,
    "olmo2": _of_type("olmo2"),
    "phi3": _phi3,
    "qwen2": _of_type("qwen2"),
    "qwen2moe": _qwen2_moe,
    "qwen3": _of_type("qwen3"),
    "qwen3moe": _qwen3_moe,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
"""`general.architecture` -> the configuration in the fields of such a file."""
