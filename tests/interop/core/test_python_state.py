"""State that modules keep in Python is refused with its path."""

import collections
import contextvars
import csv
import ctypes
import dataclasses
import decimal
import functools
import hashlib
import itertools
import os
import random
import re
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from jaxsr.interop.python_state import Snapshot

# Python 3.12 and newer say so of the copies that the converted module is.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Pickle, copy, and deepcopy support:DeprecationWarning"
)

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
COUNT = 0
TABLE: dict[str, Any] = {"n": 0}
LOG: list[Any] = []


class Ticket:
    n = 0

    def __get__(self, owner: object, kind: type) -> int:
        self.n += 1
        return self.n


class Counter:
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        self.n = 0
        self.hidden: Any = None

    def step(self) -> int:
        self.n += 1
        return self.n


@dataclasses.dataclass
class Progress:
    step: int = 0


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


COPIES_ITERTOOLS = sys.version_info < (3, 14)
OBJECT, SLOTTED = Counter(), Slotted()
THREAD = threading.local()
HIDDEN = 0
VARIABLE = contextvars.ContextVar("variable")
KEPT = Counter()
WEAK = weakref.WeakValueDictionary({"a": KEPT})
NUMBERS = (float(i) for i in range(1000))
CALLS, MATCHES = iter(lambda: 1.0, None), re.finditer(r"\d", "123456789" * 9)
STRUCTURES = struct.iter_unpack("f", bytes(400))
ROWS = csv.reader(["1"] * 100)
NUMBER, DECIMALS, SHA = ctypes.c_int(0), decimal.Context(prec=5), hashlib.sha1()


def increased(owner: Any, name: str) -> float:
    setattr(owner, name, getattr(owner, name) + 1)
    return float(getattr(owner, name))


