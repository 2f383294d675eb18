"""Ordinary Python inside forward: views, writes, grad modes, buffers, hooks, constants, control flow."""

import copy

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.interop.conformance.registry import case, fn, ints, normal

X = normal(2, 4, 6)


def _writes(change):  # noqa: ANN001, ANN202
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
    "index_put_ accumulating": lambda y: y.index_put_((torch.tensor([0, 0]), torch.tensor([1, 1])), torch.ones(6), accumulate=True),
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


def _grad_case(name: str, function, *inputs, **options) -> None:  # noqa: ANN001, ANN002, ANN003
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
    def forward(ctx, x, w, k):  # noqa: ANN001, ANN205
        ctx.save_for_backward(x, w)
        ctx.k = k
        return x * w * k

    @staticmethod
    def backward(ctx, g):  # noqa: ANN001, ANN205
        x, w = ctx.saved_tensors
        return g * w * 7, (g * x).sum((0, 1)) * ctx.k, None


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(x):  # noqa: ANN001, ANN205
        return x.sign(), x.abs()

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ANN001, ANN205
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g, h):  # noqa: ANN001, ANN205
        return g * (ctx.saved_tensors[0].abs() <= 1) + 2 * h


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ANN001, ANN205
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):  # noqa: ANN001, ANN205
        return g * 2


_grad_case(
    "autograd.Function with its own backward", lambda w, x: _Scaled.apply(x.sin(), w, 3) * w, w=(6,)
)
_grad_case("autograd.Function with setup_context, two outputs", lambda x: _Sign.apply(x * 1))
_grad_case("autograd.Function under no_grad", lambda x: _under_no_grad(x))
_grad_case(
    "autograd.Function that writes in place", lambda x: _Dirty.apply(x * 1), refused="mark_dirty"
)
_grad_case(
    "autograd.grad inside forward",
    lambda x: torch.autograd.grad((x**2).sum(), x)[0],
    refused="jax.grad",
)
_grad_case("backward inside forward", lambda x: (x**2).sum().backward(), refused="jax.grad")
_grad_case("Tensor.register_hook", lambda x: _hooked(x), refused="register_hook")
_grad_case(
    "torch.func.vmap inside forward", lambda x: torch.func.vmap(torch.sin)(x), refused="torch.func"
)


def _under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = _Scaled.apply(x, torch.ones(6), 2)
    return y * x


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


