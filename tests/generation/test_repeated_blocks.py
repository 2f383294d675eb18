"""Equal blocks of our own network are traced once, and compute what the whole network computes."""

import jax
import numpy as np
import pytest
import torch

from jaxsr.generation.repeated_blocks import RepeatedBlocks, as_it_stands
from jaxsr.generation.stored_weights import named_tensors, without_values
from jaxsr.interop.host_arrays import to_numpy
from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.network import Attention, CausalLM

_TOKENS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32)


@pytest.fixture
def network() -> CausalLM:
    torch.manual_seed(0)
    fields = {
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return CausalLM(LlamaConfig.from_hf(fields)).eval().requires_grad_(False)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Each run of a block's attention."""
    seen: list[Attention] = []
    forward = Attention.forward

    def noted(self: Attention, *args: object) -> object:
        seen.append(self)
        return forward(self, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Attention, "forward", noted)
    return seen


def _weights(network: CausalLM) -> dict[str, np.ndarray]:
    return {name: to_numpy(tensor) for name, tensor in named_tensors(network).items()}


def test_equal_blocks_are_traced_once(network: CausalLM, traces: list[Attention]):
    repeated = RepeatedBlocks(without_values(network))
    logits, new = jax.jit(repeated)(_weights(network), _TOKENS)
    assert len(traces) == 1
    with torch.no_grad():
        expected, cache = network(torch.from_numpy(_TOKENS).long())
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(new, cache, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_each_kind_of_block_is_traced(network: CausalLM, traces: list[Attention]):
    # Two other kinds: one by its tensors' shapes, one by a setting without tensors.
    wide = network.model.layers[1].mlp
    wide.gate_proj, wide.up_proj = torch.nn.Linear(16, 40, False), torch.nn.Linear(16, 40, False)
    wide.down_proj = torch.nn.Linear(40, 16, False)
    network.model.layers[2].mlp.act_fn = torch.nn.GELU()
    network.requires_grad_(False)
    repeated = RepeatedBlocks(without_values(network))
    logits, _ = jax.jit(repeated)(_weights(network), _TOKENS)
    assert len(traces) == 3
    with torch.no_grad():
        expected, _ = network(torch.from_numpy(_TOKENS).long())
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_programs_are_those_of_the_whole_network(network: CausalLM):
    skeleton, weights = without_values(network), _weights(network)
    programs = [
        jax.jit(function).lower(weights, _TOKENS).compile()
        for function in (RepeatedBlocks(skeleton), as_it_stands(skeleton))
    ]
    once, straight = (program(weights, _TOKENS) for program in programs)
    jax.tree.map(np.testing.assert_array_equal, once, straight)
    one, other = (program.cost_analysis() or {} for program in programs)
    assert one["flops"] == other["flops"] > 0