class Net(nn.Module):
    calls = 0
    ticket = Ticket()

    def __init__(self, code: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.code = code
        self.schedule: dict[Any, Any] = {"step": 0}
        self.seen: list[Any] = []
        self.nested = [{"n": 0}]
        self.text, self.pair, self.stage = "a", (0,), None
        self.object, self.space = Counter(), types.SimpleNamespace(n=0)
        self.counter, self.missing = collections.Counter(), collections.defaultdict(int)
        self.queue, self.set = collections.deque([1.0, 2.0, 3.0]), set[int]()
        self.items = iter([1, 2])
        if COPIES_ITERTOOLS:
            self.count, self.cycle = itertools.count(), itertools.cycle([1.0, 2.0])
        self.array, self.rng, self.python_rng = (
            np.zeros(1),
            np.random.default_rng(0),
            random.Random(0),
        )
        self.bound, self.part = Counter().step, functools.partial(Counter().step)
        self.layers, self.progress = nn.ModuleList(), Progress()
        self.objects = np.array([0, {"n": 0}], dtype=object)
        self.constant, self.weight.table = torch.ones(4), {"n": 0}
        self.reference = weakref.ref(OBJECT)
        number = 0

        def nonlocal_count() -> int:
            nonlocal number
            number += 1
            return number

        self.nonlocal_count = nonlocal_count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.code(self, x)


def dictionary(s: Any, x: Any) -> Any:
    s.schedule["step"] += 1
    return x * s.schedule["step"]


def nested(s: Any, x: Any) -> Any:
    s.nested[0]["n"] += 1
    return x * s.nested[0]["n"]


def growing(s: Any, x: Any) -> Any:
    s.seen.append(1)
    return x * len(s.seen)


def growing_late(s: Any, x: Any) -> Any:
    s.seen.append(1)
    return x * (2 if len(s.seen) > 3 else 1)


def text(s: Any, x: Any) -> Any:
    s.text += "a"
    return x * len(s.text)


def toggle(s: Any, x: Any) -> Any:
    s.text = "b" if s.text == "a" else "a"
    return x * (2 if s.text == "a" else 1)


def pair(s: Any, x: Any) -> Any:
    s.pair = (s.pair[0] + 1,)
    return x * s.pair[0]


def counter(s: Any, x: Any) -> Any:
    s.counter["k"] += 1
    s.missing["k"] += 1
    return x * s.counter["k"]


def queue(s: Any, x: Any) -> Any:
    s.queue.rotate(1)
    return x * s.queue[0]


def elements(s: Any, x: Any) -> Any:
    s.set.add(len(s.set))
    return x * len(s.set)


def array(s: Any, x: Any) -> Any:
    s.array += 1
    return x * float(s.array[0])


def space(s: Any, x: Any) -> Any:
    s.space.n += 1
    return x * s.space.n


def slots(s: Any, x: Any) -> Any:
    SLOTTED.n += 1
    return x * SLOTTED.n


def class_attribute(s: Any, x: Any) -> Any:
    type(s).calls += 1
    return x * type(s).calls


def other_class(s: Any, x: Any) -> Any:
    Counter.steps += 1
    return x * Counter.steps


def hidden_class_attribute(s: Any, x: Any) -> Any:
    s.object.steps = s.object.steps + 1
    return x * s.object.steps


def global_number(s: Any, x: Any) -> Any:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return x * COUNT


def global_table(s: Any, x: Any) -> Any:
    TABLE["n"] += 1
    return x * TABLE["n"]


def global_list(s: Any, x: Any) -> Any:
    LOG.append(1)
    return x * len(LOG)


def default(s: Any, x: Any, count: list[int] = [0]) -> Any:  # noqa: B006
    count[0] += 1
    return x * count[0]


def function_attribute(s: Any, x: Any) -> Any:
    function_attribute.n = getattr(function_attribute, "n", 0) + 1
    return x * function_attribute.n


def once(s: Any, x: Any) -> Any:
    if s.stage is None:
        s.stage = "done"
        return x * 2
    return x


def once_in_dictionary(s: Any, x: Any) -> Any:
    if "k" not in s.schedule:
        s.schedule["k"] = True
        return x * 2
    return x


def tensor_in_object(s: Any, x: Any) -> Any:
    y = x if s.object.hidden is None else x + s.object.hidden
    s.object.hidden = x.mean()
    return y


def tensor_in_global(s: Any, x: Any) -> Any:
    y = x + TABLE.get("hidden", 0)
    TABLE["hidden"] = x.mean()
    return y


def deleted(s: Any, x: Any) -> Any:
    if hasattr(s, "extra"):
        del s.extra
        return x
    s.extra = "z"
    return x * 2


def per_thread(s: Any, x: Any) -> Any:
    THREAD.n = getattr(THREAD, "n", 0) + 1
    return x * THREAD.n


def submodules(s: Any, x: Any) -> Any:
    s.layers.append(nn.Identity())
    return x * len(s.layers)


def exhausted(s: Any, x: Any) -> Any:
    return x * s.queue.pop()


def replaced_dataclass(s: Any, x: Any) -> Any:
    s.progress = dataclasses.replace(s.progress, step=s.progress.step + 1)
    return x * s.progress.step


def objects(s: Any, x: Any) -> Any:
    s.objects[1]["n"] += 1
    return x * s.objects[1]["n"]


def on_a_constant(s: Any, x: Any) -> Any:
    s.constant.n = getattr(s.constant, "n", 0) + 1
    return x * s.constant.n


def on_a_weight(s: Any, x: Any) -> Any:
    s.weight.table["n"] += 1
    return x * s.weight.table["n"]


@functools.cache
def cached_counter(name: str) -> Counter:
    return Counter()


@functools.lru_cache(maxsize=4)
def bounded_counter(name: str) -> Counter:
    return Counter()


@functools.lru_cache(maxsize=4)
def bounded_table(name: str) -> dict[str, int]:
    return {"n": 0}


bounded_counter("a"), bounded_table("a")


def in_bounded_table(s: Any, x: Any) -> Any:
    bounded_table("a")["n"] += 1
    return x * bounded_table("a")["n"]


@functools.lru_cache(maxsize=4)
def bounded_notes() -> dict[str, int]:
    return {}


bounded_notes()


def in_bounded_notes(s: Any, x: Any) -> Any:
    bounded_notes()["n"] = bounded_notes().get("n", 0) + 1
    return x * bounded_notes()["n"]


_NAMES: dict[str, Any] = {"__name__": "a_model", "type": 0}
exec("def of_type(s, x):\n    global type\n    type += 1\n    return x * type", _NAMES)
of_type: Callable = _NAMES["of_type"]


def of_a_library(s: Any, x: Any) -> Any:
    np.linalg.jaxsr_test_count += 1  # pyright: ignore[reportAttributeAccessIssue]
    return x * np.linalg.jaxsr_test_count  # pyright: ignore[reportAttributeAccessIssue]


def by_globals(s: Any, x: Any) -> Any:
    globals()["HIDDEN"] += 1
    return x * globals()["HIDDEN"]


def environment(s: Any, x: Any) -> Any:
    os.environ["JAXSR_TEST_COUNT"] = str(int(os.environ.get("JAXSR_TEST_COUNT", "0")) + 1)
    return x * int(os.environ["JAXSR_TEST_COUNT"])


def variable(s: Any, x: Any) -> Any:
    VARIABLE.set(VARIABLE.get(0) + 1)
    return x * VARIABLE.get()


STATE: dict[str, tuple[Callable, str]] = {
    "dictionary": (dictionary, r"self\.schedule\['step'\]"),
    "nested": (nested, r"self\.nested\[0\]\['n'\]"),
    "growing list": (growing, r"self\.seen\[0\]"),
    "growing list, read late": (growing_late, r"self\.seen\[0\]"),
    "string": (text, r"self\.text` from 'a' to 'aa'"),
    "toggle": (toggle, r"self\.text"),
    "tuple": (pair, r"self\.pair"),
    "Counter": (counter, r"self\.counter\['k'\]"),
    "deque": (queue, r"self\.queue\[0\]"),
    "set": (elements, r"self\.set"),
    "NumPy array": (array, r"self\.array"),
    "namespace": (space, r"self\.space\.n"),
    "slots": (slots, r"SLOTTED\.n"),
    "object": (lambda s, x: x * s.object.step(), r"self\.object\.n"),
    "object in a global": (lambda s, x: x * OBJECT.step(), r"global .*\.OBJECT\.n"),
    "bound method": (lambda s, x: x * s.bound(), r"self\.bound\.n"),
    "partial": (lambda s, x: x * s.part(), r"self\.part\.n"),
    "count": (lambda s, x: x * next(s.count), r"self\.count"),
    "cycle": (lambda s, x: x * next(s.cycle), r"self\.cycle"),
    "iterator": (lambda s, x: x * next(s.items), r"self\.items"),
    "generator": (lambda s, x: x * next(NUMBERS), r"NUMBERS"),
    "callable iterator": (lambda s, x: x * next(CALLS), "CALLS"),
    "matches": (lambda s, x: x * float(next(MATCHES).group()), "MATCHES"),
    "structures": (lambda s, x: x * next(STRUCTURES)[0], "STRUCTURES"),
    "csv": (lambda s, x: x * float(next(ROWS)[0]), "ROWS"),
    "ctypes": (lambda s, x: x * increased(NUMBER, "value"), "NUMBER"),
    "decimal": (lambda s, x: x * increased(DECIMALS, "prec"), "DECIMALS"),
    "digest": (lambda s, x: x * (SHA.update(b"a") or SHA.digest()[0]), "SHA"),
    "NumPy generator": (lambda s, x: x * float(s.rng.random()), r"self\.rng"),
    "Python generator": (lambda s, x: x * s.python_rng.random(), r"self\.python_rng"),
    "global generator": (lambda s, x: x * random.random(), "draws from random"),
    "NumPy's global generator": (lambda s, x: x * float(np.random.rand()), r"from numpy\.random"),
    "closure": (lambda s, x: x * s.nonlocal_count(), r"number in the closure of "),
    "class attribute": (class_attribute, r"Net\.calls"),
    "another class": (other_class, r"Counter\.steps"),
    "class attribute by an object": (hidden_class_attribute, r"self\.object\.steps"),
    "global number": (global_number, r"global .*\.COUNT"),
    "global table": (global_table, r"global .*\.TABLE\['n'\]"),
    "global list": (global_list, r"global .*\.LOG\["),
    "default argument": (default, r"a default argument of default"),
    "function attribute": (function_attribute, r"function_attribute\.n"),
    "first call": (once, r"self\.stage"),
    "first call in a dictionary": (once_in_dictionary, r"self\.schedule\['k'\]"),
    "tensor in an object": (tensor_in_object, r"self\.object\.hidden"),
    "tensor in a global": (tensor_in_global, r"TABLE\['hidden'\]"),
    "thread": (per_thread, r"THREAD\.n"),
    "submodules": (submodules, r"self\.layers\.1"),
    "deque that empties": (exhausted, r"self\.queue\["),
    "dataclass": (replaced_dataclass, r"self\.progress"),
    "array of objects": (objects, r"self\.objects\[\(1,\)\]\['n'\]"),
    "attribute of a constant": (on_a_constant, r"self\.constant\.n"),
    "attribute of a weight": (on_a_weight, r"self\.weight\.table\['n'\]"),
    "object in a cache": (
        lambda s, x: x * cached_counter("a").step(),
        r"cached_counter\(\)\.n",
    ),
    "bounded cache": (lambda s, x: x * bounded_counter("a").step(), r"bounded_counter\(\)\.n"),
    "table in a bounded cache": (in_bounded_table, r"bounded_table\(\)\['n'\]"),
    "empty table in a bounded cache": (in_bounded_notes, r"bounded_notes\(\)"),
    "a global called type": (of_type, r"global a_model\.type"),
    "library": (of_a_library, r"numpy\.linalg\.jaxsr_test_count"),
    "descriptor": (lambda s, x: x * s.ticket, r"Net\.ticket\.n"),
    "weak reference": (lambda s, x: x * s.reference().step(), r"self\.reference\.n"),
    "weak table": (lambda s, x: x * WEAK["a"].step(), r"WEAK\['a'\]\.n"),
    "globals()": (by_globals, r"global .*\.HIDDEN"),
    "environment": (environment, r"os\.environ\['JAXSR_TEST_COUNT'\]"),
    "context variable": (variable, r"VARIABLE"),
    "deleted attribute": (deleted, r"self\.extra"),
}


@pytest.fixture(autouse=True)
def count_in_modules(monkeypatch):
    monkeypatch.setattr(np.linalg, "jaxsr_test_count", 0, raising=False)


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", STATE)
def test_state_is_refused_with_its_path(name):
    code, path = STATE[name]
    if name in ("count", "cycle") and not COPIES_ITERTOOLS:
        module = Net(code)
        setattr(module, name, itertools.cycle([1.0]) if name == "cycle" else itertools.count())
        with pytest.raises(UnsupportedTorchError, match=f"{path} of Net cannot be copied"):
            to_jax(module)
        return
    jm = to_jax(Net(code))
    with pytest.raises(UnsupportedTorchError, match=path):
        jax.eval_shape(lambda x: jm.apply(jm.params, jm.buffers, x)[0], X)


def imports(name):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)


def test_an_import_is_not_state():
    state = Snapshot(imports)
    imports("imported_by_a_test")
    try:
        assert not state.changes()
    finally:
        del sys.modules["imported_by_a_test"]
