"""Attributes of a module that forward writes: values of one call pass, state is refused.

A value that each call writes before it reads it, such as the height of its input or its map of
attention, is of that call alone. So the trace that meets the write is repeated with the attribute
guarded: reading it before the write is refused, then and in all later traces. A tensor that forward
itself never reads again may be meant for the caller, who is warned that `apply` does not return it.
Tensors that follow from parameters and constants are caches, which each trace computes again.
"""

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import torch
from torch import nn

from jaxsr.interop._core.located_errors import write_place
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.python_state import Change
from jaxsr.interop.python_values import has_tensor

TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module under which torch registers its parts."""
_RETURN_IT = "a pure function cannot: return it, or register it as a buffer of fixed shape"
_LOST = ", where it is lost after the call; return it if you need it"


class LostTensorWarning(UserWarning):
    """Forward leaves a tensor in an attribute, which `apply` does not return."""


@dataclass
class _Guard:
    reason: str
    """Why the attribute may not be read before it is written."""
    loss: str = ""
    """The value that a caller misses where forward does not read it; "" once this was reported."""


_Guards = dict[tuple[str, str], _Guard]


class Attributes:
    """The attributes of a module's copy, over all its traces."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._guarded: _Guards = {}
        """By path of the submodule, and attribute."""
        self._lost: dict[tuple[str, str], str] = {}
        """By path and attribute, the warning that a container's tensors are lost; "" once it was
        given, or a call was seen to read them."""
        self._has_run = False
        self._adopted: set[int] = set()
        """Ids of the tensors in attributes that an earlier trace has read."""
        self._replaced: dict[int, str] = {}
        """Ids of the tensors in attributes that a trace has replaced unread -> reason that they may
        not be read."""

    def snapshot(self) -> dict[int, dict[str, object]]:
        """The attributes now, for `check` to compare with."""
        return {id(m): dict(vars(m)) for m in self._module.modules()}

    def plain(self) -> dict[nn.Module, dict[str, object]]:
        """The attributes now, but tensors, by submodule."""
        return {
            m: {k: v for k, v in vars(m).items() if k not in TABLES and not has_tensor(v)}
            for m in self._module.modules()
        }

    @contextmanager
    def guarded(self) -> Generator[None]:
        """In this block, values that forward writes cannot be read before.

        Warns:
          LostTensorWarning: forward wrote a tensor there and did not read it.
        """
        modules: list[tuple[nn.Module, type]] = []
        by_path: dict[str, dict[str, _Guarded | _Watched]] = {}
        for (path, key), guard in self._guarded.items():
            by_path.setdefault(path, {})[key] = _Guarded(key, guard)
        for (path, key), warning in self._lost.items():
            if warning:
                by_path.setdefault(path, {})[key] = _Watched(key)
        try:
            for path, guards in by_path.items():
                module = self._module.get_submodule(path)
                kind = type(module)
                names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
                modules.append((module, kind))
                module.__class__ = type(kind.__name__, (kind,), guards | names)
            yield
            for path, guards in by_path.items():
                for key, guarded in guards.items():
                    if isinstance(guarded, _Guarded):
                        guarded.warn()
                    elif guarded.is_read(self._module.get_submodule(path)):
                        self._lost[path, key] = ""
        finally:
            for module, kind in modules:
                module.__class__ = kind

    def check(
        self,
        before: dict[int, dict[str, object]],
        trace: Trace,
        tensors: Mapping[str, JaxTensor],
        outputs: PyTree,
    ) -> bool:
        """Refuses state that forward keeps in attributes.

        Args:
          before: the attributes before forward.
          trace: the trace that ran.
          tensors: parameters and buffers by name.
          outputs: arrays that forward returned.

        Returns:
          False where the trace must be repeated, because an attribute has been guarded.
        """
        guards: _Guards = {}
        registered = {id(tensor) for tensor in tensors.values()}
        returned = {id(leaf) for leaf in jax.tree.leaves(outputs)}
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
                # A tensor that code has read before it put another one in its place is state.
                adopted = self._adopted | set(trace.adopted)
                is_state = isinstance(earlier, torch.Tensor) and id(earlier) in adopted
                is_unread = isinstance(earlier, torch.Tensor) and not is_state
                if _holds_traced(value, registered, caches=not is_state):
                    keeps = f"forward keeps a tensor in {where}{write_place(sub, key)}"
                    if value is earlier:  # of its entries another call shows whether they are read
                        lost = {id(tensor.array()) for tensor in _traced(value)} - returned
                        if lost:
                            self._lost.setdefault((name, key), keeps + _LOST)
                        continue
                    if is_unread:
                        self._replaced[id(earlier)] = f"{keeps} and reads it in the next call"
                        continue
                    guards[name, key] = _Guard(
                        f"{keeps} and reads it in the next call; {_RETURN_IT}",
                        keeps + _LOST,
                    )
                elif (
                    isinstance(value, (bool, int, float))
                    and value != earlier
                    and not isinstance(getattr(type(sub), key, None), cached_property)
                ):
                    guards[name, key] = _Guard(
                        f"forward changes {where} from {earlier!r} to {value!r}"
                        f"{write_place(sub, key)}, which a compiled function would do only once; "
                        "make it a buffer, or an argument"
                    )
        if guards and self._has_run:  # an earlier trace may have read them
            reason = next(iter(guards.values())).reason
            raise UnsupportedTorchError(f"{reason} (or call apply in this mode first)")
        self._adopted |= {
            id(value)
            for attributes in before.values()
            for value in attributes.values()
            if isinstance(value, torch.Tensor) and id(value) in trace.adopted
        }
        for replaced in self._adopted & set(self._replaced):
            raise UnsupportedTorchError(f"{self._replaced[replaced]}; {_RETURN_IT}")
        self._guarded |= guards
        self._has_run |= not guards
        return not guards

    def warn(self) -> None:
        """Says once which containers of traces that passed have lost their tensors.

        Warns:
          LostTensorWarning: of each.
        """
        for container, warning in self._lost.items():
            if warning:
                warnings.warn(warning, LostTensorWarning, stacklevel=2)
                self._lost[container] = ""

    def carried(self, changes: Iterable[Change]) -> str:
        """Describes the first change that another call may read; "" if there is none."""
        names = {id(sub): name for name, sub in self._module.named_modules()}
        readable = (c for c in changes if (names.get(id(c.owner)), c.key) not in self._guarded)
        return next(map(self.describe, readable), "")

    def describe(self, change: Change) -> str:
        """The refusal of a change, with the line of the module's class that makes it."""
        for sub in self._module.modules():
            for key, value in vars(sub).items():
                if value is change.owner or (sub is change.owner and key == change.key):
                    return describe_change(change, place=write_place(sub, key))
        return describe_change(change)

    def unjudged(self, changes: list[Change]) -> list[Change]:
        """Changes of a call that `check` does not judge, so that another call has to show them."""
        names = {id(sub): name for name, sub in self._module.named_modules()}

        def is_judged(change: Change) -> bool:
            if not isinstance(change.owner, nn.Module):
                return False
            if (names.get(id(change.owner)), change.key) in self._guarded:
                return True
            is_made_here = change.is_new or change.before is None
            if has_tensor(change.after):  # one of constants may be a cache, or a count
                return not is_made_here or holds_inputs(change.after)
            kind = type(change.owner)
            return isinstance(getattr(kind, str(change.key), None), cached_property)

        return [change for change in changes if not is_judged(change)]

    def may_move(self, changes: Iterable[Change], trace: Trace, written: Set[str]) -> bool:
        """Whether a call that comes after changes may have other parameters and buffers.

        Not where all are caches of tensors that stay. Torch takes no second gradient through a
        tensor that it kept, so one that has a gradient is made anew by whoever trains.

        Args:
          changes: that the call made.
          trace: of the call.
          written: names of the buffers that calls write.
        """
        trains = self._module.training

        def moves(tensor: JaxTensor) -> bool:
            if tensor.cell.const is not None or tensor.cell in trace.state:
                return False
            learned = trains and tensor.cell.is_learned and not tensor.needs_grad
            return tensor.cell.input_free and (bool(written) or learned)

        def is_cache(change: Change) -> bool:
            return (change.is_new or change.before is None) and has_tensor(change.after)

        return not all(is_cache(c) and not any(map(moves, _traced(c.after))) for c in changes)


