"""What forward writes into a module's attributes: values of one call pass, state is refused.

A number that each call writes before it reads it, such as the height of its input, is of that call
alone. So the trace that meets the write is repeated with the attribute guarded: reading it before
the write is refused, then and in all later traces. Tensors that follow from parameters and
constants are caches, which each trace computes again.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from jaxsr.interop._core.dispatch import Trace
from jaxsr.interop._core.located_errors import write_place
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError

TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module under which torch registers its parts."""

_Guards = dict[tuple[str, str], str]


class Attributes:
    """The attributes of a module's copy, over all its traces."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._guarded: _Guards = {}
        """(path of the submodule, attribute) -> why it may not be read before it is written."""
        self._has_run = False

    def snapshot(self) -> dict[int, dict[str, Any]]:
        """The attributes now, for `check` to compare with."""
        return {id(m): dict(vars(m)) for m in self._module.modules()}

    @contextmanager
    def guarded(self) -> Generator[None]:
        """In this block, numbers that forward writes cannot be read before."""
        modules: list[tuple[nn.Module, type]] = []
        by_path: dict[str, dict[str, Any]] = {}
        for (path, key), reason in self._guarded.items():
            by_path.setdefault(path, {})[key] = _Guarded(key, reason)
        try:
            for path, guards in by_path.items():
                module = self._module.get_submodule(path)
                kind = type(module)
                names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
                modules.append((module, kind))
                module.__class__ = type(kind.__name__, (kind,), guards | names)
            yield
        finally:
            for module, kind in modules:
                module.__class__ = kind

    def check(
        self, before: dict[int, dict[str, Any]], trace: Trace, tensors: Mapping[str, JaxTensor]
    ) -> bool:
        """Refuses state that forward keeps in attributes.

        Args:
          before: the attributes before forward.
          trace: what ran.
          tensors: parameters and buffers by name.

        Returns:
          False where the trace must be repeated, because an attribute has been guarded.
        """
        guards: _Guards = {}
        registered = {id(tensor) for tensor in tensors.values()}
        for name, sub in self._module.named_modules():
            attributes = before.get(id(sub))
            if attributes is None:
                continue
            for key, value in vars(sub).items():
                earlier = attributes.get(key)
                if value is earlier and not isinstance(value, (list, dict)):
                    continue
                if key in (*TABLES, "_non_persistent_buffers_set") or (name, key) in self._guarded:
                    continue
                where = f"`{name}.{key}`" if name else f"`{key}`"
                # A tensor that the code has read before it put another one in its place is state.
                is_state = isinstance(earlier, torch.Tensor) and id(earlier) in trace.adopted
                is_recomputed = isinstance(earlier, torch.Tensor) and not is_state
                if not is_recomputed and _holds_traced(value, registered, caches=not is_state):
                    raise UnsupportedTorchError(
                        f"forward keeps a tensor in {where}{write_place(sub, key)}; a pure "
                        "function cannot: return it, or register it as a buffer of fixed shape"
                    )
                if isinstance(value, (bool, int, float)) and value != earlier:
                    guards[name, key] = (
                        f"forward changes {where} from {earlier!r} to {value!r}"
                        f"{write_place(sub, key)}, which a compiled function would do only once; "
                        "make it a buffer, or an argument"
                    )
        if guards and self._has_run:  # an earlier trace may have read them
            raise UnsupportedTorchError(next(iter(guards.values())))
        self._guarded |= guards
        self._has_run |= not guards
        return not guards


class _Guarded:
    """An attribute that has no value before it is written."""

    def __init__(self, key: str, reason: str) -> None:
        self.key, self.reason = key, reason
        self.is_written = False

    def __get__(self, module: nn.Module, kind: type) -> Any:
        if not self.is_written:
            raise UnsupportedTorchError(self.reason)
        return vars(module)[self.key]

    def __set__(self, module: nn.Module, value: Any) -> None:
        vars(module)[self.key] = value
        self.is_written = True


def _holds_traced(value: Any, registered: set[int], *, caches: bool, depth: int = 3) -> bool:
    """Whether it holds a tensor of the trace that is neither parameter nor buffer.

    Where `caches` holds, tensors that follow from parameters and constants do not count: the next
    trace computes them again.
    """
    if isinstance(value, JaxTensor):
        return id(value) not in registered and not (caches and value.cell.input_free)
    if depth and isinstance(value, (list, tuple, set, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return any(_holds_traced(v, registered, caches=caches, depth=depth - 1) for v in parts)
    return False
