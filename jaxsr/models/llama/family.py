"""Llama and Qwen3 among the model families."""

from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.network import CausalLM
from jaxsr.models.registry import Family

FAMILY = Family(
    kind="language model",
    config=LlamaConfig,
    network=CausalLM,
    small=LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
    ),
)
