"""Digests of networks, by which results and programs are told apart.

Weights count, attributes and hooks of submodules by their content, and the code of their classes.
Of the user's code count the files that those of the network's classes import, and as they are the
classes, functions and globals that its methods name; of a library its version.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

import torch
from torch import nn

from jaxsr.models.described_values import Describer, is_users, replaced_values


def network_digest(network: nn.Module, *further: str) -> str:
    """Tells networks apart in every version of jaxsr and torch; 64 hexadecimal digits.

    Args:
      network: the module.
      further: other values that count.
    """
    digest = hashlib.sha256()
    for part in (*further, *_parts(network)):
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def _parts(network: nn.Module) -> Iterator[str]:
    kinds = dict.fromkeys(map(type, network.modules()))
    yield from map(_source, sorted(_modules_of(kinds)))
    describe = Describer()
    for name, module in network.named_modules():
        yield f"{name} {describe.module(module)}"
        yield describe.attempt(lambda module: module.extra_repr(), module)
    yield describe.attempt(lambda network: describe(_other_state(network)), network)
    yield describe.attempt(lambda kinds: describe(_replaced(kinds)), kinds)
    yield from describe.code(kinds)


def _replaced(kinds: Iterable[type]) -> list[object]:
    """Hooks of all modules, functions and methods that the user's code put into torch; settings."""
    everywhere = vars(torch.nn.modules.module)
    bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__ if not is_users(base))
    return [
        [
            [*hooks.values()]
            for name, hooks in everywhere.items()
            if name.startswith("_global_") and hooks and isinstance(hooks, dict)
        ],
        [replaced_values(place) for place in (torch, torch.nn.functional, torch.Tensor, *bases)],
        [torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()],
    ]


def _other_state(network: nn.Module) -> dict[str, object]:
    """State besides tensors, which a module may add."""
    state = network.state_dict()
    return {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}


def _modules_of(kinds: Iterable[type]) -> set[str]:
    """Names of the modules that define classes, and of the user's modules that those import."""
    names = {kind.__module__ for kind in kinds}
    waiting = [sys.modules[name] for name in names if name in sys.modules]
    while waiting:
        module = waiting.pop()
        for value in list(vars(module).values()) if is_users(module) else ():
            other = value if issubclass(type(value), ModuleType) else _home(value)
            if other and is_users(other) and other.__name__ not in names:
                names.add(other.__name__)
                waiting.append(other)
    return names


def _home(value: object) -> ModuleType | None:
    """The module of a function, a class or an object's class, without asking users' classes."""
    kind = type(value)
    if issubclass(kind, FunctionType):
        return sys.modules.get(str(value.__module__))
    name = vars(value if issubclass(kind, type) else kind).get("__module__")
    return sys.modules.get(str(name))


@functools.cache
def _source(name: str) -> str:
    """The source of the module of this name, and its library's version."""
    module, library = sys.modules.get(name), sys.modules.get(name.partition(".")[0])
    number = "" if library in (torch, sys.modules["jaxsr"]) else getattr(library, "__version__", "")
    try:
        return f"{number} {inspect.getsource(module) if module is not None else ''}"
    except (OSError, TypeError):  # it has no file
        return str(number)