def describe_change(change: Change, source: str = "forward", place: str = "") -> str:
    """The refusal of a change of Python state, by the code of that name at that place."""
    values, changes = "", "changes"
    if has_tensor(change.after):
        changes = "keeps a tensor in"
    elif change.shows_values:
        values = f" from {shortened(change.before)} to {shortened(change.after)}"
    return (
        f"{source} {changes} `{change.path}`{values}{place}, which a compiled function would do "
        "only once; make it a buffer, or an argument"
    )


def shortened(value: object) -> str:
    """Its text on one line, cut after some words."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


class _Guarded:
    """An attribute that has no value before it is written."""

    def __init__(self, key: str, guard: _Guard) -> None:
        self.key, self.guard = key, guard
        self.is_written = self.is_read = False

    def __get__(self, module: nn.Module, kind: type) -> Any:
        if not self.is_written:
            raise UnsupportedTorchError(self.guard.reason)
        self.is_read = True
        return vars(module)[self.key]

    def __set__(self, module: nn.Module, value: object) -> None:
        vars(module)[self.key] = value
        self.is_written = True

    def warn(self) -> None:
        if self.is_written and not self.is_read and self.guard.loss:
            warnings.warn(self.guard.loss, LostTensorWarning, stacklevel=2)
            self.guard.loss = ""


class _Watched:
    """An attribute with a container that forward fills."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.content: list[int] = []

    def __get__(self, module: nn.Module, kind: type) -> Any:
        value = vars(module)[self.key]
        self.content = [id(tensor) for tensor in _traced(value)]
        return value

    def __set__(self, module: nn.Module, value: object) -> None:
        vars(module)[self.key] = value

    def is_read(self, module: nn.Module) -> bool:
        """Whether code took the container after the last change of its tensors."""
        return self.content == [id(tensor) for tensor in _traced(vars(module)[self.key])]


def holds_inputs(value: object) -> bool:
    """Whether it holds a tensor of a trace that follows from the inputs, also within containers."""
    return _holds_traced(value, set(), caches=True)


def _holds_traced(value: object, registered: set[int], *, caches: bool) -> bool:
    """Whether it holds a tensor of the trace that is neither parameter nor buffer.

    Where `caches` holds, tensors that follow from parameters and constants do not count: the next
    trace computes them again.
    """
    return any(
        id(tensor) not in registered and not (caches and tensor.cell.input_free)
        for tensor in _traced(value)
    )


def _traced(value: object, depth: int = 3) -> Iterator[JaxTensor]:
    """The tensors of a trace in a value, also within containers."""
    if isinstance(value, JaxTensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _traced(part, depth - 1)
