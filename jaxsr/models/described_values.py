"""Describes values of Python in words that are equal in every process where the content is equal.

Attributes, classes, functions with their closures, and the globals that users' functions name are
described by their content; of a library's classes and functions the names count. Files and
environment variables that code reads do not.
"""

import collections
import copyreg
import enum
import functools
import hashlib
import mmap
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    CodeType,
    FunctionType,
    GenericAlias,
    MappingProxyType,
    MethodType,
    ModuleType,
    UnionType,
)
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from jaxsr.interop.python_code import functions_in, is_users_file, modules_named, names_of
from jaxsr.interop.python_values import attributes_of, cell_content

_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), enum.Enum, np.generic)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OF_EVERY_CLASS = (
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations_cache__",
    "__firstlineno__", "__static_attributes__", "__abstractmethods__", "__parameters__",
    "_abc_impl",
)  # fmt: skip
_DEEPEST = 50
"""Containers and objects in each other that are described."""
_MOST = 50_000
"""Objects that are described."""
_MAPPINGS = (dict, collections.OrderedDict, MappingProxyType)
_LOCKS: tuple[type, ...] = (type(threading.Lock()), type(threading.RLock()))
"""Types without content."""
_WRITTEN = (
    torch.fx.Graph, torch._ops.OperatorBase, torch._ops.OpOverloadPacket, UnionType, GenericAlias,
)  # fmt: skip
"""Types of objects whose text is their content."""
_THIS_PROCESS = uuid.uuid4().hex


def tensor_digest(tensor: torch.Tensor) -> str:
    """Tells values of a tensor apart; those that cannot be read are unlike all others."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return _tensor_digest(tensor)
    except Exception:  # nested, or of a class without values of its own: whatever that raises
        return uuid.uuid4().hex


def _tensor_digest(tensor: torch.Tensor) -> str:
    form = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}"
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return f"{form} {_THIS_PROCESS} {id(tensor)} {tensor._version}"
    form += f" {tensor.stride()}"
    once = tensor.detach()[tuple(slice(None if step else 1) for step in tensor.stride())]
    plain = once.resolve_conj().resolve_neg().cpu().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # `reshape` keeps the stride of one value
    return f"{form} {hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()}"


def _array_digest(array: np.ndarray) -> str:
    # An axis of one value that is repeated has the stride 0.
    once = array[tuple(slice(None if step else 1) for step in array.strides)]
    content = np.ascontiguousarray(once).reshape(-1).view(np.uint8).data
    return f"{array.dtype} {array.shape} {hashlib.sha256(content).hexdigest()}"


def is_users(value: type | ModuleType) -> bool:
    """Whether a class or module is neither Python's nor of an installed library."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    module = value if isinstance(value, ModuleType) else sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return is_users_file(file) if file else name not in sys.builtin_module_names


