"""What `type(x)` answers to the code of a module that is traced: the class that torch gives.

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

_OTHERS = frozenset({"builtins", "jax", "jaxsr", "torch", "torchax"})
"""Packages whose code knows the tensors of a trace, or asks for no types."""

Globals = dict[str, Any]


class _Answers(type):
    """The class of `Type`, which stands for Python's `type` also as an argument."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Type or len(args) != 1:
            return super().__call__(*args, **kwargs)
        kind = type(args[0])
        return Type if kind is type else args[0].__class__ if kind is JaxTensor else kind

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, type) if cls is Type else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is Type else super().__subclasscheck__(subclass)


class Type(type, metaclass=_Answers):
    """`type`, to code that is traced."""


def globals_of(module: nn.Module, reached: Snapshot) -> list[Globals]:
    """The globals of the code that a module's forward may run.

    Args:
      module: whose classes say which libraries are used; all loaded files of these count.
      reached: what is reachable from it, with the code of users' files.
    """
    spaces = {id(space): space for space in reached.asking_types}
    classes = {base for sub in module.modules() for base in type(sub).__mro__}
    libraries = {kind.__module__.partition(".")[0] for kind in classes} - _OTHERS
    for name, loaded in list(sys.modules.items()):
        space = getattr(loaded, "__dict__", None)
        if name.partition(".")[0] in libraries and isinstance(space, dict):
            spaces[id(space)] = space
    return list(spaces.values())


@contextmanager
def answering_types(spaces: Iterable[Globals]) -> Generator[None]:
    """In this block code with these globals gets torch's classes from `type(tensor)`."""
    added = [space for space in spaces if "type" not in space]
    for space in added:
        space["type"] = Type
    try:
        yield
    finally:
        for space in added:
            space.pop("type", None)
