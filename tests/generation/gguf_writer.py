"""Writes models of transformers as GGUF files, as llama.cpp's converter does."""

import gguf
import numpy as np
import torch

K = gguf.GGMLQuantizationType
ARCHITECTURES = {
    "bloom": "bloom",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "lfm2": "lfm2",
    "llama": "llama",
    "mamba": "mamba",
    "minimax_m2": "minimax-m2",
    "mixtral": "llama",
    "nemotron": "nemotron",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
_FIELDS = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_kv_heads", "num_key_value_heads", "num_attention_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "use_parallel_residual": ("use_parallel_residual",),
    "ssm.conv_kernel": ("conv_kernel",),
    "ssm.inner_size": ("intermediate_size",),
    "ssm.state_size": ("state_size",),
    "ssm.time_step_rank": ("time_step_rank",),
    "shortconv.l_cache": ("conv_L_cache",),
}
_ALLOWED = {
    "expert": ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "minimax_m2"),
    "attention.sliding_window": ("gemma2", "gemma3_text", "gpt_oss", "phi3"),
    "ssm": ("mamba",),
    "shortconv": ("lfm2",),
    "attention.scale": ("granite",),
    "use_parallel": ("stablelm",),
    "attention.key_length": (
        "gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe", "gpt_oss", "minimax_m2"),
    "attention.value_length": (
        "gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe", "gpt_oss", "minimax_m2"),
}  # fmt: skip