# ---- modules


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(i).tanh())


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.blocks = nn.ModuleList([self.a, nn.Tanh(), self.a])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class _Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.a.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class _Counter(nn.Module):
    """Buffers of every kind, written in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("history", torch.zeros(4, 6), persistent=False)
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))
        self.w = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            with torch.no_grad():
                self.mean.lerp_(x.mean((0, 1)), 0.3)
                self.history = torch.roll(self.history, 1, 0)
                self.history[0] = x.mean((0, 1))
            self.seen[self.steps % 4] = True
        return x * self.w - self.mean + self.steps


class _Ema(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 6)
        self.twin = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                for a, b in zip(self.net.parameters(), self.twin.parameters(), strict=True):
                    b.mul_(0.9).add_(a, alpha=0.1)
        return self.net(x) - self.twin(x)


class _Hooks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.a.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        self.a.register_forward_hook(lambda m, args, out: out + args[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


class _Constants(nn.Module):
    """Tensors that are neither parameters nor buffers, and Python that reads them."""

    scale = torch.arange(1.0, 7.0)

    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.tensor([[1.0, 2.0, 1.0]])
        self.rates = [float(v) for v in torch.linspace(0, 0.3, 4)]
        self.w = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(6, 6).tril().bool()
        index = torch.stack(
            torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
        ).flatten(1)
        if mask.any() and index.max().item() == 2:
            x = x * self.scale
        kept = mask.sum(0).nonzero().flatten().tolist()
        blurred = F.conv1d(
            x.flatten(0, 1)[:, None], self.kernel[None] / self.kernel.sum(), padding=1
        )
        return (blurred.squeeze(1) * self.w * self.rates[2])[:, kept] + index.float().std()


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.a, self.reentrant = nn.Linear(6, 6), reentrant

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x).tanh() + x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.reentrant)


class _Deepcopy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twin = copy.deepcopy(self.a)
        with torch.no_grad():
            twin.weight.mul_(2)
        return self.a(x) + twin(x).detach()


class _Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.a(x)
            z = y @ y.mT
        return y.float(), z.float().softmax(-1)  # type: ignore[return-value]


class _Keeps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        return self.last


class _Counts(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / self.calls


class _WritesConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.detach().sum((0, 1))
        return x + self.total


class _Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), _BranchInner())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class _BranchInner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class _OldWeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.weight_norm(nn.Linear(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


class _Double(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w.triu() + w.triu(1).mT


def _parametrized() -> nn.Module:
    layer = nn.Linear(6, 6)
    parametrize.register_parametrization(layer, "weight", _Double())
    return layer


def _backward_hook() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_full_backward_hook(lambda m, i, o: None)
    return layer


case("module", "tied weights", _Tied, ints(7, 2, 3))
case("module", "one submodule twice", _Shared, X)
case("module", "frozen parameters", _Frozen, X)
case("module", "buffers written in every way", _Counter, X, train=True)
case("module", "EMA twin of frozen parameters", _Ema, X, train=True)
case("module", "forward hooks", _Hooks, X)
case("module", "constants, closures, Python over constants", _Constants, X)
case("module", "torch.utils.checkpoint", lambda: _Checkpointed(False), X)
case("module", "torch.utils.checkpoint, reentrant", lambda: _Checkpointed(True), X)
case("module", "deepcopy inside forward", _Deepcopy, X)
case("module", "autocast to bfloat16", _Autocast, X, tolerance=2000)  # bfloat16: 8 bits
case("module", "weight_norm, hook", _OldWeightNorm, X)
case(
    "module",
    "weight_norm, parametrization",
    lambda: parametrizations.weight_norm(nn.Conv1d(4, 3, 3)),
    X,
)
case(
    "module",
    "spectral_norm, training",
    lambda: parametrizations.spectral_norm(nn.Linear(6, 5)),
    X,
    train=True,
)
case(
    "module",
    "spectral_norm, evaluation",
    lambda: parametrizations.spectral_norm(nn.Linear(6, 5)),
    X,
)
case(
    "module",
    "spectral_norm, hook, training",
    lambda: nn.utils.spectral_norm(nn.Conv1d(4, 3, 3)),
    X,
    train=True,
)
case(
    "module",
    "orthogonal parametrization",
    lambda: parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley"),
    X,
    tolerance=5,
)
case("module", "own parametrization", _parametrized, X)
case("module", "ParameterList and ParameterDict", lambda: _Lists(), X)
case("module", "another method than forward", lambda: _Methods(), X, method="encode")
case("module", "dictionaries, dataclasses, None in and out", lambda: _Structures(), X)
case("module", "tensor kept in an attribute", _Keeps, X, refused="`last`")
case("module", "number changed in an attribute", _Counts, X, refused="`calls`")
case("module", "write into an unregistered tensor", _WritesConstant, X, refused="register_buffer")
case("module", "branch on a traced value", _Branch, X, refused="'inner.1'")
case("module", "backward hook", _backward_hook, X, refused="backward hook")
case("module", "dropout without a key", lambda: nn.Dropout(0.5), X, train=True, refused="rng=")
case("module", "item() on a traced value", lambda: _Item(), X, refused="traced tensor")
case("module", "torch.Generator", lambda: _Generator(), X, refused="Generator")


class _Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.many = nn.ParameterList([torch.randn(6), torch.randn(6)])
        self.named = nn.ParameterDict({"a": torch.randn(6)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.many[0] + self.many[1] * self.named["a"]


class _Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x).relu()


class _Structures(nn.Module):
    def forward(self, x: torch.Tensor, extra: None = None) -> dict:
        return {"a": x * 2, "b": [x.sum(), None, "text", 3], "c": (x.max(1),), "d": extra}


class _Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.mean().item()


class _Generator(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(6, generator=torch.Generator().manual_seed(0))