class Describer:
    """Describes values of one object; each is numbered, and described where it comes first.

    Args:
      unknown: objects of unknown content, such as an open file, are `unlike` all in other
        processes, or `alike` if their type is the same.
    """

    def __init__(self, unknown: Literal["unlike", "alike"] = "unlike") -> None:
        self._unknown = unknown
        self._numbers: dict[int, int] = {}
        self._values: list[object] = []
        """The described values, so that no other one gets their ids."""
        self._depth = 0
        self._code = collections.deque[type | FunctionType]()
        """Classes and functions that were met, for `code`."""

    def module(self, module: nn.Module) -> str:
        """Describes a module without its mode and submodules."""
        self._numbers.setdefault(id(module), len(self._numbers))
        attributes = {
            # A hook's key is its number in the process.
            name: [*value.values()] if "_hooks" in name and isinstance(value, dict) else value
            for name, value in vars(module).items()
            if name not in ("training", "_modules") and (name not in _OF_EVERY_MODULE or value)
        }
        return f"{_name(type(module))} {self._mapping(attributes)}"

    def code(self, values: Iterable[object]) -> Iterator[str]:
        """Describes classes and functions, those that were met before, and all that they name."""
        for value in values:
            self(value)
        while self._code:
            value = self._code.popleft()
            describe = self._class if isinstance(value, type) else self._function
            yield f"{_name(value)} {self.attempt(describe, value)}"

    def attempt(self, describe: Callable[[Any], str], value: object) -> str:
        """Describes a value; as one of unknown content, if that raises anything."""
        try:
            return describe(value)
        except Exception:  # users' classes raise anything, and some cannot even be copied
            return self._of_unknown(value)

    def _class(self, kind: type) -> str:
        members = {name: v for name, v in vars(kind).items() if name not in _OF_EVERY_CLASS}
        return f"{self._mapping(members)} {self(kind.__bases__)} {self(type(kind))}"

    def _function(self, function: FunctionType) -> str:
        of_call = [function.__defaults__, function.__kwdefaults__, vars(function)]
        cells = [cell_content(cell) for cell in function.__closure__ or ()]
        text = f"{_code(function)} {self(of_call)} {self(cells)}"
        if not is_users_file(function.__code__.co_filename):
            return text
        names, here = names_of(function.__code__), function.__globals__
        notes = getattr(function, "__annotate__", None) or repr(function.__annotations__)
        return f"{text} {self(notes)} {self._mapping(_named(names, here))}"

    def __call__(self, value: Any) -> str:
        return self.attempt(self._described, value)

    def _described(self, value: Any) -> str:
        if isinstance(value, (*_PLAIN, *_PLAIN_OF_TORCH)):
            return repr(value)
        if id(value) in self._numbers:
            return f"<{self._numbers[id(value)]}>"
        self._numbers[id(value)] = len(self._numbers)
        self._values.append(value)
        self._depth += 1
        try:
            is_in_reach = self._depth <= _DEEPEST and len(self._values) <= _MOST
            return self._content(value) if is_in_reach else self._of_unknown(value)
        finally:
            self._depth -= 1

    def _content(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, torch.Tensor):
            return f"{_name(kind)} {tensor_digest(value)} {self._mapping(attributes_of(value))}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            attributes = getattr(value, "__dict__", {})  # such as a mask
            own = {name: v for name, v in attributes.items() if not isinstance(v, mmap.mmap)}
            return f"{_name(kind)} {_array_digest(value.view(np.ndarray))} {self._mapping(own)}"
        if isinstance(value, Mapping) and kind in _MAPPINGS:
            return f"{_name(kind)} {self._mapping(value)}"
        if kind in (list, tuple, collections.deque):
            return f"{_name(kind)} {_listed(map(self, value))}"
        if kind in (set, frozenset):
            return f"{_name(kind)} {_listed(sorted(map(self, value)))}"
        if isinstance(value, type | FunctionType):
            if isinstance(value, FunctionType) or is_users(value):
                self._code.append(value)
            return _name(value)
        if isinstance(value, ModuleType):
            return f"{value.__name__} {self._mapping(_values_of(value))}"
        if isinstance(value, staticmethod | classmethod | property | functools.cached_property):
            return _listed(map(self, functions_in(value)))
        if isinstance(value, MethodType):
            return f"{self(value.__func__)} of {self(value.__self__)}"
        if isinstance(value, functools._lru_cache_wrapper):
            return f"{self(value.__wrapped__)} {self(vars(value))}"
        if isinstance(value, weakref.ReferenceType):
            return f"{_name(kind)} {self(value())}"
        if isinstance(value, _WRITTEN):
            return f"{_name(kind)} {value!s}"
        return _name(kind) if kind in _LOCKS else self._reduced(value)

    def _reduced(self, value: Any) -> str:
        """Describes an object as it is copied."""
        kind = type(value)
        special = copyreg.dispatch_table.get(kind)
        reduced: Any = special(value) if special else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return f"{_name(kind)} {getattr(value, '__module__', '')} {reduced}"
        made, arguments, *more = reduced
        items = [[*part] if i in (1, 2) and part else part for i, part in enumerate(more)]
        self._values.append(items)
        return f"{_name(kind)} {self(made)} {self(arguments)} {self(items)}"

    def _of_unknown(self, value: object) -> str:
        where = f" {_THIS_PROCESS} {id(value)}" if self._unknown == "unlike" else ""
        return f"{type.__repr__(type(value))}{where}"  # the class may raise when asked

    def _mapping(self, mapping: Mapping) -> str:
        return _listed(f"{self(key)}: {self(value)}" for key, value in mapping.items())


def _named(names: frozenset[str], here: Mapping[str, Any]) -> dict[str, Any]:
    """The globals that code names, and the values that it names of their modules.

    Args:
      names: in the code.
      here: its globals.
    """
    named = {name: here[name] for name in sorted(names) if name in here}
    imported = modules_named(names, here.get("__package__"))
    modules = [m for m in (*named.values(), *imported) if isinstance(m, ModuleType)]
    for module in modules:
        values = _values_of(module)
        of_module = {n: values[n] for n in sorted(names) if n in values}
        modules += [m for m in of_module.values() if isinstance(m, ModuleType) and m not in modules]
        named |= {f"{module.__name__}.{n}": value for n, value in of_module.items()}
    return {n: v for n, v in named.items() if not isinstance(v, ModuleType)}


def _values_of(module: ModuleType) -> dict[str, Any]:
    """A module's values: all of the user's, of a library those that the user's code replaced."""
    values = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return values if is_users(module) else replaced_values(module)


def replaced_values(place: ModuleType | type) -> dict[str, Any]:
    """The functions and classes of the user's in a library's module or class, by name."""
    return {name: value for name, value in vars(place).items() if _is_replaced(value)}


def _is_replaced(value: object) -> bool:
    if isinstance(value, FunctionType):
        return is_users_file(value.__code__.co_filename)
    return isinstance(value, type) and is_users(value)


def _listed(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"  # the form of a list would escape quotes once for each level


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _code(function: FunctionType) -> str:
    """A function's code without its defaults."""
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
