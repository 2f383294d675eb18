"""`torch.autograd.Function.apply` under other names has the Function's own gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from jaxsr.interop import to_jax

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 3


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return round_(x * 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.saved_tensors[0]


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x.round() * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.scale, None


class Child(Round):
    """Inherits both methods."""


round_ = Round.apply
nested = Nested.apply
TABLE = {"round": Round.apply}


@functools.wraps(Round.apply)
def wrapped(*args: Any) -> Any:
    return round_(*args)


def default(x: torch.Tensor, function: Any = Round.apply) -> torch.Tensor:
    return function(x)


def closure() -> Any:
    function = Round.apply
    return lambda x: function(x)  # noqa: PLW0108


def call_of_base(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.Function.__dict__["apply"].__get__(None, Round)(x)


ALIASES = {
    "module level": round_,
    "partial": functools.partial(Round.apply),
    "partial with argument": functools.partial(lambda f, x: f(x), Round.apply),
    "wraps": wrapped,
    "list": [Round.apply][0],
    "dictionary": dict(TABLE)["round"],
    "default argument": default,
    "closure": closure(),
    "nested": nested,
    "setup_context": lambda x: WithSetup.apply(x, 2.0),
    "by keyword": lambda x: WithSetup.apply(x, scale=4.0),
    "alias of setup_context": functools.partial(WithSetup.apply),
    "subclass": Child.apply,
    "base": call_of_base,
    "checkpoint": lambda x: checkpoint(round_, x, use_reentrant=False),
    "checkpoint of a closure": lambda x: checkpoint(
        lambda y: round_(y).sin(), x, use_reentrant=False
    ),
    "getattr": getattr(Round, "app" + "ly"),
}


class Net(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.weight).sin()


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ALIASES)
def test_gradients_through_an_alias(name):
    net = Net(ALIASES[name])
    jm = to_jax(net)

    def loss(params, x):
        return jm.apply(params, jm.buffers, x)[0].sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(jm.params, jnp.asarray(X))
    expected = net(torch.from_numpy(X)).sum()
    expected.backward()
    assert net.weight.grad is not None
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradients["weight"], net.weight.grad, rtol=1e-5, atol=1e-5)
    assert np.abs(gradients["weight"]).max() > 0.01


def test_torch_has_its_own_again_after_a_trace():
    kinds = (torch.autograd.Function, type(torch.autograd.Function))
    before = [dict(vars(kind)) for kind in kinds]
    code = getattr(getattr(before[0]["apply"], "__func__", None), "__code__", None)
    net = Net(round_)
    jm = to_jax(net)
    jm.apply(jm.params, jm.buffers, X)
    after = [dict(vars(kind)) for kind in kinds]
    assert after == before
    assert getattr(getattr(after[0]["apply"], "__func__", None), "__code__", None) is code
    x = torch.from_numpy(X).requires_grad_()
    round_(x).sum().backward()
    np.testing.assert_array_equal(x.grad, np.full_like(X, 3))
