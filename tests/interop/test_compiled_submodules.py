"""Modules with parts that `torch.compile` has wrapped."""

import numpy as np
import torch
from torch import nn

from jaxsr.interop import to_jax


def test_a_compiled_submodule_runs_what_it_wraps():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.compile(nn.Linear(3, 2), backend="eager")

        def forward(self, x):
            return self.layer(x)

    x, net = torch.randn(4, 3), Net()
    model = to_jax(net)
    assert set(model.params) == set(net.state_dict())
    outputs, _ = model.apply(model.params, model.buffers, x.numpy())
    np.testing.assert_allclose(outputs, net(x).detach(), rtol=1e-5, atol=1e-6)
