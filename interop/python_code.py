"""Python code: its owner, the names that it uses, and a class's attributes besides methods."""

import functools
import itertools
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__)
_PACKAGES = tuple(f"{p}/" for p in (_HERE.parents[1], _HERE.resolve().parent))
"""`jaxsr`, and `interop`, which the repository links into it."""
_STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether it is neither of Python, nor of an installed library, nor of this package."""
    if not file:
        return True  # of an interactive session
    installed = "site-packages" in file or "dist-packages" in file
    return not (installed or file.startswith(("<frozen", _STANDARD_LIBRARY, *_PACKAGES)))


@functools.cache
def names_of(code: types.CodeType) -> frozenset[str]:
    """Its names, and its texts that may be names: `getattr(settings, "count")`."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    texts = {c for c in code.co_consts if isinstance(c, str) and c.replace(".", "").isidentifier()}
    return frozenset(texts).union(code.co_names, *(names_of(part) for part in inner))


def modules_named(names: frozenset[str], package: str | None) -> list[types.ModuleType]:
    """Loaded modules that code may import where it runs: `from . import settings`.

    Args:
      names: in the code.
      package: of its file.
    """
    parents = itertools.accumulate((package or "").split("."), "{}.{}".format)
    places = [name for name in names if name]
    places += [f"{parent}.{name}" for parent in parents if parent for name in names if name]
    return [sys.modules[place] for place in sorted(places) if place in sys.modules]


def is_attribute(name: str, value: Any) -> bool:
    """Whether an entry of a class is a value, not a method or one of Python's own."""
    if name.startswith("__") or name in ("_abc_impl", "_parameters", "_buffers", "_modules"):
        return False
    return not any(True for _ in functions_in(value)) and not hasattr(value, "__get__")


def functions_in(member: Any) -> Iterator[Any]:
    if isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif isinstance(member, property):
        yield from (f for f in (member.fget, member.fset) if f is not None)
    elif isinstance(member, functools.cached_property):
        yield member.func
    elif isinstance(member, types.FunctionType):
        yield member


def slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(
        f"_{kind.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n
        for n in names
        if n not in ("__dict__", "__weakref__")
    )
