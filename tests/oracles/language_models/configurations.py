"""Configurations of tiny models of transformers: their own defaults with small sizes."""

import importlib
import json
from pathlib import Path
from typing import Any

_SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim",
                     "projection_dim", "word_embed_proj_dim", "embedding_size", "emb_dim",
                     "decoder_hidden_size", "encoder_hidden_dim", "attention_hidden_size",
                     "encoder_hidden_size", "lm_hidden_size", "text_hidden_size", "out_dim",
                     "qk_hidden_dim", "vision_hidden_size", "output_dim", "pooler_output_size",
                     "projection_size", "projector_input_dim", "projector_output_dim",
                     "vision_output_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
                     "decoder_layers", "depth", "num_decoder_layers", "num_encoder_layers",
                     "decoder_num_hidden_layers", "decoder_num_layers", "encoder_num_layers",
                     "num_hidden_groups", "e_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads",
                     "encoder_attention_heads", "decoder_attention_heads",
                     "decoder_num_attention_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff",
                     "n_inner", "moe_intermediate_size", "dim_feedforward", "ffn_hidden_size",
                     "shared_expert_intermediate_size", "mlp_dim", "decoder_intermediate_size",
                     "expert_ffn_hidden_size", "shared_intermediate_size"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "qk_rope_head_dim", "v_head_dim",
                     "qk_nope_head_dim", "kv_channels", "rotary_dim", "index_head_dim",
                     "mamba_d_head", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
                    4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions",
                     "max_target_positions", "block_size"), 64),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "text_vocab_size"), 128),
    **dict.fromkeys(("num_queries", "query_length", "num_latents"), 12),
    "image_size": 32, "patch_size": 8, "n_mels": 16, "num_codebooks": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Values for tiny transformers, wherever a configuration has such a whole number."""
_DEPTHS = ("depths", "num_layers", "num_hidden_layers", "encoder_layers", "layers_per_stage")
"""Lists with a number of layers for each stage."""
_OF_KIND: dict[str, dict[str, Any]] = {
    **{kind: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                  "mrope_section": [2, 1, 1]}}
       for kind in ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_image_text",
                    "glm_ocr_text", "paddleocr_vl_text", "qwen2_5_omni_text", "glmga_text")},
    "glm4v_moe_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                           "partial_rotary_factor": 0.5,
                                           "mrope_section": [1, 1, 0]}},
    "granite_speech5_encoder": {"context_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "head_dim": 8,
                        "num_key_value_heads": 2, "attention_window_size": 8},
    "xlstm": {"num_heads": 4, "hidden_size": 128, "embedding_dim": 128, "num_hidden_layers": 2,
              "num_blocks": 2, "chunk_size": 8, "autocast_kernel_dtype": "float32"},
    "textnet": {"image_size": [64, 64]},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX", "de_DE"]},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4,
              "attention_hidden_size": 64,
              "attention_head_dim": 16, "num_key_value_heads": 4, "mamba_dt_rank": 4,
              "mamba_d_state": 8, "hidden_size": 32},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "dac": {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32,
            "hidden_size": 16, "upsampling_ratios": [4, 2]},
    "deepseek_v2": {"first_k_dense_replace": 1, "topk_group": 1, "n_group": 1,
                    "num_experts_per_tok": 2},
    "deepseek_v3": {"first_k_dense_replace": 1, "topk_group": 1, "n_group": 1},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"],
                            "num_hidden_layers": 2, "rope_parameters": {
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                "full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "axk1": {"n_group": 1, "topk_group": 1},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0},
             "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4,
                            "moe_top_k": 2}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
              "first_k_dense_replace": 1},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2,
                     "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "intermediate_size": [64] * 4, "laurel_rank": 8,
                     "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
                     "hidden_size_per_layer_input": 8},
    "kimi_linear": {"num_experts": 4, "num_experts_per_token": 2, "linear_head_dim": 8,
                    "linear_num_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3,
                 "num_dense_layers": 1},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8,
                       "indexer_budget": 8, "indexer_compress_ratio": 2,
                       "linear_num_key_heads": 2, "linear_num_value_heads": 4, "hc_lowrank": 8},
    "esm": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1,
            "emb_layer_norm_before": False},
    "esmc": {"num_key_value_heads": 4},
    "llama4_vision_model": {"intermediate_size": 128},
    "funnel": {"block_sizes": [1, 1], "d_head": 8, "d_inner": 64, "d_model": 32, "n_head": 4},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8,
                         "layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 5, "shape_size": 6},
    "levit": {"hidden_sizes": [16, 24, 32], "key_dim": [4, 4, 4], "num_attention_heads": [2, 3, 4],
              "depths": [1, 1, 1], "image_size": 64, "patch_size": 16},
    "lilt": {"channel_shrink_ratio": 2, "hidden_size": 48},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8, "chunk_size": 8},
    "mgp-str": {"image_size": [32, 128], "patch_size": 4},
    "mimi": {"num_filters": 4, "hidden_size": 32, "codebook_dim": 16, "upsample_groups": 32,
             "vector_quantization_hidden_dimension": 16, "codebook_size": 16},
    "ministral": {"head_dim": 8}, "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "patchtst": {"num_input_channels": 2, "context_length": 16, "patch_length": 4,
                 "patch_stride": 4},
    "patchtsmixer": {"num_input_channels": 2, "context_length": 16, "patch_length": 4,
                     "patch_stride": 4},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 4], "hidden_size": 32,
                 "attention_head_size": 8, "local_attn_chunk_length": 4,
                 "lsh_attn_chunk_length": 4, "feed_forward_size": 32, "num_buckets": 2,
                 "attn_layers": ["local", "lsh"]},
    "sam2_hiera_det_model": {"embed_dim_per_stage": [16, 32, 64, 128], "hidden_size": 16,
                             "num_attention_heads_per_stage": [1, 2, 4, 8],
                             "num_attention_heads": 1, "blocks_per_stage": [1, 1, 1, 1],
                             "image_size": [64, 64]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "n_mamba_heads": 8,
               "mamba_headdim": 8, "mamba_ngroups": 1, "hidden_size": 32, "mamba_d_state": 8,
               "num_key_value_heads": 4, "attention_hidden_size": 64, "attention_head_dim": 16,
               "hybrid_layer_ids": [1], "chunk_size": 8, "adapter_rank": 4},
}  # fmt: skip
"""Where sizes depend on each other in ways of their own."""


def write_configuration(path: Path) -> None:
    """Writes the configuration of a tiny model, whose kind is the folder's name."""
    configurations = importlib.import_module("transformers.models.auto.configuration_auto")
    kind = path.parent.name
    values = _reduced(configurations.CONFIG_MAPPING[kind]().to_dict())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**values, "model_type": kind}, default=str))


