"""Copies of modules against what the original computes."""

import numpy as np
import torch
from torch import nn

from jaxsr.interop.module_copy import copy_module


class Hooked(nn.Module):
    """A hook and an attribute are functions over the module itself."""

    def __init__(self):
        super().__init__()
        self.layer, self.features = nn.Linear(2, 2), {}
        self.layer.register_forward_hook(
            lambda module, inputs, output: self.features.__setitem__("layer", output)
        )
        self.doubled = lambda x: 2 * self.layer(x)

    def forward(self, x):
        return self.doubled(x) + self.features["layer"]


class Holding(nn.Module):
    def __init__(self, held: list):
        super().__init__()
        self.held = held


def test_functions_over_the_module_are_over_its_copy():
    module, x = Hooked(), torch.ones(1, 2)
    copied = copy_module(module)
    module.layer.weight.data.zero_()
    module.features = None
    fresh = Hooked()
    fresh.load_state_dict(copied.state_dict())
    assert torch.equal(copied(x), fresh(x))
    assert copied.layer.weight.any()


def test_a_list_in_itself_is_copied():
    network = Holding([torch.ones(2)])
    network.held.append(network.held)
    twin = copy_module(network)
    assert twin.held[1] is twin.held is not network.held


def test_an_array_of_repeated_values_stays_small():
    table = np.broadcast_to(np.arange(2.0)[:, None], (2, 10**12))
    first, second = copy_module(Holding([table, table])).held
    assert first.shape == (2, 10**12) and first.strides == (8, 0)
    assert first[:, -1].tolist() == [0, 1] and first is second
    assert not np.shares_memory(first[:, :1], table[:, :1])
