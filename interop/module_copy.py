"""Copies modules, also those that torch refuses to copy."""

import collections
import copy
import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch import nn

from jaxsr.interop._core.shared_memory import copy_registered
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.python_state import Snapshot

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_CONTAINERS = (list, dict, OrderedDict, collections.defaultdict, collections.deque)
_PARTS = ("_parameters", "_buffers", "_modules")

Module = TypeVar("Module", bound=nn.Module)


def copy_module(module: Module, memo: dict[int, object] | None = None) -> Module:
    """A deep copy of a module.

    torch refuses to copy a tensor with a graph behind it, such as `torch.nn.utils.weight_norm`
    keeps in an attribute; its value is copied, which the module's hook computes anew. Python does
    not copy functions: those in hooks and attributes that are closures over the module, or over a
    dictionary of it, get ones over the copy's.

    Args:
      module: the module to copy.
      memo: copies made already, by `id`, as for `copy.deepcopy`.

    Example:
      >>> layer = torch.nn.utils.weight_norm(nn.Conv1d(1, 2, 3))
      >>> copy_module(layer)(torch.ones(1, 1, 3)).shape
      torch.Size([1, 2, 1])
    """
    memo = {} if memo is None else memo
    registered = dict((*module.named_parameters(), *module.named_buffers()))
    reached = Snapshot(module)
    copy_registered(registered, reached.tensors, reached.arrays, memo)
    for sub in module.modules():
        for value in _leaves([v for k, v in vars(sub).items() if k != "_modules"]):
            if isinstance(value, torch.Tensor) and id(value) not in memo and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
            elif isinstance(value, _LOCKS):
                memo[id(value)] = value
            elif isinstance(value, types.MappingProxyType):
                memo[id(value)] = types.MappingProxyType(copy.deepcopy(dict(value), memo))
            elif _is_repeated(value) and id(value) not in memo:
                once = value[tuple(slice(None if step else 1) for step in value.strides)]
                memo[id(value)] = np.broadcast_to(copy.deepcopy(once, memo), value.shape)
    twin = _deep_copy(module, memo)
    for parameter in module.parameters():
        _copy_hooks(parameter, memo)
    for sub in twin.modules():
        tables = [
            v for k, v in vars(sub).items() if type(v) in (dict, OrderedDict) and k not in _PARTS
        ]
        for table in (vars(sub), *tables):
            for key, value in [*table.items()]:
                function = _over_copies(value, memo)
                if function is not value:
                    table[key] = function
    return twin


def _is_repeated(value: object) -> TypeGuard[np.ndarray]:
    """Whether it is an array of few values many times, of which a copy may have gigabytes."""
    return type(value) is np.ndarray and 0 in value.strides and not value.flags.writeable


def _leaves(containers: list[Any]) -> Iterator[Any]:
    """Values in containers that are not containers; these may hold themselves."""
    seen = set[int]()
    waiting = [containers]
    while waiting:
        for value in waiting.pop():
            if not (type(value) in _CONTAINERS or isinstance(value, tuple)):
                yield value  # a user's own container may load its values when asked
            elif id(value) not in seen:
                seen.add(id(value))
                waiting.append([*(value.values() if isinstance(value, dict) else value)])


def _deep_copy(module: Module, memo: dict[int, object]) -> Module:
    known = dict(memo)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        for name, sub in module.named_modules():
            own = {k: v for k, v in vars(sub).items() if k not in _PARTS}
            for key, value in own.items():
                try:
                    copy.deepcopy(value, dict(known))
                except Exception as reason:
                    path = f"self.{name}.{key}" if name else f"self.{key}"
                    raise UnsupportedTorchError(
                        f"{path} of {type(module).__name__} cannot be copied ({reason}); make it "
                        "in forward, or give its class a __deepcopy__"
                    ) from error
        raise


def _copy_hooks(parameter: nn.Parameter, memo: Mapping[int, object]) -> None:
    """Gives the copy of a parameter its gradient hooks, which torch does not copy."""
    twin = memo.get(id(parameter))
    if isinstance(twin, torch.Tensor) and twin is not parameter and twin.requires_grad:
        for hook in (parameter._backward_hooks or {}).values():
            twin.register_hook(_over_copies(hook, memo))
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            twin.register_post_accumulate_grad_hook(_over_copies(hook, memo))


def _over_copies(value: Any, memo: Mapping[int, object]) -> Any:
    """A function whose closure has the copies of copied objects; anything else unchanged."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return value
    cells = [_over_copy(cell, memo) for cell in value.__closure__]
    if all(new is old for new, old in zip(cells, value.__closure__, strict=True)):
        return value
    twin = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(cells)
    )
    twin.__kwdefaults__ = value.__kwdefaults__
    return functools.update_wrapper(twin, value)


def _over_copy(cell: types.CellType, memo: Mapping[int, object]) -> types.CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
    if isinstance(content, torch.Tensor):  # parameters have their own ways
        return cell
    twin = memo.get(id(content), content)
    return cell if twin is content else types.CellType(twin)
