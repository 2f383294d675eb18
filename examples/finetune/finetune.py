"""Trains a causal language model of transformers on text: packed rows, LoRA, any mesh.

cd examples/finetune && python -m jaxsr.train finetune:Text --data ../../docs \
    --mesh data=2,fsdp=2,tensor=2 --accumulate 2

Without `--model` it is a small Llama with random weights that reads bytes; with it, a Hugging Face
folder with its tokenizer, whose weights stay as they are but for `--lora`.
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import jaxsr
from jaxsr.models.lora import add_lora


class Text(jaxsr.Task):
    """Next-token prediction; documents in one row do not see one another."""

    class Config(jaxsr.TaskConfig):
        steps = 200
        batch = 16
        optimizer = "adamw"
        lr = 3e-3
        betas = (0.9, 0.95)
        schedule = "cosine"
        warmup_steps = 10
        clip_norm = 1.0
        model: Path | None = None
        """Hugging Face folder. Default: a small network with random weights."""
        length: int = 128
        """Tokens in a row."""
        layers: int = 4
        """Layers of the small network."""
        lora: int = 0
        """Rank of adapters at the attention's projections; 0 trains all weights."""

    def __init__(self, config):
        super().__init__(config)
        self.tokenizer = None
        if config.model is not None:
            from transformers import AutoTokenizer

            self.tokenizer = AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)

    def network(self):
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

        if self.config.model is not None:
            network = AutoModelForCausalLM.from_pretrained(
                self.config.model, trust_remote_code=False
            ).float()
        else:
            network = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=256,
                    hidden_size=128,
                    intermediate_size=384,
                    num_hidden_layers=self.config.layers,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=self.config.length,
                    attn_implementation="sdpa",
                )
            )
        if self.config.lora:
            add_lora(network, "*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj", rank=self.config.lora)
        return network

    def loss(self, network, batch):
        document = batch["document"]
        length = document.shape[1]
        same = document[:, None, :, None] == document[:, None, None, :]
        earlier = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
        logits = network(
            input_ids=batch["token"],
            attention_mask=same & earlier,
            position_ids=batch["position"],
            use_cache=False,
        ).logits
        # The last token of a document predicts nothing; every row counts as much as its tokens.
        inside = document[:, 1:] == document[:, :-1]
        losses = F.cross_entropy(logits[:, :-1].mT, batch["token"][:, 1:], reduction="none")
        return (losses * inside).sum() / (len(document) * (length - 1))

    def metrics(self, network, batch):
        inside = batch["document"][:, 1:] == batch["document"][:, :-1]
        rows = self.loss(network, batch) * inside.numel()
        return {"nats_per_token": (rows, inside.sum())}

    def train_data(self):
        return {name: rows[np.arange(len(rows)) % 10 < 9] for name, rows in self._packed().items()}

    def validation_data(self):
        return {name: rows[9::10] for name, rows in self._packed().items()}

    def _packed(self):
        """All documents on end, cut into rows: tokens, whose document, and where in it."""
        folder = self.config.data or Path(__file__).parents[2] / "docs"
        texts = [path.read_text() for path in sorted(folder.glob("*.md"))]
        encode = (lambda text: self.tokenizer(text).input_ids) if self.tokenizer else str.encode
        encoded = [np.array([*encode(text)], np.int32) for text in texts]
        length = self.config.length
        numbers = [np.full(len(ids), number, np.int32) for number, ids in enumerate(encoded)]
        rows = sum(map(len, encoded)) // length
        token, document = (
            np.concatenate(parts)[: rows * length].reshape(rows, length)
            for parts in (encoded, numbers)
        )
        column = np.arange(length)
        begins = np.where(np.diff(document, axis=1, prepend=-1) != 0, column, 0)
        position = (column - np.maximum.accumulate(begins, axis=1)).astype(np.int32)
        return {"token": token, "document": document, "position": position}
