"""Sizes of Llama 3.2 1B and Llama 3.1 8B (arXiv:2407.21783 and their config.json)."""

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
