"""Digests that tell networks apart by all that a result depends on."""

import dataclasses
import datetime
import functools
import logging
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.restoration.network_digest import architecture_digest, network_digest


class Base(nn.Module):
    """A network whose subclasses keep a size in different places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class InDictionary(Base):
    def __init__(self, size):
        super().__init__()
        self.settings = {"blur": {"size": size}}


class InObject(Base):
    def __init__(self, size):
        super().__init__()
        self.settings = types.SimpleNamespace(size=size)


class InBuffer(Base):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("kernel", torch.tensor(size), persistent=False)


class InArray(Base):
    def __init__(self, size):
        super().__init__()
        self.kernel = np.array([size])


class InTensor(Base):
    def __init__(self, size):
        super().__init__()
        self.kernel = torch.tensor([size])


class InPlainList(Base):
    def __init__(self, size):
        super().__init__()
        self.blurs = [[nn.AvgPool2d(size)]]


class InPartial(Base):
    def __init__(self, size):
        super().__init__()
        self.blur = functools.partial(F.avg_pool2d, kernel_size=size)


class InClosure(Base):
    def __init__(self, size):
        super().__init__()
        self.blur = lambda x: F.avg_pool2d(x, size)


class InHook(Base):
    def __init__(self, size):
        super().__init__()
        self.register_forward_hook(functools.partial(shift, by=size))


def shift(module, inputs, result, by):
    return torch.roll(result, by, -1)


PLACES = (
    InDictionary, InObject, InBuffer, InArray, InTensor, InPlainList, InPartial, InClosure, InHook,
)  # fmt: skip


@pytest.mark.parametrize("kind", PLACES)
def test_values_in_attributes_count(kind):
    digests = [architecture_digest(kind(size)) for size in (3, 3, 5)]
    assert digests[0] == digests[1] != digests[2]


def test_a_forward_of_the_object_counts():
    plain, patched = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    patched.forward = types.MethodType(lambda self, x: x, patched)
    assert architecture_digest(plain) != architecture_digest(patched)


def test_weights_count_for_results_alone():
    first, second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    assert architecture_digest(first) == architecture_digest(second)
    assert network_digest(first) != network_digest(second)


def test_an_object_of_unknown_content_is_like_no_other():
    network, other = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    for each in (network, other):
        object.__setattr__(each, "state", (letter for letter in "ab"))
    assert architecture_digest(network) == architecture_digest(network)
    assert architecture_digest(network) != architecture_digest(other)


SIZE, SIZES = 3, {"blur": 3}


def pool(size: int = 3) -> nn.Module:
    class Pool(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.avg_pool2d(x, size, 1, size // 2)

    return Pool()


def size_of_module() -> int:
    return SIZE + SIZES["blur"]


class Pooled(Base):
    """Takes its size from the class, and from a global by way of a function."""

    size = 3

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, self.size, 1, size_of_module())


def test_closures_of_methods_count():
    digests = [architecture_digest(pool(size)) for size in (3, 3, 5)]
    assert digests[0] == digests[1] != digests[2]
    kinds = [type("Pooled", (Pooled,), {"size": size}) for size in (3, 3, 5)]
    digests = [architecture_digest(kind()) for kind in kinds]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", ["SIZE", "SIZES", "size_of_module", "Pooled.size"])
def test_values_that_methods_name_count(monkeypatch, name):
    before = architecture_digest(Pooled())
    here = sys.modules[__name__]
    new = {"SIZES": {"blur": 5}, "size_of_module": lambda: 5}.get(name, 5)
    owner, _, attribute = name.rpartition(".")
    monkeypatch.setattr(Pooled if owner else here, attribute, new)
    assert architecture_digest(Pooled()) != before
    monkeypatch.undo()
    assert architecture_digest(Pooled()) == before


class WithState(Base):
    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}

    def set_extra_state(self, state: object) -> None:
        pass


def unfinished() -> nn.Module:
    network = nn.Identity()

    def orphan() -> object:
        return later

    def itself() -> object:
        return itself

    if not SIZE:
        later = 1
    object.__setattr__(network, "functions", [orphan, itself])
    return network


@pytest.mark.parametrize("make", [WithState, unfinished])
def test_odd_modules_have_digests(make):
    assert network_digest(make()) == network_digest(make())


@dataclasses.dataclass
class Slotted:
    __slots__ = ("size",)
    size: int


def numbers(size: int) -> np.random.Generator:
    return np.random.default_rng(size)


@pytest.mark.parametrize(
    "make",
    [
        lambda size: Path(f"a{size}"),
        lambda size: re.compile(f"a{size}"),
        lambda size: logging.getLogger(f"a{size}"),
        lambda size: datetime.date(2026, 11, size),
        lambda size: np.dtype(f"V{size}"),
        lambda size: iter(range(size)),
        Slotted,
        numbers,
    ],
)
def test_objects_of_libraries_have_content(make):
    def digest(size: int) -> str:
        network = nn.Identity()
        object.__setattr__(network, "value", make(size))
        object.__setattr__(network, "others", [threading.Lock(), torch.ops.aten.relu.default])
        return architecture_digest(network)

    assert digest(3) == digest(3) != digest(5)


def test_a_long_chain_of_objects_ends():
    network = first = types.SimpleNamespace()
    for _ in range(5000):
        first.next = types.SimpleNamespace(before=first)
        first = first.next
    holder = nn.Identity()
    object.__setattr__(holder, "chain", network)
    assert architecture_digest(holder)


def test_a_traced_graph_is_described_by_its_code():
    def traced(by):
        return torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.AvgPool2d(by)))

    first, same, other = (network_digest(traced(by)) for by in (3, 3, 5))
    assert first == same != other


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "helper.py").write_text("def size():\n    return 3\n")
    (tmp_path / "nets.py").write_text(
        "import functools, torch\nfrom torch import nn\nfrom helper import size\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.names = {'a', 'b', 'c'}\n"
        "        self.own = functools.partial(print, lambda x: x in {'d', 'e'})\n"
        "        self.rnn = nn.LSTM(2, 2)\n"
        "        self.register_forward_pre_hook(lambda module, inputs: None)\n"
        "        with torch.no_grad():\n"
        "            [p.fill_(0.5) for p in self.parameters()]\n"
    )
    return tmp_path


def digest_in(folder, seed):
    code = (
        "from nets import Net\n"
        "from jaxsr.restoration.network_digest import network_digest\n"
        "print(network_digest(Net()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, check=True
    ).stdout


def test_processes_agree_and_a_helper_of_the_users_counts(folder):
    first = digest_in(folder, 1)
    assert first == digest_in(folder, 2)
    (folder / "helper.py").write_text("def size():\n    return 5\n")
    assert first != digest_in(folder, 1)
