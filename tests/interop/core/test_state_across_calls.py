"""Python state of a call that one in another mode, of another method, or any later one reads."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from jaxsr.interop.python_state import Snapshot

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
SHARED = {"scale": 1.0}
FACTOR = 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.settings: dict[Any, Any] = {"scale": 1.0}

    def forward(self, x):
        return self.linear(x)

    def prepare(self, x):
        return self.linear(x) * 2


class SetInTraining(Net):
    def forward(self, x):
        if self.training:
            self.settings["scale"] = 2.0
        return self.linear(x) * self.settings["scale"]


class MapOfTraining(Net):
    def forward(self, x):
        y = self.linear(x)
        if self.training:
            self.settings["y"] = y
        return y + self.settings.get("y", 0)


class GlobalOfTraining(Net):
    def forward(self, x):
        if self.training:
            SHARED["scale"] = 2.0
        return self.linear(x) * SHARED["scale"]


class TableOfTraining(Net):
    def forward(self, x):
        key = x.shape
        if key not in self.settings:
            self.settings[key] = torch.arange(4.0) * (2.0 if self.training else 1.0)
        return self.linear(x) * self.settings[key]

    def prepare(self, x):
        return self.linear(x)


class WeightsOfMethod(Net):
    cache: torch.Tensor | None = None

    def prepare(self, x):
        self.cache = self.linear.weight * 3
        return self.linear(x)

    def forward(self, x):
        return x @ (self.linear.weight if self.cache is None else self.cache)


class SetByMethod(Net):
    def prepare(self, x):
        self.settings["scale"] = 3.0
        return self.linear(x)

    def forward(self, x):
        return self.linear(x) * self.settings["scale"]


class FirstCallOfAll(Net):
    def forward(self, x):
        y = self.linear(x) * SHARED["scale"]
        SHARED["scale"] = 2.0
        return y


class FirstCallByAName(Net):
    def forward(self, x):
        global FACTOR  # noqa: PLW0603
        y = self.linear(x) * FACTOR
        FACTOR = 2.0
        return y


class SizeOfEachCall(Net):
    """Writes what it reads in every call, so no call depends on another."""

    def forward(self, x):
        self.settings["scale"], SHARED["scale"] = x.shape[0], x.shape[0] + 1.0
        if self.training:  # the modes differ, and not by state
            x = x * 3
        return self.linear(x) * self.settings["scale"] * SHARED["scale"]


CALLS = [(False, "forward"), (True, "forward"), (False, "prepare"), (False, "forward")]


@pytest.fixture(autouse=True)
def at_first():
    def reset():
        global FACTOR
        SHARED["scale"], FACTOR = 1.0, 1.0

    reset()
    yield reset
    reset()


def sequence(net, calls):
    """The results of compiled calls; refusals end it."""
    jm = to_jax(net)
    compiled = jax.jit(jm.apply, static_argnames=("train", "method"))
    for train, method in calls:
        yield np.asarray(compiled(jm.params, jm.buffers, X, train=train, method=method)[0])


@pytest.mark.parametrize(
    "kind",
    [
        SetInTraining,
        MapOfTraining,
        GlobalOfTraining,
        SetByMethod,
        FirstCallOfAll,
        FirstCallByAName,
        TableOfTraining,
        WeightsOfMethod,
    ],
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.filterwarnings("ignore::jaxsr.interop._core.attributes.LostTensorWarning")
def test_state_of_an_earlier_call_is_refused(kind, turned):
    net = kind()
    names = r"(settings\[.*\]|SHARED\['scale'\]|FACTOR|cache)`.* compute"
    with pytest.raises(UnsupportedTorchError, match=names):
        [*sequence(net, [*reversed(CALLS)] if turned else CALLS * 2)]


def test_a_call_that_writes_first_is_as_in_torch(at_first):
    torch.manual_seed(0)
    net = SizeOfEachCall()
    actual = [*sequence(net, CALLS)]
    at_first()
    for result, (train, method) in zip(actual, CALLS, strict=True):
        with torch.no_grad():
            expected = getattr(net.train(train), method)(torch.from_numpy(X))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


class Unchangeable(dict):
    def clear(self):
        raise AssertionError("another thread would find it empty")


def test_shared_objects_that_did_not_change_are_left_alone():
    table, count = Unchangeable(a=1), {"n": 0}
    state = Snapshot(lambda: (table, count))
    count["n"] = 1
    with state.as_it_was():
        assert count == {"n": 0} and table == {"a": 1}
    assert count == {"n": 1}


def test_a_trial_leaves_shared_state_as_the_call_did():
    jm = to_jax(SizeOfEachCall())
    jm.apply(jm.params, jm.buffers, X)
    assert SHARED["scale"] == len(X) + 1


class Anchored(Net):
    now: torch.Tensor
    before: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("now", torch.zeros(4))
        self.register_buffer("before", torch.zeros(4))

    def forward(self, x):
        self.now.add_(x.mean(0))
        self.before = self.now
        return self.now - self.before


class Following(Anchored):
    def forward(self, x):
        self.before = self.linear.bias.detach()
        return self.linear(x)


class Copied(Anchored):
    def forward(self, x):
        moved = self.now - self.before
        self.before = self.now.clone()
        self.now.add_(x.mean(0))
        return moved


@pytest.mark.parametrize(("kind", "owner"), [(Anchored, "now"), (Following, "linear.bias")])
def test_a_buffer_in_the_memory_of_another_tensor_is_refused(kind, owner):
    module = to_jax(kind())
    with pytest.raises(
        UnsupportedTorchError, match=rf"buffer before the memory of {owner}, .*clone"
    ):
        module.apply(module.params, module.buffers, X)


def test_a_buffer_that_copies_another_is_as_in_torch():
    network, module = Copied(), to_jax(Copied())
    buffers = module.buffers
    for _ in range(3):
        got, buffers = jax.jit(module.apply)(module.params, buffers, X)
        np.testing.assert_allclose(got, network(torch.from_numpy(X)), rtol=1e-6)
