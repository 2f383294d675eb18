"""Tiny random models of transformers' families, and the greedy tokens that transformers gives."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from jaxsr.models.libraries import import_transformers
from tests.oracles.language_models.configurations import write_configuration

transformers = import_transformers()

PROMPTS = ([5, 9, 31, 14, 77, 50, 23], [61, 12, 40, 8, 97])
NEW_TOKENS = 24


def tiny_model(family: str, folder: Path) -> Any:
    """A model whose greedy tokens do not repeat at once; windows are shorter than the outputs."""
    path = folder / family / "config.json"
    write_configuration(path)
    values = json.loads(path.read_text())
    config = transformers.AutoConfig.for_model(**values)
    short = {w: 8 for w in ("sliding_window", "index_topk") if getattr(config, w, None)}
    config = transformers.AutoConfig.for_model(**values | short)
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.15)
    return model


def padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts padded with zeros on the left, and the mask of their tokens."""
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return tokens, mask


def reference_tokens(
    model: Any, *, prompts: Sequence[Sequence[int]] = PROMPTS, new_tokens: int = NEW_TOKENS
) -> list[list[int]]:
    """`generate` of transformers on the prompts, padded on the left."""
    tokens, mask = padded(prompts)
    outputs = model.generate(
        tokens,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return outputs[:, tokens.shape[1] :].tolist()
