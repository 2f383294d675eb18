"""F.linear's gradients against float64 torch, and products under autocast."""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import to_jax


def test_a_bias_behind_equal_rows_has_an_exact_gradient():
    """Zero-padded windows, as in SAM 2's Hiera: 180 of each image's 196 gradients are the same."""
    rng = np.random.default_rng(0)
    gradient = np.empty((2, 14, 14, 1152), np.float32)
    gradient[:] = rng.standard_normal(1152)
    gradient[:, :4, :4] = rng.standard_normal((2, 4, 4, 1152))
    jm = to_jax(nn.Linear(4, 1152))

    def apply(params):
        return jm.apply(params, {}, np.zeros((2, 14, 14, 4), np.float32))[0]

    actual = jax.jit(lambda params: jax.vjp(apply, params)[1](gradient)[0])(jm.params)["bias"]
    rows = torch.from_numpy(gradient).reshape(-1, 1152)
    exact = rows.double().sum(0).numpy()
    step = np.abs(exact).max() * 2**-23
    assert np.abs(rows.sum(0).numpy() - exact).max() < 4 * step
    np.testing.assert_allclose(actual, exact, rtol=0, atol=4 * step)


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (3, 0, 4), (0, 3, 2, 4)])
def test_a_batch_without_rows_has_gradients_of_zeros(shape):
    layer = nn.Linear(4, 2)
    layer(torch.zeros(shape)).sum().backward()
    jm = to_jax(layer)
    gradients = jax.grad(lambda p: jm.apply(p, {}, np.zeros(shape, np.float32))[0].sum())(jm.params)
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_array_equal(gradients[name], parameter.grad)


def test_forward_mode_and_vmap_pass_a_large_bias():
    jm = to_jax(nn.Linear(4, 1152))
    x = np.random.default_rng(0).standard_normal((3, 256, 4)).astype(np.float32)
    tangents = {name: np.ones_like(array) for name, array in jm.params.items()}
    out, change = jax.jvp(lambda p: jm.apply(p, {}, x)[0], (jm.params,), (tangents,))
    np.testing.assert_allclose(
        change, np.broadcast_to(x.sum(-1, keepdims=True) + 1, out.shape), atol=1e-5
    )
    mapped = jax.vmap(lambda x: jm.apply(jm.params, {}, x)[0])(np.stack([x, x]))
    np.testing.assert_allclose(mapped[1], out, atol=1e-6)


class Product(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return self.function(x, y), self.function(x.bfloat16(), y)


@pytest.mark.parametrize(
    "function",
    [torch.matmul, torch.bmm, lambda x, y: x @ y, lambda x, y: F.linear(x, y[0]),
     lambda x, y: torch.einsum("bij,bjk->bik", x.float(), y),
     lambda x, y: F.scaled_dot_product_attention(x, y, y, x.float())],
)  # fmt: skip
def test_autocast_casts_the_operands_of_products(function):
    x, y = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    module = Product(function)
    jm = to_jax(module)
    expected = module(torch.from_numpy(x), torch.from_numpy(y))
    for one, other in zip(jm.apply({}, {}, x, y)[0], expected, strict=True):
        assert str(one.dtype) == str(other.dtype).removeprefix("torch.")
        np.testing.assert_allclose(np.float32(one), other.float(), rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.matmul(input=x, other=y),
        lambda x, y: x.matmul(other=y),
        lambda x, y: torch.bmm(x, mat2=y),
        lambda x, y: torch.mm(input=x[0], mat2=y[0]),
    ],
)
def test_products_take_keywords(function):
    class Keywords(nn.Module):
        def forward(self, x, y):
            return function(x, y)

    x, y = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    expected = function(torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_allclose(to_jax(Keywords()).apply({}, {}, x, y)[0], expected, atol=1e-5)
