"""Digests of the user's code, by which results, runs and programs of other code are told apart."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from jaxsr.interop.sealed_json import short_digest
from jaxsr.models.user_files import is_users_file


def code_digests(task: object = None) -> dict[str, str]:
    """Returns digests of the user's code by name: imported modules, and what a notebook defines.

    Args:
      task: class or function that is trained. If a notebook's cell defines it, its code counts, and
        the cells' functions, classes and plain values that it names.
    """
    digests = {}
    if getattr(task, "__module__", None) == "__main__":
        main = vars(sys.modules["__main__"])
        if "__file__" not in main:
            text = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(_named_code(task, main)))
            digests["__main__"] = short_digest(text.encode())
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and is_users_file(file) and Path(file).is_file():
            digests[name] = short_digest(Path(file).read_bytes())
    return digests


def _named_code(task: object, main: Mapping[str, Any]) -> Iterator[str]:
    """Yields the code of a class or function, and of all that it names in `main`."""
    waiting, seen = [("task", task)], set[int]()
    while waiting:
        name, value = waiting.pop()
        value = getattr(value, "__func__", getattr(value, "fget", value))  # of methods, properties
        if isinstance(value, _PLAIN):
            yield f"{name} = {value!r}"
        if getattr(value, "__module__", None) != "__main__" or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            waiting += [(n, v) for n, v in sorted(vars(value).items()) if n not in _OF_ANY_CLASS]
            waiting += [(base.__name__, base) for base in value.__bases__]
        elif isinstance(value, FunctionType):
            parts = [*_nested(value.__code__)]
            yield f"{name}: {described_code(value)}"
            yield f"{name}: {value.__defaults__!r} {value.__kwdefaults__!r}"
            waiting += [(n, main[n]) for c in parts for n in c.co_names if n in main]


_PLAIN = (int, float, str, bytes, tuple, list, dict, type(None))
_OF_ANY_CLASS = (
    "__module__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__static_attributes__",
)


def described_code(function: FunctionType) -> str:
    """Describes a function's code without its defaults, alike in every process."""
    return repr([(c.co_code, c.co_names, _constants(c)) for c in _nested(function.__code__)])


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _constants(code: CodeType) -> list[Any]:
    plain = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    # A set's order differs from process to process.
    return [sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in plain]
