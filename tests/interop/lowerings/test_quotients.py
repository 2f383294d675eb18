"""Quotients against torch: their last bit, and gradients of very small and very large numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.models.losses.pictures import ms_ssim
from tests.interop.core.function_net import FunctionNet


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


def gradients(function, x, y):
    """By JAX and by torch, of a sum; numbers are float64 arrays."""
    network = to_jax(Function(function))

    def total(x, y):
        return network.apply({}, {}, x, y)[0].sum()

    arrays = [jnp.asarray(t.float().numpy(), str(t.dtype).removeprefix("torch.")) for t in (x, y)]
    ours = jax.jit(jax.grad(total, argnums=(0, 1)))(*arrays)
    leaves = [t.clone().requires_grad_() for t in (x, y)]
    function(*leaves).sum().backward()
    return [
        [np.asarray(g.astype(np.float64)) for g in ours],
        [leaf.grad.double().numpy() for leaf in leaves],
    ]


NUMBERS = {
    "float16": ([1e-3, 2.0, 1e-2, 300.0, 0.0, 5.0], [2e-3, 3.0, -5e-3, 1000.0, 1e-3, 500.0]),
    "float32": ([1e-25, 1e25, 1e-30, 0.0, 1.0], [1e-22, 1e20, 1e-21, 1e-20, 2.0]),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x / y,
        lambda x, y: x.clone().div_(y),
        lambda x, y: x / (y.abs() + 1e-20),
        lambda x, y: x + 3 * y[:1] / y[1],
        lambda x, y: x * (y.abs().clamp(max=1e4) + 0.01).reciprocal(),
    ],
    ids=["quotient", "in place", "epsilon", "of one number", "reciprocal"],
)
def test_slopes_are_finite_where_torchs_are(function, dtype):
    x, y = (torch.tensor(values, dtype=getattr(torch, dtype)) for values in NUMBERS[dtype])
    for ours, torchs in zip(*gradients(function, x, y), strict=True):
        np.testing.assert_allclose(ours, torchs, rtol=4e-3 if dtype == "float16" else 1e-5)


def test_a_loss_of_quotients_in_float16():
    random = np.random.default_rng(0)
    image = torch.from_numpy(random.random((1, 1, 161, 161), np.float32))
    noisy = (image + 0.1 * torch.from_numpy(random.random(image.shape, np.float32))).half()
    ours, torchs = gradients(ms_ssim, noisy, image.half())
    assert np.isfinite(ours).all()
    # Gradients of 1e-5 are whole multiples of 6e-8 in float16, and are sums of many.
    np.testing.assert_allclose(ours, torchs, atol=0.05 * np.abs(torchs).max())


CUTS = {
    "a number": lambda x: (x / 0.3).floor(),
    "long": lambda x: (x / 0.001).long(),
    "a row": lambda x: (x / torch.tensor([0.3, 0.05, 0.001])).floor(),
    "a computed row": lambda x: (x / (x[:1] + 0.3)).floor(),
    "a maximum": lambda x: (x / x.amax() * 255).floor(),
    "rounding_mode": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "in place": lambda x: x.clone().div_(7).round(),
    "float16": lambda x: (x.half() / 0.3).floor(),
    "decimals": lambda x: x.round(decimals=2),
    "tens": lambda x: (x * 1000).round(decimals=-1),
    "decimals of float16": lambda x: (x * 1000).half().round(decimals=1),
    "decimals of bfloat16": lambda x: x.bfloat16().round(decimals=2).float(),
}


@pytest.mark.parametrize("name", CUTS)
def test_whole_parts_of_quotients(name):
    grid = np.random.default_rng(0).integers(0, 50_000, (3000, 3)).astype(np.float32) / 1000
    network = to_jax(FunctionNet(lambda _, x: CUTS[name](x)))
    got = jax.jit(lambda x: network.apply({}, {}, x)[0])(grid)
    np.testing.assert_array_equal(got, CUTS[name](torch.from_numpy(grid)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_to_decimals_has_a_gradient_of_zero(dtype):
    x = torch.linspace(-2, 2, 9, dtype=getattr(torch, dtype))
    ours, torchs = gradients(lambda x, y: x.round(decimals=1) + y, x, x)
    np.testing.assert_array_equal(ours[0], torchs[0])
