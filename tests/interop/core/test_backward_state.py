"""State that the backward of a `torch.autograd.Function` keeps in Python: refused with its path."""

from typing import Any, ClassVar

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


class Counter:
    n = 0

    def step(self) -> None:
        self.n += 1


OBJECT = Counter()


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        return Counting.apply(x, self.kind)


class Counting(torch.autograd.Function):
    """Its backward has state: that of each step of training would be the first one's."""

    calls = 0
    by_name: ClassVar[dict[str, int]] = {"n": 0}

    @staticmethod
    def forward(ctx: Any, x: Any, kind: str) -> Any:
        ctx.kind = kind
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if ctx.kind == "class":
            Counting.calls += 1
            return gradient * Counting.calls, None
        if ctx.kind == "table":
            Counting.by_name["n"] += 1
            return gradient * Counting.by_name["n"], None
        if ctx.kind == "global":
            OBJECT.step()
            return gradient * OBJECT.n, None
        return gradient * 6, None


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("class", r"Counting\.calls"),
        ("table", r"Counting\.by_name\['n'\]"),
        ("global", r"OBJECT\.n"),
    ],
)
def test_state_of_a_backward_is_refused(kind, path):
    jm = to_jax(Net(kind))
    with pytest.raises(UnsupportedTorchError, match=rf"Counting\.backward changes `.*{path}"):
        jax.grad(lambda x: jm.apply(jm.params, jm.buffers, x)[0].sum())(X)


def test_a_backward_without_state_passes():
    jm = to_jax(Net("none"))
    gradient = jax.grad(lambda x: jm.apply(jm.params, jm.buffers, x)[0].sum())(X)
    np.testing.assert_array_equal(gradient, np.full_like(X, 6))


class Scaling(torch.autograd.Function):
    """Its backward reads its layer, as reversals of gradients do."""

    @staticmethod
    def forward(ctx: Any, x: Any, layer: Any) -> Any:
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        factor = -ctx.layer.strength if ctx.layer.training else 5
        return gradient * factor, None


class Growing(Scaling):
    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.layer, None


class Warmed(nn.Module):
    """The number of its calls reaches the backward alone."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return Growing.apply(x, len(self.calls))  # pyright: ignore


def test_a_count_that_the_backward_alone_reads_is_refused():
    jm = to_jax(Warmed())
    with pytest.raises(UnsupportedTorchError, match=r"`self\.calls\[0\]`"):
        jax.grad(lambda x: jm.apply(jm.params, jm.buffers, x)[0].sum())(X)


class Scaled(nn.Module):
    strength = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.strength = 0.1
        return Scaling.apply(self.linear(x), self)  # pyright: ignore


@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_backward_reads_a_module_as_the_call_left_it(converted, train):
    torch.manual_seed(0)
    network = Scaled().train(converted)
    jm = to_jax(network)
    network.train(train)
    network(torch.from_numpy(X)).square().sum().backward()

    def loss(params: Any) -> Any:
        return (jm.apply(params, jm.buffers, X, train=train)[0] ** 2).sum()

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        ours, theirs = gradient(jm.params)["linear.weight"], network.linear.weight.grad
        assert theirs is not None
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert network.training == train
