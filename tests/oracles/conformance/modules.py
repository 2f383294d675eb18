"""Whole modules: ties, buffers, hooks, constants, parametrizations, and what is refused."""
# ruff: noqa: PLW0108  (a class below is named before it exists, so it is named late)

import copy

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.oracles.conformance.registry import case, ints, normal

X = normal(2, 4, 6)


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

    steps: torch.Tensor
    mean: torch.Tensor
    history: torch.Tensor
    seen: torch.Tensor

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
        columns = mask.sum(0).nonzero().flatten().tolist()
        blurred = F.conv1d(
            x.flatten(0, 1)[:, None], self.kernel[None] / self.kernel.sum(), padding=1
        )
        return (blurred.squeeze(1) * self.w * self.rates[2])[:, columns] + index.float().std()


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
        self.doubled = x * 2
        return self.doubled.sin()


class _Remembers(nn.Module):
    last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        earlier, self.last = self.last, x * 2
        return self.last if earlier is None else earlier


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
case(
    "module",
    "spectral_norm of the module itself",
    lambda: nn.utils.spectral_norm(nn.Linear(6, 3)),
    X,
)
case("module", "weight_norm of the module itself", lambda: nn.utils.weight_norm(nn.Linear(6, 3)), X)
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
case("module", "tensor kept in an attribute during a call", _Keeps, X)
case("module", "tensor kept in an attribute between calls", _Remembers, X, refused="`last`")
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
