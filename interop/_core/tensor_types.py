"""Gives code that is traced torch's classes as answers of `type(x)`.

Tensors of a trace are of a subclass, so `type(x) is torch.Tensor` would be False, and code would
take its other branch. `type` is looked up among the globals of the code: while something is traced
these have a `type` that answers for tensors, and is Python's own otherwise.
"""

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from torch import nn

from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.python_state import Snapshot

_OTHERS = sys.stdlib_module_names | {"jax", "jaxsr", "torch", "torchax"}
"""Packages whose code knows the tensors of a trace, or does not ask for their types."""

Globals = dict[str, Any]


class _Answers(type):
    """The class of `Type`, which stands for Python's `type` also as an argument."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Type:
            return super().__call__(*args, **kwargs)
        if len(args) != 1:  # a new class, which must not differ after the trace
            return type(*args, **kwargs)
        kind = type(args[0])
        return Type if kind is type else args[0].__class__ if kind is JaxTensor else kind

    def __getitem__(cls, kind: Any) -> Any:
        return type[kind]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, type) if cls is Type else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is Type else super().__subclasscheck__(subclass)


class Type(type, metaclass=_Answers):
    """`type`, to code that is traced."""


def globals_of(module: nn.Module, reached: Snapshot) -> list[Globals]:
    """The globals of the code that a module's forward may run.

    Args:
      module: its classes tell which libraries it uses; all loaded files of these are included.
      reached: everything reachable from the module, with the code of users' files.
    """
    tables = {id(table): table for table in reached.asking_types}
    classes = {base for sub in module.modules() for base in type(sub).__mro__}
    libraries = {kind.__module__.partition(".")[0] for kind in classes} - _OTHERS
    for name, loaded in list(sys.modules.items()):
        table = getattr(loaded, "__dict__", None)
        if name.partition(".")[0] in libraries and isinstance(table, dict):
            tables[id(table)] = table
    return list(tables.values())


@contextmanager
def answering_types(tables: Iterable[Globals]) -> Generator[None]:
    """In this block code with these globals gets torch's classes from `type(tensor)`.

    Code whose globals have a `type` already, of its own or of an outer block, keeps that.
    """
    changed = [table for table in tables if "type" not in table]
    try:
        for table in changed:
            table["type"] = Type
        yield
    finally:
        for table in changed:
            if table.get("type") is Type:
                del table["type"]
