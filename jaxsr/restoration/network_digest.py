"""Digests of networks, by which remembered reaches, results and programs are told apart.

An architecture is attributes, buffers and hooks of submodules by their content, names and shapes of
parameters, and the code of its classes. Of the user's code all loaded files count, and as they are
the classes, functions and globals that the network's methods name, with their closures; of a
library its version. Files and environment variables that code reads do not.
"""

import argparse
import collections
import enum
import functools
import hashlib
import inspect
import sys
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib.metadata import version
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from jaxsr.interop.python_code import functions_in, is_attribute, names_of
from jaxsr.interop.python_values import cell_content
from jaxsr.models.code_digests import code_digests, described_code
from jaxsr.models.user_files import is_users_file
from jaxsr.runtime.source_digest import source_digest

_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), enum.Enum, np.generic)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_DEEPEST = 50
"""Containers and objects in each other that are described."""
_LOCKS: tuple[type, ...] = (type(threading.Lock()), type(threading.RLock()))
"""Types without content."""
_HOLDERS = (SimpleNamespace, argparse.Namespace)
"""Types of libraries whose instances among globals are described by their content."""
_THIS_PROCESS = uuid.uuid4().hex


def architecture_digest(network: nn.Module, *further: str) -> str:
    """Tells networks apart whose weights do not matter; 64 hexadecimal digits.

    Args:
      network: the module.
      further: other values that count.
    """
    versions = (version("torch"), source_digest("jaxsr.restoration"))
    return _joined((*versions, *further, *_parts(network)))


def network_digest(network: nn.Module, *further: str) -> str:
    """`architecture_digest` with the weights' values, alike in every version of jaxsr and torch."""
    tensors = (value for value in network.state_dict().values() if isinstance(value, torch.Tensor))
    return _joined((*further, *_parts(network), *map(tensor_digest, tensors)))


def tensor_digest(tensor: torch.Tensor) -> str:
    """Tells values of a tensor apart."""
    form = f"{tensor.dtype} {tuple(tensor.shape)}"
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return f"{form} {id(tensor)} {tensor._version}"
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return f"{form} {hashlib.sha256(plain.view(torch.uint8).numpy().data).hexdigest()}"


