"""Copies of modules against what the original computes."""

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
