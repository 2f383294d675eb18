"""What code asks of torch's graph and of a tensor's own attributes: as in torch, or refused."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


class Asks(nn.Module):
    def __init__(self, question):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.question = question

    def forward(self, x):
        return x * self.question(self, x)


def _marked(module, x):
    return x.detach().requires_grad_()


def _matrix(x):
    return x.T @ x - 100 * torch.eye(4)


def _tries(module, x):
    try:
        torch.linalg.cholesky(_matrix(x))
    except RuntimeError:
        return 2
    return 1


def _version_of_a_view(module, x):
    y = x * 1
    y[0].add_(1)
    return 1 + y._version


ANSWERS = {
    "grad_fn of a result": lambda m, x: 1 if m.linear(x).grad_fn is None else 2,
    "grad_fn of a parameter": lambda m, x: 1 if m.linear.weight.grad_fn is None else 2,
    "grad_fn of an input": lambda m, x: 1 if x.grad_fn is None else 2,
    "grad_fn without gradients": lambda m, x: 1 if m.linear(x).detach().grad_fn is None else 2,
    "is_leaf": lambda m, x: 1 + m.linear(x).is_leaf + 2 * m.linear.weight.is_leaf + 4 * x.is_leaf,
    "is_leaf of a marked input": lambda m, x: 1 + _marked(m, x).is_leaf,
    "is_leaf of what follows": lambda m, x: 1 + (_marked(m, x) * 2).is_leaf,
    "_version": lambda m, x: 1 + x.clone().add_(1).mul_(2)._version,
    "_version of a view": _version_of_a_view,
    "cholesky_ex": lambda m, x: torch.where(torch.linalg.cholesky_ex(_matrix(x))[1] > 0, 2, 1),
    "_assert_async": lambda m, x: torch._assert_async((x < 99).all()) or 3,
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_equals_torch(name):
    module = Asks(ANSWERS[name])
    model = to_jax(module)
    got, _ = jax.jit(model.apply)(model.params, model.buffers, X)
    np.testing.assert_allclose(got, module(torch.from_numpy(X)).detach(), rtol=1e-6)


def test_gradients_of_a_leaf_that_forward_makes():
    def slope(module, x):
        leaf = torch.full((4,), 2.0, requires_grad=True)
        return torch.autograd.grad((leaf * x).square().sum(), leaf)[0]

    module = Asks(slope)
    model = to_jax(module)
    got, _ = jax.jit(model.apply)(model.params, model.buffers, X)
    np.testing.assert_allclose(got, module(torch.from_numpy(X)).detach(), rtol=1e-5)


REFUSED = {
    "grad_fn.register_hook": (
        lambda m, x: m.linear(x).grad_fn.register_hook(print), r"grad_fn\.register_hook",
    ),
    "multi_grad_hook": (
        lambda m, x: torch.autograd.graph.register_multi_grad_hook([m.linear(x)], print),
        "register_hook changes gradients",
    ),
    "multi_grad_hook of a parameter": (
        lambda m, x: torch.autograd.graph.register_multi_grad_hook([m.linear.weight], print),
        "JAX keeps no graph|register_hook changes gradients",
    ),
    "_version of a buffer": (lambda m, x: m.scale._version, "_version of a parameter or buffer"),
    "try": (_tries, r"cholesky inside `try` at .*test_graph_questions.py:\d+"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(name):
    question, message = REFUSED[name]
    model = to_jax(Asks(question))
    with pytest.raises(UnsupportedTorchError, match=message):
        model.apply(model.params, model.buffers, X)


def test_attributes_of_parameters_and_buffers():
    module = Asks(lambda m, x: m.linear.weight.factor * m.scale.table["a"])
    module.linear.weight.factor, module.scale.table = 3.0, {"a": torch.tensor(2.0)}  # pyright: ignore
    model = to_jax(module)
    np.testing.assert_array_equal(model.apply(model.params, model.buffers, X)[0], X * 6)


def test_an_attribute_that_forward_sets_on_a_buffer_is_refused():
    def counted(module, x):
        module.scale.count = getattr(module.scale, "count", 0) + 1
        return module.scale.count

    model = to_jax(Asks(counted))
    with pytest.raises(UnsupportedTorchError, match="changes attributes of the tensor scale"):
        model.apply(model.params, model.buffers, X)
