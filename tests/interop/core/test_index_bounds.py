"""Indices out of range: the error where torch raises one, and none where it does not."""

import contextlib
import inspect
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import to_jax
from jaxsr.interop._core import index_bounds
from jaxsr.interop._core.index_bounds import checked_torch, collecting_indices
from jaxsr.interop.errors import IndexOutsideError, UnsupportedTorchError
from tests.calls import Call

IMAGE = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0))

# Function of indices, the most that it takes, whether a negative one counts from the end, and how
# it is named.
OPERATIONS = {
    "cross_entropy": (lambda i: F.cross_entropy(IMAGE[:, :, 0, 0], i), 4, False),
    "smoothed": (lambda i: F.cross_entropy(IMAGE[:, :, 0, 0], i, label_smoothing=0.1), 4, False),
    "segmentation": (
        lambda i: F.cross_entropy(IMAGE, i[:, None, None].expand(2, 3, 4)), 4, False,
    ),
    "embedding": (lambda i: F.embedding(i, IMAGE[0, 0]), 2, False),
    "embedding_bag": (lambda i: F.embedding_bag(i[None], IMAGE[0, 0]), 2, False),
    "one_hot": (lambda i: F.one_hot(i, 6), 5, False),
    "multi_margin": (lambda i: F.multi_margin_loss(IMAGE[:, :, 0, 0], i), 4, False),
    "gather": (lambda i: IMAGE[:, :, 0, 0].gather(1, i[:, None]), 4, False),
    "index_select": (lambda i: IMAGE.index_select(1, i), 4, False),
    "take": (IMAGE.take, 119, True),
    "index": (lambda i: IMAGE[:, i], 4, True),
    "scatter_add": (lambda i: torch.zeros(4).scatter_add(0, i, torch.ones(2)), 3, False),
    "index_add": (lambda i: torch.zeros(4).index_add_(0, i, torch.ones(2)), 3, False),
    "index_put": (lambda i: torch.zeros(4).index_put((i,), torch.ones(2)), 3, True),
}  # fmt: skip


class Function(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, index):
        return OPERATIONS[self.name][0](index)


def collected(model):
    """The compiled program that gives the result and the worst index of each operation."""

    def run(*inputs):
        with collecting_indices() as indices:
            result, _ = model.apply({}, {}, *inputs)
        return result, indices

    return jax.jit(run)


class GradientOfRow(nn.Module):
    def forward(self, index, x):
        x.requires_grad_()
        return torch.autograd.grad((F.embedding(index, IMAGE[0, 0]) * x).sum(), x)[0]


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_torch_refuses_is_an_error(name):
    _, last, counts_from_end = OPERATIONS[name]
    module = Function(name)
    model = to_jax(module)
    program = collected(model)
    for value in (0, last, last + 1, -1, -last - 1, -last - 2):
        index = np.array([0, value], np.int32)
        tensor = torch.from_numpy(index).long()
        try:
            module(tensor)
            accepted = True
        except (IndexError, RuntimeError):
            accepted = False
        assert accepted == (-last - 1 <= value <= last if counts_from_end else 0 <= value <= last)
        assert [*map(int, program(index)[1].values())] == [0 if accepted else value]
        if accepted:
            model.apply({}, {}, index)
            continue
        message = rf" at .*test_index_bounds.py:\d+ `.*takes indices from .*, got {value}$"
        with pytest.raises(IndexOutsideError, match=message):
            model.apply({}, {}, index)
        with pytest.raises(IndexOutsideError, match=message), checked_torch():
            module(tensor)


class Masked(nn.Module):
    """Losses of rows that a mask selects, and of labels of which some stand for none."""

    def forward(self, x, y):
        chosen = F.cross_entropy(x[y < 4], y[y < 4])
        return chosen + F.cross_entropy(x, torch.where(y < 4, y, 9), ignore_index=9)


def test_rows_that_do_not_count_may_hold_anything():
    x, y = IMAGE[:, :4, 0, 0].repeat(2, 1).numpy(), np.array([0, 3, 7, 99])
    model = to_jax(Masked())
    loss, indices = collected(model)(x, y)
    assert indices and not any(indices.values())
    expected = Masked()(torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)  # sums of two float32 numbers
    model.apply({}, {}, x, y)


