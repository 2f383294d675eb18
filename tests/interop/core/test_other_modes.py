"""Modes of the user's own: a TorchFunctionMode as in torch, a TorchDispatchMode refused by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


class Scaling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 3 if func in (F.linear, F.relu, F.batch_norm) else out


class Casting(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear:
            args = [a.round(decimals=1) if isinstance(a, torch.Tensor) else a for a in args]
        return func(*args, **(kwargs or {}))


class Replacing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return F.gelu(args[0]) if func is F.relu else func(*args, **(kwargs or {}))


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in (F.linear, F.softmax, F.relu, torch.Tensor.add)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.ops.aten.relu.default else out


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.relu(x) * x

    @staticmethod
    def backward(ctx, g):
        return F.relu(ctx.saved_tensors[0]) * 2 * g


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.linear, self.norm, self.run = nn.Linear(5, 5), nn.BatchNorm1d(5), run

    def body(self, x):
        return F.softmax(F.relu(self.linear(x)), -1) + self.linear(x)

    def forward(self, x):
        return self.run(self, x)


def _within(kind):
    def run(net, x):
        with kind():
            return net.norm(net.body(x))

    return run


def _counted(net, x):
    with Counting() as counting:
        out = net.body(x)
    return out * counting.count


def _function(net, x):
    with Scaling():
        return Square.apply(net.linear(x))


def _without_gradients(net, x):
    with torch.no_grad(), Scaling():
        out = net.body(x)
    return out * net.linear(x)


def _mapped(net, x):
    with Scaling():
        return torch.vmap(net.body)(x)


def _on_a_device(net, x):
    with torch.device("cpu"):
        return net.body(x) + torch.ones(5)


RIGHT = {
    "scaled": _within(Scaling),
    "cast": _within(Casting),
    "replaced": _within(Replacing),
    "counted": _counted,
    "function": _function,
    "without gradients": _without_gradients,
    "mapped": _mapped,
    "device": _on_a_device,
}


@pytest.mark.parametrize("name", RIGHT)
def test_values_and_gradients_are_those_of_torch(name):
    module = Net(RIGHT[name])
    model = to_jax(module)
    module.double()
    x = torch.from_numpy(X).double().requires_grad_()
    expected = module(x)
    weights = np.cos(np.arange(expected.numel())).reshape(expected.shape)
    expected.backward(torch.from_numpy(weights))

    def loss(params, x):
        out = model.apply(params, model.buffers, x, train=True)[0]
        return (out * jnp.asarray(weights, jnp.float32)).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(model.params, X)
    close: Any = {"rtol": 1e-4, "atol": 1e-5}  # float32, through statistics of four rows
    np.testing.assert_allclose(out, expected.detach(), **close)
    assert x.grad is not None
    np.testing.assert_allclose(gradients[1], x.grad, **close)
    slope: Any = module.linear.weight.grad
    np.testing.assert_allclose(gradients[0]["linear.weight"], slope, **close)


def _checkpointed(net, x):
    with Scaling():
        return checkpoint(net.body, x, use_reentrant=False)


REFUSED = {
    "dispatch mode": (_within(Operators), r"Operators in forward is a TorchDispatchMode"),
    "recomputed": (_checkpointed, r"torch\.utils\.checkpoint within Scaling"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_acts_below_gradients_is_refused(name):
    run, message = REFUSED[name]
    model = to_jax(Net(run))
    with pytest.raises(UnsupportedTorchError, match=message):
        model.apply(model.params, model.buffers, X)


@pytest.mark.parametrize("kind", [Scaling, Operators])
def test_a_mode_around_the_call_is_refused(kind):
    model = to_jax(Net(Net.body))
    expected, _ = model.apply(model.params, model.buffers, X)
    with pytest.raises(UnsupportedTorchError, match=f"{kind.__name__} is active around"), kind():
        model.apply(model.params, model.buffers, X)
    with torch.device("meta"):  # says where tensors are made, which JAX decides
        out, _ = model.apply(model.params, model.buffers, X)
    np.testing.assert_array_equal(out, expected)


def test_hooks_of_a_refused_mode_do_not_stay():
    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with FlopCounterMode(display=False):
                return x * 2

    refused, net = to_jax(Counted()), nn.Linear(3, 3)
    with pytest.raises(UnsupportedTorchError, match="_FlopCounterMode in forward"):
        refused.apply({}, {}, jnp.ones((2, 3)))
    model = to_jax(net)  # torch's hooks of all modules would refuse it
    out, _ = model.apply(model.params, {}, jnp.ones((2, 3)))
    with torch.no_grad():
        np.testing.assert_allclose(out, net(torch.ones(2, 3)), atol=1e-6)
