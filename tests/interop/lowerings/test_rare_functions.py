"""Functions that few modules use, each against torch."""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _caught(x):
    try:
        return x[torch.tensor([9])]
    except IndexError:
        return x * 2


def _segments(reduce):
    return lambda x: torch.segment_reduce(x, reduce, lengths=torch.tensor([3, 0, 3]))


def _added(function, left, right, *, beta=0.0, alpha=1.0):
    """Adds products to an input that `beta` leaves out."""

    def run(x):
        a, b = left(x), right(x)
        shape = function(torch.zeros(()), a, b).shape
        first = torch.full(shape, torch.nan) if beta == 0 else x.sum().expand(shape)
        return function(first, a, b, beta=beta, alpha=alpha)

    return run


def _one(x):
    return x


ADDED = {
    torch.addmm: (_one, lambda x: x.T),
    torch.addmv: (_one, lambda x: x[0]),
    torch.baddbmm: (lambda x: x[None], lambda x: x.T[None]),
    torch.addbmm: (lambda x: torch.stack([x, x + 1]), lambda x: torch.stack([x.T, x.T])),
    torch.addr: (lambda x: x[0], lambda x: x[1]),
}


CASES = {
    "bool << number": lambda x: (x > 0) << 2,
    "bool >> number": lambda x: (x > 0) >> 1,
    "number << bool": lambda x: torch.tensor(2) << (x > 0),
    "int32 << bool": lambda x: x.int() << (x > 0),
    "nonzero of whole numbers": lambda x: x[(x > 0).any(1).long().nonzero().squeeze(1)].sum(),
    "index by a mask of uint8": lambda x: x[(x[:, 0] > 0).to(torch.uint8) == 1].mean(),
    "negative index_fill": lambda x: x.index_fill(0, torch.tensor([-1, 0]), 3.0),
    "an index outside, caught": _caught,
    **{f"segment_reduce {r}": _segments(r) for r in ("sum", "mean", "max", "min", "prod")},
    "powers of more than 63": lambda x: 2 ** (60 + x.to(torch.int8).abs() * 5).to(torch.int16),
    "powers of zero and of odd numbers": lambda x: torch.stack(
        [(x > 0).to(torch.uint8) * n ** torch.full((6, 4), 65, dtype=torch.uint8) for n in (0, 3)]
    ),
    "signs of NaN and -0": lambda x: (
        1 / torch.where(x > 0, x * 0, x * torch.nan).sign().add(0.5),
        (x * 0 * x.sgn()).sign().signbit(),
    ),
    **{f"{f.__name__} of NaN, times 0": _added(f, *s) for f, s in ADDED.items()},
    **{f"{f.__name__} of numbers": _added(f, *s, beta=0.5, alpha=2) for f, s in ADDED.items()},
    "tensor of traced tensors": lambda x: torch.tensor([[x.sum(), 1.0], [2, x[0, 0]]]) * x[:2, :2],
    "tensor of whole ones": lambda x: torch.tensor([x.argmax(), 3], dtype=torch.float32) * x[:, :2],
    "as_tensor of traced tensors": lambda x: torch.as_tensor((x.sum(), x.mean())),
    "tensor of traced tensors of one element": lambda x: torch.tensor([[x[:1, :1]], [x[0, :1]]]),
    "new_tensor of traced tensors": lambda x: x.new_tensor([x[0, 0] * 9, 2]),
    "segment_reduce by offsets": lambda x: torch.segment_reduce(
        x[:, 0], "sum", offsets=torch.tensor([0, 2, 6])
    ),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    module = Function(CASES[name])
    got = jax.jit(lambda x: to_jax(module).apply({}, {}, x)[0])(X)
    expected = module(torch.from_numpy(X))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


SINGLE = {
    "argmax": lambda x: torch.argmax(x, 0),
    "argmin": lambda x: torch.argmin(x, -1, keepdim=True),
    "max": lambda x: torch.max(x, 0),
    "variance": lambda x: x.float().var(0, correction=0),
    "variance and mean": lambda x: torch.var_mean(x.float(), 0, correction=0),
}


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("name", SINGLE)
def test_axes_of_a_single_number(name, is_wide):
    x, function = np.asarray(3, np.int64 if is_wide else np.int32), SINGLE[name]
    with jax.enable_x64(is_wide):
        got = jax.tree.leaves(to_jax(Function(function)).apply({}, {}, x)[0])
    expected = jax.tree.leaves(function(torch.from_numpy(x)))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape and ours == theirs.numpy()


def test_constructors_that_read_values_are_refused_by_name():
    model = to_jax(Function(lambda x: x * torch.FloatTensor([x.sum(), x.mean()]).sum()))
    with pytest.raises(UnsupportedTorchError, match=r"values of a traced tensor.*torch\.stack"):
        jax.jit(lambda x: model.apply({}, {}, x)[0])(X)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.linalg.ldl_factor(x @ x.T).LD, "LDL factors.*cholesky_ex"),
        (
            lambda x: F.binary_cross_entropy(x.sigmoid().bfloat16(), x.bfloat16(), x),
            "of bfloat16 with weights of float32.*cast the weights",
        ),
    ],
)
def test_values_that_would_differ_from_torchs_are_refused(function, message):
    with pytest.raises(UnsupportedTorchError, match=message):
        to_jax(Function(function)).apply({}, {}, X)


def test_lists_of_longer_tensors_are_refused_as_in_torch():
    module = Function(lambda x: torch.tensor([x[0], x[1, :1]]))
    for run in (module, lambda x: jax.jit(lambda x: to_jax(module).apply({}, {}, x)[0])(x.numpy())):
        with pytest.raises(ValueError, match="only one element tensors can be converted"):
            run(torch.from_numpy(X))


def test_a_tensor_of_traced_tensors_may_require_a_gradient():
    def slope(x):
        ends = torch.tensor([x[0, 0], 3.0], requires_grad=True)
        return torch.autograd.grad((ends**3).sum(), ends)[0]

    module = Function(slope)
    got = jax.jit(lambda x: to_jax(module).apply({}, {}, x)[0])(X)
    np.testing.assert_allclose(got, module(torch.from_numpy(X)), rtol=1e-6)
