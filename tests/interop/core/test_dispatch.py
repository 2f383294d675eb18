"""The dispatcher with operators that have no lowering, and with a user's lowering."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, lowering, to_jax
from jaxsr.interop._core import registry
from jaxsr.interop._core.registry import Kind, resolve

aten = torch.ops.aten


pytestmark = pytest.mark.usefixtures("registry_copy")


class Erf(nn.Module):
    def forward(self, x):
        return torch.special.erfcx(x) + torch.relu(x)


class Airy(nn.Module):
    def forward(self, x):
        return torch.special.airy_ai(x)


def _run(module, x):
    model = to_jax(module)
    return model.apply(model.params, model.buffers, x)[0]


def test_an_operator_that_nobody_computes_says_where_to_add_it(monkeypatch):
    monkeypatch.setattr(registry.torchax, "lowering", lambda _: None)
    monkeypatch.setattr(registry.torchax, "decomposition", lambda _: None)
    registry.load()
    registry.resolve.cache_clear()
    with pytest.raises(UnsupportedTorchError) as error:
        _run(Airy(), jnp.ones(3))
    assert "aten.special_airy_ai.default has no JAX lowering" in str(error.value)
    assert "jaxsr.interop.lowering" in str(error.value)
    assert "file of interop/lowerings" in str(error.value)


def test_a_users_lowering_is_called():
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    lowering(aten.special_erfcx.default)(lambda x: jnp.exp(x * x) * jax.scipy.special.erfc(x))
    lowering(aten.relu.default)(lambda x: 2 * x)
    expected = torch.special.erfcx(torch.from_numpy(x)) + 2 * torch.from_numpy(x)
    np.testing.assert_allclose(_run(Erf(), jnp.asarray(x)), expected, rtol=1e-5)
    assert resolve(aten.relu.default).kind is Kind.USER


def test_constants_are_left_to_torch():
    """A lowering is for what an input reaches: masks and tables are torch's."""
    lowering(aten.relu.default)(lambda x: 2 * x)

    class Constant(nn.Module):
        def forward(self, x):
            return x + torch.relu(torch.tensor([-1.0, 1.0]))

    np.testing.assert_array_equal(_run(Constant(), jnp.zeros(2)), [0.0, 1.0])


def test_modules_run_under_disable_jit():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    x = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    model = to_jax(module.eval())
    with jax.disable_jit():
        got, _ = model.apply(model.params, model.buffers, x)
        slope = jax.grad(lambda x: model.apply(model.params, model.buffers, x)[0].sum())(x)
    tensor = torch.from_numpy(x).requires_grad_()
    expected = module(tensor)
    (gradient,) = torch.autograd.grad(expected.sum(), [tensor])
    np.testing.assert_allclose(got, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(slope, gradient, atol=1e-5)


def test_retain_grad_changes_nothing():
    class Keeps(nn.Module):
        def forward(self, x):
            y = x.exp()
            y.retain_grad()
            return y * y

    x = np.random.default_rng(0).random(5, np.float32)
    model = to_jax(Keeps())
    slope = jax.grad(lambda x: model.apply(model.params, model.buffers, x)[0].sum())(x)
    np.testing.assert_allclose(slope, 2 * np.exp(2 * x), rtol=1e-5)
