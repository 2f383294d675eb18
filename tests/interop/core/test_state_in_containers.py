"""State in keys, orders and long containers, and in modules that forward imports, is refused."""

import collections
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxsr.interop import UnsupportedTorchError, to_jax
from tests.interop.core.function_net import FunctionNet

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


class Ticking:
    """A key that counts."""

    n = 0

    def step(self) -> int:
        self.n += 1
        return self.n


KEY = Ticking()
WEAK_KEYS = weakref.WeakKeyDictionary({KEY: 0})
ORDERED = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
BY_OBJECT = {KEY: 2.0}


def weak_keys(s: Any, x: Any) -> Any:
    WEAK_KEYS[KEY] += 1
    return x * WEAK_KEYS[KEY]


def moved_to_end(s: Any, x: Any) -> Any:
    first = next(iter(ORDERED))
    ORDERED.move_to_end(first)
    return x * ORDERED[first]


def of_module_in_closure(module: Any) -> Callable:
    def code(s: Any, x: Any) -> Any:
        module.jaxsr_test_count += 1
        return x * module.jaxsr_test_count

    return code


LONG_LIST, LONG_TABLE, LARGE = [0.0] * 2000, dict.fromkeys(range(2000), 0), np.zeros(100_000)


def in_long_list(s: Any, x: Any) -> Any:
    LONG_LIST[3] += 1
    return x * LONG_LIST[3]


def in_long_table(s: Any, x: Any) -> Any:
    LONG_TABLE[3] += 1
    return x * LONG_TABLE[3]


def in_large_array(s: Any, x: Any) -> Any:
    LARGE[3] += 1
    return x * float(LARGE[3])


def imported_late(s: Any, x: Any) -> Any:
    import jaxsr_test_settings as settings  # pyright: ignore[reportMissingImports]

    settings.count += 1
    return x * settings.count


def by_text(s: Any, x: Any) -> Any:
    settings = sys.modules["jaxsr_test_settings"]
    settings.count = getattr(settings, "count") + 1  # noqa: B009
    return x * vars(settings)["count"]


_OF_PACKAGE: dict[str, Any] = {"__name__": "jaxsr_test.model", "__package__": "jaxsr_test"}
exec(
    "def in_package(s, x):\n    from . import parts\n    parts.count += 1\n"
    "    return x * parts.count",
    _OF_PACKAGE,
)


STATE: dict[str, tuple[Callable, str]] = {
    "weak keys": (weak_keys, r"WEAK_KEYS\["),
    "order of a dictionary": (moved_to_end, r"the order of global .*\.ORDERED"),
    "key of a dictionary": (
        lambda s, x: x * next(iter(BY_OBJECT)).step(),
        r"a key of global .*\.BY_OBJECT\.n",
    ),
    "module in a closure": (of_module_in_closure(types), r"global types\.jaxsr_test_count"),
    "long list": (in_long_list, r"global .*\.LONG_LIST"),
    "long table": (in_long_table, r"global .*\.LONG_TABLE"),
    "large array": (in_large_array, r"global .*\.LARGE"),
    "import in forward": (imported_late, r"global jaxsr_test_settings\.count"),
    "module by its text": (by_text, r"global jaxsr_test_settings\.count"),
    "import from a package": (_OF_PACKAGE["in_package"], r"global jaxsr_test\.parts\.count"),
}


@pytest.fixture(autouse=True)
def count_in_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "jaxsr_test_count", 0, raising=False)
    for name in ("jaxsr_test_settings", "jaxsr_test", "jaxsr_test.parts"):
        module: Any = types.ModuleType(name)
        module.count, module.__path__ = 0, []
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", STATE)
def test_state_is_refused_with_its_path(name: str):
    code, path = STATE[name]
    jm = to_jax(FunctionNet(code))
    with pytest.raises(UnsupportedTorchError, match=path):
        jax.eval_shape(lambda x: jm.apply(jm.params, jm.buffers, x)[0], X)