def test_indices_of_code_that_takes_gradients_are_seen_once():
    program = collected(to_jax(GradientOfRow()))
    x = np.ones((2, 4), np.float32)
    for value in (2, 3):
        gradient, worst = program(np.array([0, value], np.int32), x)
        assert [*map(int, worst.values())] == [0 if value == 2 else 3]
        if value == 2:
            np.testing.assert_array_equal(gradient, IMAGE[0, 0][[0, 2]])


def _caught(index):
    try:
        return IMAGE[0, 0, 0][index]
    except IndexError:
        return IMAGE[0, 0, 0][index.clamp(0, 3)] * 0.5


def _suppressed(index):
    out = torch.zeros(2)
    with contextlib.suppress(ValueError, LookupError):
        out = F.embedding(index, IMAGE[0, 0])[:, 0]
    return out


def _caught_above(index):
    try:
        return _looked_up(index)
    except (KeyError, IndexError) as error:
        raise ValueError("no such row") from error


def _looked_up(index):
    return F.embedding(index, IMAGE[0, 0])


def _caught_elsewhere(index):
    try:
        factor = {}[len(index)]
    except LookupError:
        factor = 2
    return _looked_up(index) * factor


@pytest.mark.parametrize("function", [_caught, _suppressed, _caught_above])
def test_code_that_catches_an_index_outside_is_refused_where_values_decide(function):
    model, index = to_jax(Call(function)), np.array([1, 9])
    with pytest.raises(UnsupportedTorchError, match=r"inside `try` at .*test_index_bounds.py:\d+"):
        jax.jit(lambda i: model.apply({}, {}, i)[0])(index)


@pytest.mark.parametrize("index", [[1, 2], [1, 9]])
def test_an_index_that_is_known_may_be_outside(index):
    out, _ = to_jax(Call(_caught)).apply({}, {}, np.array(index))
    np.testing.assert_array_equal(out, _caught(torch.tensor(index)))
    jax.jit(lambda i: to_jax(Call(_caught_elsewhere)).apply({}, {}, i)[0])(np.array([0, 1]))


def test_code_without_a_module_looks_up():
    names: dict[str, Any] = {"rows": IMAGE[0, 0]}
    exec("def function(index):\n    return rows[index]", names)
    assert "__name__" not in names
    model, index = to_jax(Call(names["function"])), np.array([2, 0])
    out = jax.jit(lambda i: model.apply({}, {}, i)[0])(index)
    np.testing.assert_array_equal(out, IMAGE[0, 0][index])


@pytest.mark.parametrize("operation", index_bounds.OPERATIONS, ids=str)
def test_a_rule_takes_all_arguments_of_its_operator(operation):
    rule = inspect.signature(index_bounds.OPERATIONS[operation])
    if not hasattr(operation, "overloads"):
        return  # a torch function, whose own signature the rule has
    dispatched = {*torch._C._dispatch_get_all_op_names()}
    for name in operation.overloads():
        overload = getattr(operation, name)
        if overload.name() not in dispatched or overload._can_decompose():
            continue  # of TorchScript alone, or torch splits it into others first
        schema = overload._schema
        positional = [a for a in schema.arguments if not a.kwarg_only and not a.is_out]
        named = {a.name: None for a in schema.arguments if a.kwarg_only and not a.is_out}
        rule.bind(*positional, **named)


@pytest.mark.parametrize(
    "function",
    [
        F.multilabel_margin_loss,
        lambda x, i: x.gather(0, i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.take(i),
        lambda x, i: x.scatter_add(0, i, torch.tensor(1.0)),
        lambda x, i: x.index_fill(0, i, 3.0),
    ],
)
def test_a_number_is_a_table_of_one_row(function):
    x, index = torch.tensor(2.0), torch.tensor(0)
    model = to_jax(Call(function))
    assert float(model.apply({}, {}, x.numpy(), index.numpy())[0]) == float(function(x, index))
