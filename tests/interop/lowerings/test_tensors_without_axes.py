"""Tensors without axes beside others: torch casts them to the others' dtype first."""

import operator

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax


class Binary(nn.Module):
    def __init__(self, function, value):
        super().__init__()
        self.function = function
        self.register_buffer("value", value)

    def forward(self, x):
        return self.function(x, self.value)


FUNCTIONS = {
    **{n: getattr(operator, n) for n in ("eq", "lt", "ge", "add", "sub", "mul", "truediv", "mod")},
    **{n: getattr(torch, n) for n in ("maximum", "minimum", "fmod", "floor_divide", "rsub")},
    "subtracted": lambda x, y: y - x,
    "divided": lambda x, y: y / x,
    "times": lambda x, y: y * x,
    "clamp": lambda x, y: x.clamp(max=y),
    "both": lambda x, y: x.clamp(min=-y, max=y),
    "where": lambda x, y: torch.where(x > 2, x, y),
}


@pytest.mark.parametrize("value", [0.3, 7.3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_precision(name, value):
    x = torch.cat([torch.tensor([0.3, 7.3, 0.1]), torch.linspace(-9, 9, 99)]).bfloat16()
    net = Binary(FUNCTIONS[name], torch.tensor(value))
    got = to_jax(net).apply({}, {"value": jnp.float32(value)}, jnp.asarray(x.float(), "bfloat16"))
    assert np.array_equal(np.asarray(got[0], np.float32), net(x).float())


@pytest.mark.parametrize("value", [300, -1, 7])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bytes(name, value):
    x = torch.arange(1, 256).to(torch.uint8)
    net = Binary(FUNCTIONS[name], torch.tensor(value))
    model = to_jax(net)
    expected = net(x)
    got = np.asarray(model.apply(model.params, model.buffers, jnp.asarray(x.numpy()))[0])
    assert got.dtype == expected.numpy().dtype
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)


def test_bounds_that_bytes_do_not_hold_wrap():
    net = Binary(lambda x, _: x.clamp(min=-5), torch.tensor(0))
    x = np.array([0, 3, 255], np.uint8)
    got = to_jax(net).apply({}, {"value": jnp.int32(0)}, x)[0]
    assert np.array_equal(got, net(torch.from_numpy(x)))
