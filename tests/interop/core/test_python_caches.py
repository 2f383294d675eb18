"""Caches and logs in Python that modules would make again alike, which are not state."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax

# Python 3.12 and newer say so of the copies that the converted module is.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Pickle, copy, and deepcopy support:DeprecationWarning"
)

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
LOG: list[Any] = []
CACHE: dict[Any, Any] = {}


class Counter:
    def __init__(self) -> None:
        self.n = 0
        self.hidden: Any = None

    def step(self) -> int:
        self.n += 1
        return self.n


class Net(nn.Module):
    def __init__(self, code: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.code = code
        self.schedule: dict[Any, Any] = {"step": 0}
        self.seen: list[Any] = []
        self.stage: Any = None
        self.object = Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.code(self, x)


def table_in_global(s: Any, x: Any) -> Any:
    key = tuple(x.shape)
    if key not in CACHE:
        CACHE[key] = torch.arange(float(x.shape[-1]))
    return x * CACHE[key]


def table_by_shape(s: Any, x: Any) -> Any:
    if s.stage != x.shape:
        s.table, s.stage = torch.arange(float(x.shape[-1])), x.shape
    return x * s.table


@functools.lru_cache
def width(n: int) -> int:
    return n * 2


def numbers_by_shape(s: Any, x: Any) -> Any:
    if x.shape not in s.schedule:
        s.schedule[x.shape] = (1, x.shape[-1])
    return x * s.schedule[x.shape][1]


def written_first(s: Any, x: Any) -> Any:
    s.object.hidden = x * 2
    return s.object.hidden + 1


def log(s: Any, x: Any) -> Any:
    s.seen.append(tuple(x.shape))
    return x


def refilled(s: Any, x: Any) -> Any:
    s.seen.clear()
    s.seen += [2, 3]
    return x * sum(s.seen)


def new_object(s: Any, x: Any) -> Any:
    s.object = Counter()
    return x * s.object.step()


def lazily_made(s: Any, x: Any) -> Any:
    if s.stage is None:
        s.stage = lambda v: v * 3
    return s.stage(x)


def global_log(s: Any, x: Any) -> Any:
    LOG.append(x.shape)
    return x * 2


@functools.lru_cache
def ramp(n: int) -> torch.Tensor:
    return torch.arange(float(n))


CACHES = {
    "table in a global": table_in_global,
    "table by shape": table_by_shape,
    "lru_cache": lambda s, x: x * width(4),
    "tensors in an lru_cache": lambda s, x: x * ramp(4),
    "numbers by shape": numbers_by_shape,
    "written first": written_first,
    "log": log,
    "log in a global": global_log,
    "refilled": refilled,
    "new object": new_object,
    "made lazily": lazily_made,
    "draw that decides nothing": lambda s, x: x if np.random.rand() < 2 else x * 2,
    "weights": lambda s, x: x * s.weight,
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_and_logs_are_no_state(name):
    CACHE.clear()
    LOG.clear()
    jm = to_jax(Net(CACHES[name]))
    reference = Net(CACHES[name])
    apply = jax.jit(lambda x: jm.apply(jm.params, jm.buffers, x)[0])
    for x in (X, X, X[:1], X):
        CACHE.clear()
        expected = reference(torch.from_numpy(x)).detach()
        CACHE.clear()
        np.testing.assert_allclose(apply(x), expected, rtol=1e-6)
    assert not CACHE  # no tensor of a trace stays there
