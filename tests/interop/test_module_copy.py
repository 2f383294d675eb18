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
    network = nn.Linear(2, 2)
    network.parts = [network.weight.detach() * 2]
    network.parts.append(network.parts)
    twin = copy_module(network)
    assert twin.parts[1] is twin.parts is not network.parts


def test_an_array_of_repeated_values_stays_small():
    network = nn.Linear(2, 2)
    network.table = np.broadcast_to(np.arange(2.0)[:, None], (2, 10**12))
    network.same = network.table
    twin = copy_module(network)
    assert twin.table.shape == (2, 10**12) and twin.table.strides == (8, 0)
    assert twin.table[:, -1].tolist() == [0, 1] and twin.same is twin.table
    assert not np.shares_memory(twin.table[:, :1], network.table[:, :1])
