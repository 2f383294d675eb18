"""Digests of networks, by which remembered reaches, results and programs are told apart.

An architecture is the code of its classes, attributes, buffers and hooks of submodules by their
content, names and shapes of parameters. Where a class is the user's, all loaded modules of the
user's count; of a library its version. Files and environment variables that code reads do not.
"""

import collections
import enum
import functools
import hashlib
import inspect
import sys
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib.metadata import version
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from jaxsr.interop.python_code import functions_in
from jaxsr.models.code_digests import code_digests, described_code
from jaxsr.models.user_files import is_users_file
from jaxsr.runtime.source_digest import source_digest

_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), enum.Enum, np.generic)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_DEEPEST = 50
"""Containers and objects in each other that are described."""
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
    return _joined((*further, *_parts(network), *map(tensor_digest, network.state_dict().values())))


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
        digests = code_digests(users)
        yield repr(digests)
        yield from _live_code(digests)
    yield from map(_source, dict.fromkeys(kind.__module__ for kind in kinds))
    describe = _Describer()
    for name, module in network.named_modules():
        yield f"{name} {describe.module(module, without=('_parameters', '_modules'))}"
        yield module.extra_repr()
    for name, tensor in network.state_dict(keep_vars=True).items():
        yield f"{name} {tuple(tensor.shape)}"


def _live_code(modules: Iterable[str]) -> Iterator[str]:
    """The functions and methods of modules as they are: code may replace them."""
    for name in modules:
        values = [*vars(sys.modules[name]).values()]
        kinds = [value for value in values if isinstance(value, type) and _is_users(value)]
        for value in [*values, *(member for kind in kinds for member in vars(kind).values())]:
            for function in functions_in(value):
                yield f"{_name(function)} {described_code(function)}"


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

    def module(self, module: nn.Module, *, without: tuple[str, ...] = ()) -> str:
        """Describes a module without its mode and the named attributes."""
        self._numbers.setdefault(id(module), len(self._numbers))
        own = {
            # A hook's key is its number in the process.
            name: [*value.values()] if "_hooks" in name and isinstance(value, dict) else value
            for name, value in vars(module).items()
            if name not in ("training", *without) and (name not in _OF_EVERY_MODULE or value)
        }
        return f"{_name(type(module))} {self._mapping(own)}"

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
        if isinstance(value, type | BuiltinFunctionType):
            return _name(value)
        if isinstance(value, MethodType):
            return f"{self(value.__func__)} of {self(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial {self(value.func)} {self(value.args)} {self(value.keywords)}"
        if isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            of_call = (value.__defaults__, value.__kwdefaults__, cells)
            return f"{_name(value)} {described_code(value)} {self(of_call)}"
        if isinstance(value, weakref.ReferenceType):
            return _name(kind)  # nn.LSTM makes these anew
        if isinstance(value, torch.fx.Graph):
            return str(value)
        if attributes := getattr(value, "__dict__", None):
            return f"{_name(kind)} {self._mapping(attributes)}"
        return _unlike_any(value)

    def _mapping(self, mapping: Mapping) -> str:
        return _listed(f"{self(key)}: {self(value)}" for key, value in mapping.items())


def _listed(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"  # the form of a list would escape quotes once for each level


def _unlike_any(value: object) -> str:
    return f"{_name(type(value))} {_THIS_PROCESS} {id(value)}"


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
