"""`check` never says ok where further calls, moved parameters or hooks differ from torch's."""

import types
from typing import Any

import pytest
import torch
from torch import nn

import jaxsr
from tests.merging_adapter import Merging

COUNT = [0]


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


straight = Straight.apply


class Net(nn.Module):
    def __init__(self, wrong: str) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.wrong = wrong
        self.table: dict[str, Any] = {"step": 0}
        self.seen: list[int] = []
        self.object = types.SimpleNamespace(n=0)
        self.register_buffer("average", torch.randn(4, 4))
        self.average: torch.Tensor
        self.alias = self.weight.data if wrong == "alias" else None
        self.array = self.weight.detach().numpy() if wrong == "array" else None
        if wrong == "hook":
            self.weight.register_hook(lambda grad: grad * 0)
        if wrong == "window":
            self.register_buffer("window", self.average[2:])
            self.window: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + getattr(self, f"_{self.wrong}", self._nothing)(x)

    def _nothing(self, x: torch.Tensor) -> Any:
        return 0

    def _replaced(self, x: torch.Tensor) -> Any:
        self.weight = nn.Parameter(self.weight.detach() * 2)
        return 0

    def _dictionary(self, x: torch.Tensor) -> Any:
        self.table["step"] += 1
        return self.table["step"]

    def _list(self, x: torch.Tensor) -> Any:
        self.seen.append(1)
        return len(self.seen)

    def _object(self, x: torch.Tensor) -> Any:
        self.object.n += 1
        return self.object.n

    def _global(self, x: torch.Tensor) -> Any:
        COUNT[0] += 1
        return COUNT[0]

    def _alias(self, x: torch.Tensor) -> Any:
        assert self.alias is not None
        return x @ self.alias

    def _array(self, x: torch.Tensor) -> Any:
        assert self.array is not None
        return x @ torch.from_numpy(self.array)

    def _window(self, x: torch.Tensor) -> Any:
        self.average.add_(1)
        return self.window.sum()

    def _seed(self, x: torch.Tensor) -> Any:
        torch.manual_seed(7)
        return x @ torch.randn(4, 4)

    def _swallowed(self, x: torch.Tensor) -> Any:
        try:
            return float(x.abs().max())
        except NotImplementedError:
            return 1.0

    def _straight(self, x: torch.Tensor) -> Any:
        return straight(x @ self.weight)

    def _swap(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            own = self.weight.data
            self.weight.data = self.average.data
            y = x @ self.weight
            self.weight.data = own
        return y


@pytest.mark.parametrize(
    "wrong",
    ["hook", "replaced", "dictionary", "list", "object", "global", "array", "window", "seed",
     "swallowed"],
)  # fmt: skip
def test_programs_that_keep_state_are_not_ok(wrong):
    result: Any = jaxsr.check(Net(wrong), torch.randn(3, 4), mesh=1, vmap=False, speed_s=0)
    assert not result.ok


def test_a_mode_that_changes_weights_is_not_ok():
    result: Any = jaxsr.check(Merging(), torch.randn(3, 4), mesh=1, vmap=False, speed_s=0)
    assert not result.ok


@pytest.mark.parametrize("right", ["nothing", "alias", "straight", "swap"])
def test_programs_that_follow_torch_are_ok(right):
    result: Any = jaxsr.check(Net(right), torch.randn(3, 4), mesh=1, vmap=False, speed_s=0)
    assert result.ok, result
    assert result.row("calls").status == "ok"
    if right == "straight":
        gradient = result.row("gradient")
        assert {one.name for one in gradient.arrays} >= {"weight"}


class Chaotic(nn.Module):
    """Float32 loses every digit, and what is left is scaled up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = 3.999 * x * (1 - x)
        return x


def test_an_error_as_large_as_the_value_is_no_rounding():
    result: Any = jaxsr.check(
        Chaotic(), torch.rand(64), mesh=1, vmap=False, speed_s=0, gradients=False
    )
    assert all(one.bound <= 0.125 for row in result.rows for one in row.arrays)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_count(mode):
    with mode():
        result = jaxsr.check(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4), speed_s=0)
        assert not torch.is_grad_enabled()
    assert result.ok, str(result)
