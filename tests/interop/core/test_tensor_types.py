"""`type(x)` and `x.__class__` in code that is traced answer as in torch."""

import abc
import copy
import functools
import importlib
import sys
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from jaxsr.interop._core.tensor_types import Type, answering_types

X = np.random.default_rng(0).normal(size=(3,)).astype(np.float32)
BY_TYPE = {torch.Tensor: 2.0, nn.Parameter: 3.0}


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x):
        out = self.function(self, x)
        return out if isinstance(out, torch.Tensor) else x * float(out)


def _metaclass(m, x):
    class Meta(type):
        def __call__(cls):
            return super().__call__()

    class Made(metaclass=Meta):
        factor = 3

    return Made().factor * (type(Made) is Meta) * isinstance(Made, type) + issubclass(Meta, type)


def _annotated(m, x):
    def same(kind: type[torch.Tensor], instance: torch.Tensor | type) -> bool:
        return type(instance) is kind

    return same(torch.Tensor, x) * 2.0


class Abstract(abc.ABC):  # noqa: B024
    factor = 3


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if type(x) is torch.Tensor else x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (2 if type(gradient) is torch.Tensor else 5)


@functools.singledispatch
def _dispatched(x):
    return 5.0


@_dispatched.register(torch.Tensor)
def _(x):
    return x * 2


CASES = {
    "is": lambda m, x: 2 if type(x) is torch.Tensor else 3,
    "==": lambda m, x: 2 if type(x) == torch.Tensor else 3,  # noqa: E721
    "__class__": lambda m, x: 2 if x.__class__ is torch.Tensor else 3,
    "in": lambda m, x: 2 if type(x * 2) in (torch.Tensor, nn.Parameter) else 3,
    "key": lambda m, x: BY_TYPE[type(x)] + 10 * BY_TYPE[type(m.weight)] + BY_TYPE[type(m.mean)],
    "name": lambda m, x: len(type(x).__name__) + 10 * len(x.__class__.__qualname__),
    "parameter": lambda m, x: 2 if type(m.weight) is nn.Parameter else 3,
    "frozen": lambda m, x: 2 if type(m.frozen) is nn.Parameter else 3,
    "its data": lambda m, x: 2 if type(m.weight.data) is torch.Tensor else 3,
    "of a result": lambda m, x: 2 if type(m.weight + 1) is torch.Tensor else 3,
    "of a copy": lambda m, x: copy.deepcopy(m.weight) * (type(copy.copy(x)) is torch.Tensor),
    "dispatched": lambda m, x: _dispatched(x),
    "isinstance": lambda m, x: (
        isinstance(x, torch.Tensor)
        + 2 * isinstance(x, nn.Parameter)
        + 4 * isinstance(m.weight, nn.Parameter)
        + 8 * issubclass(type(x), torch.Tensor)
        + 16 * isinstance(x, torch.FloatTensor)
    ),
    "of others": lambda m, x: 2 if type(m.training) is bool and type(m) is Call else 3,
    "type itself": lambda m, x: (
        (type(int) is type) + 2 * isinstance(int, type) + 4 * isinstance(x, type) + 8
    ),
    "a class made": lambda m, x: type("Made", (), {"factor": 4}).factor,
    "a class made of an abstract one": lambda m, x: (
        type(type("Made", (Abstract,), {"factor": 4})) is abc.ABCMeta
    ),
    "a metaclass": _metaclass,
    "an annotation": _annotated,
    "of a Function": lambda m, x: Doubled.apply(x),
}  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", CASES)
def test_the_class_is_torchs(name):
    module = Call(CASES[name])
    model = to_jax(module)

    def loss(x):
        return model.apply(model.params, model.buffers, x)[0].sum()

    x = torch.tensor(X, requires_grad=True)
    expected = module(x)
    np.testing.assert_allclose(
        jax.jit(model.apply)(model.params, model.buffers, X)[0], expected.detach()
    )
    if expected.requires_grad and x in _leaves(expected):
        expected.sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), x.grad)
    assert "type" not in globals()


def _leaves(tensor):
    pending, leaves = [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None:
            leaves.add(getattr(node, "variable", None))
            pending += [following for following, _ in node.next_functions]
    return leaves


def test_code_of_an_installed_library_is_answered_too(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "a_library_of_layers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .layers import Layer\n")
    (package / "checks.py").write_text(
        "import torch\n\ndef factor(x):\n    return 2 if type(x) is torch.Tensor else 3\n"
    )
    (package / "layers.py").write_text(
        "from torch import nn\nfrom .checks import factor\n\nclass Layer(nn.Module):\n"
        "    def forward(self, x):\n        return x * factor(x)\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    library = importlib.import_module(package.name)
    model = to_jax(nn.Sequential(library.Layer()))
    np.testing.assert_allclose(model.apply({}, {}, jnp.asarray(X))[0], X * 2)
    assert not hasattr(sys.modules[f"{package.name}.checks"], "type")


def test_a_class_made_in_a_trace_is_an_ordinary_one():
    assert type(Type("Made", (), {})) is type


def test_the_standard_library_is_left_alone():
    class Wrapped(nn.Module, typing.Generic[typing.TypeVar("T")]):
        def forward(self, x):
            return x * (2 if type(x) is torch.Tensor and not hasattr(typing, "type") else 3)

    np.testing.assert_allclose(to_jax(Wrapped()).apply({}, {}, X)[0], X * 2)


def test_code_with_its_own_name_type_keeps_it():
    names = {"torch": torch, "type": lambda x: 7.0}
    exec("def function(m, x):\n    return x * type(x)", names)
    own = names["type"]
    model = to_jax(Call(names["function"]))
    np.testing.assert_allclose(model.apply(model.params, model.buffers, X)[0], X * 7)
    assert names["type"] is own


def test_globals_are_restored_after_an_error():
    model = to_jax(Call(lambda m, x: [][x.ndim] if type(x) is torch.Tensor else x))
    with pytest.raises(IndexError):
        model.apply(model.params, model.buffers, X)
    assert "type" not in globals()


def test_an_inner_trace_leaves_the_types_of_an_outer_one():
    outer, inner, named = {}, {}, {"type": 7}
    with answering_types([outer, named]):
        with answering_types([outer, inner, named]):
            assert outer["type"] is inner["type"] is Type and named["type"] == 7
            inner["type"] = 8  # by code with `global type`
        assert outer["type"] is Type
    assert (outer, inner, named) == ({}, {"type": 8}, {"type": 7})


class Marked(torch.Tensor):
    pass


BECOMES = {
    "as_subclass": lambda x: x.as_subclass(Marked),
    "_make_subclass": lambda x: torch.Tensor._make_subclass(Marked, x),
    "constructor": Marked,
}


class Becomes(nn.Module):
    def __init__(self, become):
        super().__init__()
        self.become = become

    def forward(self, x):
        return self.become(x) * 2


@pytest.mark.parametrize("name", BECOMES)
def test_a_tensor_that_becomes_one_of_a_subclass_is_refused(name):
    with pytest.raises(UnsupportedTorchError, match=r"becomes one of a subclass of torch\.Tensor"):
        to_jax(Becomes(BECOMES[name])).apply({}, {}, np.ones(3, np.float32))


def test_as_subclass_of_torchs_own_class_is_the_tensor():
    model = to_jax(Becomes(lambda x: x.as_subclass(torch.Tensor)))
    np.testing.assert_array_equal(model.apply({}, {}, np.ones(3, np.float32))[0], 2)
