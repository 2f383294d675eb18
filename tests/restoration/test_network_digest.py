"""Digests that tell networks apart by all that a result depends on."""

import array
import dataclasses
import datetime
import fractions
import functools
import logging
import os
import re
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.restoration.network_digest import network_digest


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
    digests = [network_digest(kind(size)) for size in (3, 3, 5)]
    assert digests[0] == digests[1] != digests[2]


def test_a_forward_of_the_object_counts():
    plain, patched = nn.ReLU(), nn.ReLU()
    patched.forward = types.MethodType(lambda self, x: x, patched)
    assert network_digest(plain) != network_digest(patched)


def test_weights_count():
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    assert network_digest(first) != network_digest(second)
    second.load_state_dict(first.state_dict())
    assert network_digest(first) == network_digest(second)


def test_an_object_of_unknown_content_is_like_no_other():
    network, other = nn.ReLU(), nn.ReLU()
    for each in (network, other):
        object.__setattr__(each, "state", (letter for letter in "ab"))
    assert network_digest(network) == network_digest(network)
    assert network_digest(network) != network_digest(other)


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
    digests = [network_digest(pool(size)) for size in (3, 3, 5)]
    assert digests[0] == digests[1] != digests[2]
    kinds = [type("Pooled", (Pooled,), {"size": size}) for size in (3, 3, 5)]
    digests = [network_digest(kind()) for kind in kinds]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", ["SIZE", "SIZES", "size_of_module", "Pooled.size"])
def test_values_that_methods_name_count(monkeypatch, name):
    before = network_digest(Pooled())
    here = sys.modules[__name__]
    new = {"SIZES": {"blur": 5}, "size_of_module": lambda: 5}.get(name, 5)
    owner, _, attribute = name.rpartition(".")
    monkeypatch.setattr(Pooled if owner else here, attribute, new)
    assert network_digest(Pooled()) != before
    monkeypatch.undo()
    assert network_digest(Pooled()) == before


class Found:
    """A descriptor."""

    def __init__(self, size):
        self.size = size

    def __get__(self, owner, kind=None):
        return self.size


def of_class(**members) -> Callable[[], nn.Module]:
    return type("Pooled", (Base,), members)


def with_attribute(value: object) -> nn.Module:
    network = nn.Identity()
    object.__setattr__(network, "value", value)
    return network


def with_metaclass(size: int) -> nn.Module:
    return type("Kind", (type,), {"size": size})("Pooled", (Base,), {})()


def with_parameter(name: str, **attributes: int) -> nn.Module:
    network = nn.Identity()
    network.register_parameter(name, nn.Parameter(torch.ones(1)))
    vars(network.get_parameter(name)).update(attributes)
    return network


def function_with(**attributes: object) -> Callable[[], int]:
    def size() -> int:
        return size.size

    vars(size).update(attributes)
    return size


KEPT = {size: Found(size) for size in (3, 5)}
WAYS = {
    "partialmethod": lambda n: of_class(size=functools.partialmethod(int, n))(),
    "cached method": lambda n: of_class(size=functools.lru_cache(lambda self: n))(),
    "cached function": lambda n: with_attribute(functools.lru_cache(lambda: n)),
    "singledispatchmethod": lambda n: of_class(s=functools.singledispatchmethod(lambda s, x: n))(),
    "descriptor": lambda n: of_class(size=Found(n))(),
    "reserved name": lambda n: of_class(__size__=n)(),
    "metaclass": with_metaclass,
    "class in a class": lambda n: of_class(Inner=type("Inner", (), {"size": n}))(),
    "builtin of an object": lambda n: with_attribute({"size": n}.get),
    "weak reference": lambda n: with_attribute(weakref.ref(KEPT[n])),
    "fraction": lambda n: with_attribute(fractions.Fraction(n)),
    "array": lambda n: with_attribute(array.array("i", [n])),
    "module": lambda n: with_attribute(module_with(n)),
    "attribute of a function": lambda n: with_attribute(function_with(size=n)),
    "attribute of a parameter": lambda n: with_parameter("a", size=n),
    "name of a parameter": lambda n: with_parameter(f"a{n}"),
    "list with attributes": lambda n: with_attribute(type("L", (list,), {})([n])),
    "annotation": lambda n: of_class(forward=annotated(n))(),
}


def module_with(size: int) -> types.ModuleType:
    module = types.ModuleType("settings")
    vars(module)["size"] = size
    return module


def annotated(size: int) -> Callable[..., object]:
    def forward(self, x):
        return x * self.forward.__annotations__["x"]

    forward.__annotations__["x"] = size
    return forward


@pytest.mark.parametrize("way", WAYS)
def test_values_count_wherever_they_are(way):
    digests = [network_digest(WAYS[way](size)) for size in (3, 3, 5)]
    assert digests[0] == digests[1] != digests[2]


def names_a_global_object(value: object) -> str:
    here = {"__name__": "session", "nn": nn, "SIZE": value}
    exec(  # as in an interactive session
        "class Net(nn.Module):\n    def forward(self, x):\n        return helper(x)\n"
        "def helper(x):\n    return x * int(SIZE)\n",
        here,
    )
    return network_digest(here["Net"]())


def test_globals_of_interactive_sessions_count():
    sizes = [fractions.Fraction(3), fractions.Fraction(3), fractions.Fraction(5)]
    first, same, other = map(names_a_global_object, sizes)
    assert first == same != other


def test_a_function_that_replaces_a_librarys_counts(monkeypatch):
    network = Pooled()
    before = network_digest(network)
    monkeypatch.setattr(F, "avg_pool2d", lambda x, *sizes: x)
    assert network_digest(network) != before


def test_values_of_a_submodule_count(monkeypatch):
    package, settings = types.ModuleType("package"), module_with(3)
    vars(package)["settings"] = settings
    monkeypatch.setitem(globals(), "package", package)
    network = of_class(forward=lambda self, x: x * package.settings.size)()
    before = network_digest(network)
    vars(settings)["size"] = 5
    assert network_digest(network) != before


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
        return network_digest(network)

    assert digest(3) == digest(3) != digest(5)


def test_a_long_chain_of_objects_ends():
    network = first = types.SimpleNamespace()
    for _ in range(5000):
        first.next = types.SimpleNamespace(before=first)
        first = first.next
    holder = nn.Identity()
    object.__setattr__(holder, "chain", network)
    assert network_digest(holder)


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


def digest_in(folder, seed, before=""):
    code = (
        f"{before}from nets import Net\n"
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


def test_modules_that_a_network_does_not_import_do_not_count(folder):
    (folder / "other.py").write_text("size = 3\n")
    assert digest_in(folder, 1) == digest_in(folder, 1, "import other\n")
