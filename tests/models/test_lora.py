"""Adapters against peft's, or against their definition where peft is not installed."""

from typing import Any

import pytest
import torch
from torch import nn

from jaxsr.errors import InputError
from jaxsr.models.lora import LoraLinear, add_lora, merge_lora


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.out = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.q_proj(x)))


def adapted():
    torch.manual_seed(0)
    network = Block()
    assert add_lora(network, "*q_proj", rank=2, alpha=6) == ["q_proj"]
    layer = network.q_proj
    assert isinstance(layer, LoraLinear)
    nn.init.normal_(layer.b)
    return network


def test_only_the_adapters_learn_and_begin_at_zero():
    torch.manual_seed(0)
    plain = Block()
    torch.manual_seed(0)
    network = Block()
    add_lora(network, "q_proj", "out")
    learning = [name for name, p in network.named_parameters() if p.requires_grad]
    assert learning == ["q_proj.a", "q_proj.b", "out.a", "out.b"]
    x = torch.randn(3, 6)
    torch.testing.assert_close(network(x), plain(x))


def test_merged_weights_give_the_same_under_the_first_names():
    network, x = adapted(), torch.randn(3, 6)
    expected = network(x)
    merged = merge_lora(network)
    assert merged.state_dict().keys() == Block().state_dict().keys()
    torch.testing.assert_close(merged(x), expected)


def test_against_peft():
    try:
        import peft  # type: ignore[import-not-found]
    except Exception as error:
        pytest.skip(f"peft cannot be imported: {error}")
    network, x = adapted(), torch.randn(3, 6)
    expected = network(x)
    layer = network.q_proj
    assert isinstance(layer, LoraLinear)
    network.q_proj = layer.base
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"])
    other = peft.get_peft_model(network, config)
    theirs: Any = other.base_model.model.get_submodule("q_proj")
    theirs.lora_A["default"].weight.data = layer.a.data
    theirs.lora_B["default"].weight.data = layer.b.data
    torch.testing.assert_close(other(x), expected)


def test_what_is_refused():
    with pytest.raises(InputError, match=r"'\*.v_proj' matches no linear layer; there are q_proj"):
        add_lora(Block(), "*.v_proj")
    with pytest.raises(InputError, match="rank must be at least 1, got 0"):
        add_lora(Block(), "out", rank=0)
