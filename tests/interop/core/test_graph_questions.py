"""Questions about torch's graph and a tensor's own attributes: answered as by torch, or refused."""

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


def _loss(question, *, jitted):
    """The sum of what forward computes, twice as much where the question is answered with yes."""
    module = Asks(lambda m, x: m.linear(x) * (2 if question(m, x) else 1))
    model = to_jax(module)

    def run(params, x):
        return model.apply(params, model.buffers, x)[0].sum()

    return module, model, jax.jit(run) if jitted else run


ASKED = {
    "an input": lambda m, x: x.requires_grad,
    "a result": lambda m, x: (x * 2).requires_grad,
    "a view": lambda m, x: x[1:].requires_grad,
    "is_leaf": lambda m, x: not (x * 2).is_leaf,
    "grad_fn": lambda m, x: (x * 2).grad_fn is not None,
    "detached": lambda m, x: x.detach().requires_grad,
    "frozen": lambda m, x: x.requires_grad_(False).requires_grad,
    "a parameter": lambda m, x: m.linear.weight.requires_grad,
    "a buffer": lambda m, x: m.scale.requires_grad,
    "grad mode": lambda m, x: torch.is_grad_enabled(),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_gradient_by_an_input_is_seen_by_code_that_asks(name):
    module, model, run = _loss(ASKED[name], jitted=False)
    x = torch.from_numpy(X).requires_grad_()
    plain = module(torch.from_numpy(X)).sum()
    np.testing.assert_allclose(run(model.params, X), plain.detach(), rtol=1e-4)
    value, slope = jax.value_and_grad(run, 1)(model.params, X)
    expected = module(x).sum()
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-4)
    if expected.requires_grad and x.requires_grad:
        expected.backward()
        assert x.grad is not None
        np.testing.assert_allclose(slope, x.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("around", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
@pytest.mark.parametrize("name", ASKED)
def test_an_answer_that_a_later_gradient_makes_wrong_is_refused(name, around):
    _, model, run = _loss(ASKED[name], jitted=False)
    run = around(run)
    jax.grad(run)(model.params, X)  # of the parameters: the answer holds
    if name not in ("an input", "a result", "a view", "is_leaf", "grad_fn"):
        jax.grad(run, 1)(model.params, X)
        return
    with pytest.raises(UnsupportedTorchError, match=r"py:\d+ `.*` asks for requires_grad of a"):
        jax.grad(run, 1)(model.params, X)


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