def _joined(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def _parts(network: nn.Module) -> Iterator[str]:
    kinds = dict.fromkeys(map(type, network.modules()))
    if users := next(filter(_is_users, kinds), None):
        yield repr(code_digests(users))
    yield from map(_source, dict.fromkeys(kind.__module__ for kind in kinds))
    describe = _Describer()
    for name, module in network.named_modules():
        yield f"{name} {describe.module(module, without=('_parameters', '_modules'))}"
        yield module.extra_repr()
    for name, value in network.state_dict(keep_vars=True).items():
        is_tensor = isinstance(value, torch.Tensor)  # a module may add any state
        yield f"{name} {tuple(value.shape) if is_tensor else describe(value)}"
    yield from describe.code(kinds)


def _is_users(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or is_users_file(file)


@functools.cache
def _source(name: str) -> str:
    """The source of the module of this name, and its library's version."""
    module, library = sys.modules.get(name), sys.modules.get(name.partition(".")[0])
    number = "" if library in (torch, sys.modules["jaxsr"]) else getattr(library, "__version__", "")
    try:
        return f"{number} {inspect.getsource(module) if module is not None else ''}"
    except (OSError, TypeError):  # it has no file
        return str(number)


class _Describer:
    """Describes values in words that are equal in every process where the content is equal.

    Objects of unknown content are equal to nothing outside this process.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._values: list[object] = []
        """The described values, so that no other one gets their ids."""
        self._depth = 0
        self._code = collections.deque[type | FunctionType]()
        """Classes and functions that were met, for `code`."""
        self._is_in_code = False

    def module(self, module: nn.Module, *, without: tuple[str, ...] = ()) -> str:
        """Describes a module without its mode and the named attributes."""
        self._numbers.setdefault(id(module), len(self._numbers))
        attributes = {
            # A hook's key is its number in the process.
            name: [*value.values()] if "_hooks" in name and isinstance(value, dict) else value
            for name, value in vars(module).items()
            if name not in ("training", *without) and (name not in _OF_EVERY_MODULE or value)
        }
        return f"{_name(type(module))} {self._mapping(attributes)}"

    def code(self, kinds: Iterable[type]) -> Iterator[str]:
        """Describes classes and the functions that were met, and what they name in turn."""
        self._is_in_code = True
        for kind in kinds:
            self(kind)
        while self._code:
            value = self._code.popleft()
            described = self._class(value) if isinstance(value, type) else self._function(value)
            yield f"{_name(value)} {described}"

    def _class(self, kind: type) -> str:
        members = {
            name: value
            for name, value in vars(kind).items()
            if any(True for _ in functions_in(value)) or is_attribute(name, value)
        }
        return f"{self._mapping(members)} {self(kind.__bases__)}"

    def _function(self, function: FunctionType) -> str:
        of_call = [function.__defaults__, function.__kwdefaults__]
        cells = [cell_content(cell) for cell in function.__closure__ or ()]
        text = f"{described_code(function)} {self(of_call)} {self(cells)}"
        if not is_users_file(function.__code__.co_filename):
            return text
        names, here = sorted(names_of(function.__code__)), function.__globals__
        named = {name: here[name] for name in names if name in here}
        for module in [value for value in named.values() if isinstance(value, ModuleType)]:
            file = getattr(module, "__file__", None)
            if file and is_users_file(file):
                values = vars(module)
                named |= {f"{module.__name__}.{n}": values[n] for n in names if n in values}
        return f"{text} {self._mapping(named)}"

    def __call__(self, value: Any) -> str:
        if isinstance(value, (*_PLAIN, *_PLAIN_OF_TORCH)):
            return repr(value)
        if id(value) in self._numbers:
            return f"<{self._numbers[id(value)]}>"
        self._numbers[id(value)] = len(self._numbers)
        self._values.append(value)
        self._depth += 1
        try:
            return self._content(value) if self._depth <= _DEEPEST else _unlike_any(value)
        finally:
            self._depth -= 1

    def _content(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, torch.Tensor):
            return tensor_digest(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            content = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return f"{value.dtype} {value.shape} {content}"
        if isinstance(value, Mapping):
            return f"{_name(kind)} {self._mapping(value)}"
        if isinstance(value, list | tuple | collections.deque):
            return f"{_name(kind)} {_listed(map(self, value))}"
        if isinstance(value, Set):
            return f"{_name(kind)} {_listed(sorted(map(self, value)))}"
        if isinstance(value, type | FunctionType):
            if isinstance(value, FunctionType) or _is_users(value):
                self._code.append(value)
            return _name(value)
        if isinstance(value, BuiltinFunctionType | ModuleType):
            return _name(value)
        if isinstance(value, staticmethod | classmethod | property | functools.cached_property):
            return _listed(map(self, functions_in(value)))
        if isinstance(value, MethodType):
            return f"{self(value.__func__)} of {self(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial {self(value.func)} {self(value.args)} {self(value.keywords)}"
        if isinstance(value, weakref.ReferenceType):
            return _name(kind)  # nn.LSTM makes these anew
        if isinstance(value, torch.fx.Graph):
            return str(value)
        if isinstance(value, torch._ops.OperatorBase | torch._ops.OpOverloadPacket):
            return str(value)
        if kind in _LOCKS or (self._is_in_code and kind not in _HOLDERS and not _is_users(kind)):
            return _name(kind)  # a logger among globals does not make a network unlike itself
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # an object that cannot be copied; users' classes raise anything
            return _unlike_any(value)
        if isinstance(reduced, str):
            return f"{_name(kind)} {reduced}"
        made, arguments, *more = reduced
        items = [[*part] if i in (1, 2) and part else part for i, part in enumerate(more)]
        self._values.append(items)
        return f"{_name(kind)} {self(made)} {self(arguments)} {self(items)}"

    def _mapping(self, mapping: Mapping) -> str:
        return _listed(f"{self(key)}: {self(value)}" for key, value in mapping.items())


def _listed(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"  # the form of a list would escape quotes once for each level


def _unlike_any(value: object) -> str:
    return f"{_name(type(value))} {_THIS_PROCESS} {id(value)}"


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
