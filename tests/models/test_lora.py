"""Adapters against peft's, or against their definition where peft is not installed."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from jaxsr.errors import InputError
from jaxsr.interop import to_jax
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


def test_adapters_are_where_their_layers_are():
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(4, 3))
    add_lora(network, "0")
    assert {parameter.device.type for parameter in network.parameters()} == {"meta"}


def test_merged_weights_give_the_same_under_the_first_names():
    network, x = adapted(), torch.randn(3, 6)
    expected = network(x)
    merged = merge_lora(network)
    assert merged.state_dict().keys() == Block().state_dict().keys()
    torch.testing.assert_close(merged(x), expected)


@pytest.mark.parametrize("is_training", [True, False])
def test_torchs_own_transformer_layers(is_training):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    names, x = layer.state_dict().keys(), torch.randn(2, 3, 8)
    assert add_lora(layer, "*", rank=2) == ["self_attn.out_proj", "linear1", "linear2"]
    for name in ("self_attn.out_proj", "linear1", "linear2"):
        adapted = layer.get_submodule(name)
        assert isinstance(adapted, LoraLinear)
        nn.init.normal_(adapted.b)
    layer.train(is_training)
    results = layer(x)
    results.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in layer.parameters() if p.requires_grad)
    with torch.no_grad():  # where torch computes the whole layer in one operation
        torch.testing.assert_close(layer(x), results)
        jax_layer = to_jax(layer)
        ours, _ = jax_layer.apply(jax_layer.params, jax_layer.buffers, x.numpy(), train=False)
        expected = merge_lora(layer).eval()(x)
    assert layer.state_dict().keys() == names
    torch.testing.assert_close(results, expected)
    np.testing.assert_allclose(ours, expected, atol=1e-5)  # values near 1


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


class Masked(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.tril(), self.bias)


def test_weights_that_no_adapter_can_be_merged_into_are_refused():
    def tied():
        network = nn.ModuleDict({"embed": nn.Embedding(6, 4), "head": nn.Linear(4, 6)})
        network["head"].weight = network["embed"].weight
        return network

    shared = Block()
    shared.again = shared.q_proj
    computed = nn.Sequential(spectral_norm(nn.Linear(4, 4)))
    scaled, hooked = nn.Linear(4, 4), nn.Linear(4, 4)
    scaled.forward = lambda x: nn.Linear.forward(scaled, x) / 10
    halve: Any = lambda module, args, output: output / 2  # noqa: E731
    hooked.register_forward_hook(halve)
    for network, place in (
        (tied(), r"head\.weight: it is also embed\.weight; leave head out"),
        (shared, r"q_proj\.weight: it is also again;"),
        (computed, r"0\.weight: it is computed from other tensors"),
        (nn.Sequential(Masked(4, 4)), r"0\.weight: Masked has a forward other than nn\.Linear's"),
        (nn.Sequential(scaled), r"0\.weight: Linear has a forward other than nn\.Linear's"),
        (nn.Sequential(hooked), r"0\.weight: hooks may change the layer's input or output"),
    ):
        with pytest.raises(InputError, match=f"cannot be merged into {place}"):
            add_lora(network, "*")
        assert all(parameter.requires_grad for parameter in network.parameters())
    block = Block()  # a layer in it has one place, by two names
    assert add_lora(nn.Sequential(block, block), "*out") == ["0.out"]


def test_what_is_refused():
    with pytest.raises(InputError, match=r"'\*.v_proj' matches no linear layer; there are q_proj"):
        add_lora(Block(), "*.v_proj")
    with pytest.raises(InputError, match=r"is an nn\.Linear, .* put it into an nn\.Sequential"):
        add_lora(nn.Linear(3, 4), "*")
    ranks: tuple[Any, ...] = (0, 2.5, "8", np.int64(2))
    for rank in ranks[:3]:
        with pytest.raises(InputError, match=f"whole number of at least 1, got {rank!r}"):
            add_lora(Block(), "out", rank=rank)
    network = Block()
    add_lora(network, "out", rank=ranks[3])
    with pytest.raises(InputError, match=r"adapters already, the first at out; .*merge_lora"):
        add_lora(network, "*")
    assert add_lora(merge_lora(network), "*", rank=1)
