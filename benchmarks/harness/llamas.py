"""Sizes of Llama 3.2 1B, Llama 3.1 8B and SmolLM2-135M, from their config.json."""

from collections.abc import Mapping
from typing import Any

LLAMAS: Mapping[str, Mapping[str, Any]] = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
           "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
           "tie_word_embeddings": False},
}  # fmt: skip


def random_smollm2(**changes: Any) -> Any:
    """A model of transformers of SmolLM2-135M's shape, random; `changes` to its configuration."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "tie_word_embeddings": True,
    }  # fmt: skip
    config = transformers.LlamaConfig(**sizes | changes)
    return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
