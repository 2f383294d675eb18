"""Llama-like models of few layers as a task of `jaxsr.train`, to be compiled ahead of time."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jaxsr
from benchmarks.harness.llamas import LLAMAS


class Text(jaxsr.Task):
    """Next-token prediction on rows of one document each; all weights are trained."""

    remat_blocks = ("model.layers.*",)  # one layer is not a list of equal modules

    class Config(jaxsr.TaskConfig):
        """Options of the task."""

        optimizer = "adamw"
        lr = 1e-5
        size: Literal["1B", "8B"] = "1B"
        """Size of the network."""
        layers: int | None = None
        """Default: all of them."""
        length: int = 2048
        """Tokens in a row."""

    def network(self) -> nn.Module:
        """transformers' own."""
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes: dict[str, Any] = {**LLAMAS[self.config.size], "attn_implementation": "sdpa"}
        if self.config.layers is not None:
            sizes["num_hidden_layers"] = self.config.layers
        return LlamaForCausalLM(LlamaConfig(**sizes))

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of the next token."""
        tokens = batch["token"]
        logits = network(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long())

    def train_data(self) -> dict[str, np.ndarray]:
        """Zeros: only shapes count."""
        return {"token": np.zeros((self.config.batch, self.config.length), np.int32)}


def shapes(size: str) -> list[tuple[int, ...]]:
    """Shapes of the whole model's parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        network = LlamaForCausalLM(LlamaConfig(**LLAMAS[size]))
    return [tuple(parameter.shape) for parameter in network.parameters()]