def permuted(weights, heads):
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def fields_of(model):
    """The architecture's fields, as the converter writes them."""
    config, kind = model.config, model.config.model_type
    fields = {}
    for field, names in _FIELDS.items():
        allowed = next((v for front, v in _ALLOWED.items() if field.startswith(front)), None)
        if allowed is not None and kind not in allowed:
            continue
        value = next((v for n in names if (v := getattr(config, n, None)) is not None), None)
        if value is not None and not isinstance(value, list):
            fields[field] = value
    if kind == "bloom":
        fields["feed_forward_length"] = 4 * config.hidden_size
        fields["context_length"] = 64
    if kind == "gpt2":
        fields["feed_forward_length"] = 4 * config.hidden_size
    if kind == "falcon":
        fields["attention.head_count_kv"] = (
            config.num_kv_heads if config.new_decoder_architecture or not config.multi_query else 1
        )
    if kind == "mamba":
        fields |= {
            "context_length": 2**20,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": fields.pop("attention.layer_norm_epsilon"),
        }
    if kind == "lfm2":
        per_block = [
            config.num_key_value_heads if t == "full_attention" else 0 for t in config.layer_types
        ]
        fields["attention.head_count_kv"] = per_block
        fields["feed_forward_length"] = model.model.layers[0].feed_forward.w1.out_features
    if kind == "gpt_oss":
        fields["expert_feed_forward_length"] = config.intermediate_size
    if kind == "minimax_m2":
        fields["expert_feed_forward_length"] = config.intermediate_size
        fields["expert_gating_func"] = 2
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:
        fields["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if "rope_theta" in rope:
        fields["rope.freq_base"] = rope["rope_theta"]
        size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        fields["rope.dimension_count"] = int(size * rope.get("partial_rotary_factor", 1))
        if rope["rope_type"] in ("linear", "yarn"):
            fields["rope.scaling.type"] = rope["rope_type"]
            fields["rope.scaling.factor"] = rope["factor"]
        if rope["rope_type"] == "yarn":
            original = rope["original_max_position_embeddings"]
            fields["rope.scaling.original_context_length"] = original
        if rope["rope_type"] == "longrope":
            original = rope["original_max_position_embeddings"]
            fields["rope.scaling.original_context_length"] = original
            fields["rope.scaling.attn_factor"] = rope["attention_factor"]
    return fields


def tensors_of(model):
    """(GGUF name, array) as the converter makes them."""
    config, kind = model.config, model.config.model_type
    architecture = ARCHITECTURES[kind]
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        size = config.hidden_size // config.num_attention_heads
        plain = 1.0 / rope["rope_theta"] ** (np.arange(0, size, 2) / size)
        yield "rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype("f4")
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", np.array(rope["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.array(rope["short_factor"], np.float32)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.detach().float().numpy()
        block = name.split(".layers.")[-1].partition(".")[0]
        if "experts.gate_up_proj" in name:
            end = ".bias" if name.endswith("_bias") else ".weight"
            if kind == "gpt_oss":
                array = array if end == ".bias" else array.swapaxes(1, 2)
                parts = array[:, ::2], array[:, 1::2]
            else:
                parts = np.split(array, 2, 1)
            for part, leaf in zip(parts, ("gate", "up"), strict=True):
                yield f"blk.{block}.ffn_{leaf}_exps{end}", part
            continue
        if name.endswith("experts.down_proj_bias"):
            yield f"blk.{block}.ffn_down_exps.bias", array
            continue
        if name.endswith("e_score_correction_bias"):
            yield f"blk.{block}.exp_probs_b.bias", array
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        found = found or names.get_name(name.partition(".")[2], try_suffixes=(".weight", ".bias"))
        assert found is not None
        if found.endswith(("_exps", "attn_sinks")):
            found += ".weight"
        yield found, _converted(kind, name, array, config)


def _converted(kind, name, array, config):
    if kind in ("llama", "mixtral", "granite"):
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for projection, count in heads.items():
            if projection in name:
                array = permuted(array, count)
    if kind in ("gemma", "gemma2", "gemma3_text", "nemotron") and name.endswith("norm.weight"):
        array = array + 1
    if kind == "bloom" and "query_key_value" in name:
        parts = array.reshape(config.n_head, 3, -1, *array.shape[1:])
        array = np.concatenate([parts[:, i].reshape(-1, *array.shape[1:]) for i in range(3)])
    if kind == "falcon" and "query_key_value" in name:
        groups = 1
        if config.new_decoder_architecture or not config.multi_query:
            groups = config.num_kv_heads
        size = config.hidden_size // config.num_attention_heads
        each = array.reshape(groups, -1, size, *array.shape[1:])
        parts = each[:, :-2], each[:, -2], each[:, -1]
        array = np.concatenate([p.reshape(-1, *array.shape[1:]) for p in parts])
    if kind == "gpt2" and array.ndim == 2 and ".h." in name:
        array = array.T
    if kind == "gpt_oss" and name.endswith("experts.down_proj"):
        array = array.swapaxes(1, 2)
    if name.endswith("A_log"):
        array = -np.exp(array)
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        array = array[:, 0]
    if name.endswith("shared_expert_gate.weight"):
        array = array[0]
    return array


def write_gguf(path, model, kind=K.F32, *, tokenizer=None, extra=None, keep=(), split=0):
    """Writes the file; quantises matrices whose rows are whole blocks, and those alone. With
    `split` there are parts of so many tensors.

    Returns:
      The values by GGUF name that a reader of the file sees.
    """
    architecture = ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    for field, value in {**fields_of(model), **(extra or {})}.items():
        key = field if field.startswith(("tokenizer.", "general.")) else f"{architecture}.{field}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    if tokenizer is not None:
        tokenizer(writer)
    used = {}
    for name, values in tensors_of(model):
        array = np.ascontiguousarray(values, dtype=np.float32)
        block = gguf.GGML_QUANT_SIZES[kind][0]
        if array.ndim < 2 or kind == K.F32 or array.shape[-1] % block or name in keep:
            writer.add_tensor(name, array)
            used[name] = array
        else:
            raw = gguf.quants.quantize(array, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
            used[name] = gguf.quants.dequantize(raw, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return used


def load_values(model, used):
    """Gives a model of transformers the values that a file holds, by its own names."""
    state = model.state_dict()
    stored = dict(zip_names(model))
    with torch.no_grad():
        for name, found in stored.items():
            if not state[name].is_floating_point() or found not in used:
                continue
            state[name].copy_(torch.from_numpy(used[found]).reshape(state[name].shape))


def zip_names(model):
    """(transformers' name, GGUF name) of the tensors that the converter only renames."""
    config = model.config
    number = next(
        n for n, v in gguf.MODEL_ARCH_NAMES.items() if v == ARCHITECTURES[config.model_type]
    )
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name in model.state_dict():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is not None:
            yield name, found
