"""Ordinary Python inside forward: writes through views, and torch's grad modes."""
# ruff: noqa: PLW0108  (a function below is named before it exists, so it is named late)

from typing import Any

import torch
import torch.nn.functional as F

from tests.oracles.conformance.registry import fn, ints, normal

X = normal(2, 4, 6)


def _writes(change):
    """`change` writes into a copy of the input; what matters is what the copy holds afterwards."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 1.5
        change(y)
        return y * x

    return run


for _name, _change in {
    "view": lambda y: y.view(2, 24).mul_(2),
    "view, then part of it": lambda y: y.view(8, 6)[3:5].fill_(7.0),
    "reshape that is a view": lambda y: y.reshape(8, 6).add_(1),
    "reshape that is a copy": lambda y: y.transpose(1, 2).reshape(2, 24).zero_(),
    "transpose": lambda y: y.transpose(0, 2).mul_(torch.arange(6.0)[:, None, None]),
    "permute then select": lambda y: y.permute(2, 0, 1)[1].zero_(),
    "mT, swapaxes, movedim": lambda y: y.mT.swapaxes(0, 1).movedim(0, 2)[0].add_(3),
    "unsqueeze": lambda y: y.unsqueeze(1).add_(1),
    "squeeze": lambda y: y[:, :1].squeeze(1).mul_(3),
    "select": lambda y: y.select(1, -1).neg_(),
    "narrow": lambda y: y.narrow(2, 1, 3).abs_(),
    "strided slice": lambda y: y[:, ::2, 1::2].mul_(10),
    "nested slices": lambda y: y[1:][:, 1:3][..., 2:].exp_(),
    "expanded source": lambda y: y.copy_(torch.arange(6.0).expand(2, 4, 6)),
    "diagonal": lambda y: y.diagonal(1, 1, 2).fill_(5.0),
    "flatten": lambda y: y.flatten(1).sub_(2),
    "flatten of the end": lambda y: y.flatten(0, 1)[::3].zero_(),
    "unflatten": lambda y: y.unflatten(2, (2, 3))[:, :, 1].zero_(),
    "view_as": lambda y: y.view_as(y).mul_(2),
    "as_strided": lambda y: y.as_strided((3, 4), (2, 6), 1).zero_(),
    "unfold without overlap": lambda y: y.unfold(2, 2, 3).mul_(2),
    "assignment to a column": lambda y: y.__setitem__((slice(None), 0), 4.0),
    "augmented assignment to a slice": lambda y: y.__setitem__((0, 1), y[0, 1] * 2),
    "assignment of a broadcast row": lambda y: y.__setitem__((slice(None), slice(1, 3)), y[0, 0]),
    "assignment by a list of rows": lambda y: y.__setitem__((0, [2, 0]), 1.0),
    "index_put_ accumulating": lambda y: y.index_put_(
        (torch.tensor([0, 0]), torch.tensor([1, 1])), torch.ones(6), accumulate=True
    ),
    "two views of one base": lambda y: (y.view(8, 6)[0].mul_(2), y[0].mul_(3)),
    "a view read after the base moved": lambda y: y.add_(y[:, :1].add_(1).clone()),
    "masked_fill_ on a view": lambda y: y[:, 1].masked_fill_(y[:, 1] > 0, 0.0),
    "fill_diagonal_": lambda y: y[0].fill_diagonal_(9.0),
    "swap halves through clones": lambda y: y[:, :2].copy_(y[:, 2:].clone()),
    "overlapping copy inside one base": lambda y: y[:, 1:].copy_(y[:, :-1].clone()),
    "in-place activation on a slice": lambda y: F.relu(y[:, :2], inplace=True),
    "squeeze_ and unsqueeze_": lambda y: y[:, 0].unsqueeze_(1).transpose_(1, 2).squeeze_(2).mul_(2),
}.items():  # fmt: skip
    fn("writes", _name, _writes(_change), X)
fn(
    "writes",
    "into an expanded tensor",
    _writes(lambda y: y[:1].expand(3, 4, 6).mul_(2)),
    X,
    refused="memory",
)
fn("writes", "split parts with no_grad", lambda x: _split_write(x), X)
fn("writes", "an output that is a view, written later", lambda x: _late_write(x), X)
fn("writes", "out= argument", lambda x: _out(x), X)
fn(
    "writes",
    "out= of another shape",
    lambda x: torch.add(x, 1, out=torch.zeros(3)),
    X,
    refused="out has shape",
)
fn("writes", "constructor, then filled", lambda x: _filled(x), X)
fn(
    "writes",
    "type_as, to, do not change their source",
    lambda x, i: (x.type_as(i), x * 2, i.type_as(x), i + 1),
    X,
    ints(3, 4),
)
fn(
    "writes",
    "flatten with end_dim, then use",
    lambda x: x.flatten(0, 1).flatten(-2, -1) * x.flatten(1, -1).sum(),
    X,
)
fn("writes", "real and imaginary parts", lambda x: _complex_write(x), X)


def _split_write(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.0
    with torch.no_grad():
        for i, part in enumerate(y.split(2, 2)):
            part.mul_(i + 1)
        a, b = y.chunk(2, 1)
        a.add_(b)
        y.unbind(0)[1].zero_()
    return y * x


def _late_write(x: torch.Tensor) -> tuple:
    y = x * 1.0
    v = y[:, 1]
    before = v * 1
    y.mul_(3)
    return v, before, y


def _out(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(2, 4, 6)
    torch.mul(x.detach(), 2, out=y)
    with torch.no_grad():
        torch.add(x, y, out=y[:])
    return y * x


def _filled(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2, 4, 6)
    for k in range(4):
        y[:, k] = x[:, k] * k
    z = x.new_full((2, 1), 3.0)
    z[0] = x.sum()
    return y + z[..., None]


def _complex_write(x: torch.Tensor) -> torch.Tensor:
    z = torch.complex(x, x + 1)
    z.real.mul_(2)
    z.imag[0] = 0
    return torch.view_as_real(z)


# ---- grad modes


def _grad_case(name: str, function, *inputs, **options) -> None:
    fn("grad mode", name, function, *(inputs or (X,)), **options)


def _no_grad_values(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * x
    return x * y


def _no_grad_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
        y[:, 0] = 5.0
    return y * y


def _no_grad_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with torch.no_grad():
        v = y[:, 1:]
    return v * y[:, 1:]


def _enable_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
    return a * b


def _detach_alias(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.detach().mul_(4)
    y.data[:, 0].add_(1)
    return y * 3


def _set_data(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.data = torch.ones(2, 4, 6)
    return y * x


def _straight_through(x: torch.Tensor) -> torch.Tensor:
    return x + (x.round() - x).detach()


@torch.no_grad()
def _decorated(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


_grad_case("no_grad values", _no_grad_values)
_grad_case("no_grad in-place writes", _no_grad_in_place)
_grad_case("view taken under no_grad", _no_grad_view)
_grad_case("enable_grad inside no_grad", _enable_inside)
_grad_case("detach and .data share memory", _detach_alias)
_grad_case(".data replaced", _set_data)
_grad_case("straight-through estimator", _straight_through)
_grad_case("no_grad as a decorator", lambda x: x * _decorated(x))
_grad_case("inference_mode", lambda x: _inference(x))
_grad_case("requires_grad in a branch", lambda w, x: x * 2 if w.requires_grad else x, w=(3,))
_grad_case("detach_", lambda x: (x * 2).detach_() * x)


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x.sin()
    return y * x.detach() + x


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, k):
        ctx.save_for_backward(x, w)
        ctx.k = k
        return x * w * k

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * 7, (g * x).sum((0, 1)) * ctx.k, None


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sign(), x.abs()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g, h):
        return g * (ctx.saved_tensors[0].abs() <= 1) + 2 * h


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


_grad_case(
    "autograd.Function with its own backward", lambda w, x: _Scaled.apply(x.sin(), w, 3) * w, w=(6,)
)
_grad_case("autograd.Function with setup_context, two outputs", lambda x: _Sign.apply(x * 1))
_grad_case("autograd.Function under no_grad", lambda x: _under_no_grad(x))
_grad_case(
    "autograd.Function that writes in place", lambda x: _Dirty.apply(x * 1), refused="mark_dirty"
)
_grad_case("autograd.grad inside forward", lambda x: _slope(x, create_graph=True))
_grad_case("autograd.grad without create_graph", lambda x: x * _slope(x))
_grad_case("torch.func.grad inside forward", lambda x: torch.func.grad(lambda x: x.sin().sum())(x))
_grad_case(
    "torch.func.hessian inside forward",
    lambda x: torch.func.hessian(lambda x: x.sin().prod())(x.flatten()[:3]),
)
_grad_case("backward inside forward", lambda x: (x**2).sum().backward(), refused="autograd.grad")
_grad_case("Tensor.register_hook", lambda x: _hooked(x), refused="register_hook")
_grad_case("torch.func.vmap inside forward", lambda x: torch.func.vmap(torch.sin)(x))


def _slope(x: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.enable_grad():
        y = x * 1
        y = y if y.requires_grad else y.requires_grad_()
        return torch.autograd.grad((y**3).sin().sum(), y, **options)[0]


def _under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = _Scaled.apply(x, torch.ones(6), 2)
    return y * x


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y