def _reduced(config: dict[str, Any], *, nested: bool = False) -> dict[str, Any]:
    """The sizes of a tiny model; all other values are left to the configuration's class.

    Args:
      config: all values of a configuration.
      nested: it is part of another, whose defaults may differ from those of its class.
    """
    values: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            values[name] = _reduced(value, nested=True)
        elif name in _DEPTHS and isinstance(value, list):
            values[name] = [1 for _ in value]
        elif (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value > _SIZES.get(name, value)
        ):
            values[name] = _SIZES[name]
        elif nested and isinstance(value, (str, bool, int, float)):
            values[name] = value
    if config.get("kv_lora_rank"):  # latent attention has as many keys as queries
        values |= {"num_key_value_heads": 4, "qk_head_dim": 16, "head_dim": 8}
    heads = config.get("num_heads")
    if isinstance(heads, list) and "embed_dim" in config:
        width = config["embed_dim"]
        widths = [8 * head for head in heads] if isinstance(width, list) else 8 * heads[0]
        values |= {"embed_dim": widths, "window_size": 4}
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and layer_types:
        kinds = list(dict.fromkeys(layer_types))
        values["layer_types"] = kinds * 2 if len(kinds) == 1 else kinds
        values["num_hidden_layers"] = len(values["layer_types"])
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        values["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1]}
    return values | _OF_KIND.get(config.get("model_type", ""), {})
