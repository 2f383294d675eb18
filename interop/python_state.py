"""Python state that code can reach: its contents before a call and after it.

A compiled function changes it once, when it is traced. Reachable are attributes, containers,
generators of random numbers, iterators, NumPy arrays, the closures, defaults and attributes of
functions, weak references, context variables, results in caches of `functools`, and, of code in
users' own files, class attributes, the globals that the code names, and the environment where it
does so. Only attributes of tensors are looked at. The walk ends after `_LIMIT` objects.
"""

import collections
import contextvars
import functools
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from jaxsr.interop.python_code import (
    functions_in,
    is_attribute,
    is_users_file,
    modules_named,
    names_of,
    slots_of,
)
from jaxsr.interop.python_values import (
    MISSING,
    PLAIN,
    attributes_of,
    cached_results,
    cell_content,
    cell_writer,
    closure_name,
    has_tensor,
    long_content,
    of_class,
    orders,
    same,
    set_key,
    token_of,
    token_writer,
    variable_content,
)

_LIMIT = 50_000
"""Objects that are looked at."""
_LONG = 1000
"""Lists and dictionaries of more entries hold data: objects in them are not looked at."""

_LEAVES = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.Tensor, torch.dtype,
    torch.device, torch.Size, np.dtype, np.generic, types.BuiltinFunctionType, property,
)  # fmt: skip
_OPAQUE = (
    "jax", "jaxlib", "flax", "optax", "logging", "threading", "_thread", "weakref", "_weakref",
    "re", "typing", "pathlib", "enum", "ast", "inspect", "ctypes", "concurrent", "multiprocessing",
    "asyncio", "abc", "_abc", "warnings", "contextvars", "_contextvars", "io", "_io", "numpy",
    "importlib", "torch",
)  # fmt: skip
"""Packages whose objects keep nothing that a module's code would read."""
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
_REGISTERED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")
"""Attributes of a module that torch itself manages."""


class Change(NamedTuple):
    """A value that is not as it was."""

    path: str
    """`self.schedule['step']`, `global my_file.COUNT`."""
    before: Any
    after: Any
    owner: object
    """Holds it."""
    key: Any
    is_new: bool
    """Whether there was nothing before: an entry of a cache."""

    @property
    def shows_values(self) -> bool:
        """Whether before and after are values, not the digest of an object."""
        return self.key != ""

    @property
    def is_growth(self) -> bool:
        """Whether it is a new element of a list."""
        return self.is_new and isinstance(self.owner, (list, collections.deque))

    @property
    def holds_tensors(self) -> bool:
        """Whether it is a tensor, or a container of some, before or after."""
        return has_tensor(self.before) or has_tensor(self.after)


class _Holder(NamedTuple):
    path: str
    owner: Any
    read: Callable[[], dict]
    write: Callable[[dict], None] | None
    label: Callable[[Any], str]
    before: dict
    is_shared: bool
    """Whether a copy of the module has the very same: closures, classes and globals."""


class Snapshot:
    """All values reachable from an object, as they are now.

    Args:
      root: where the walk begins.
      name: of the root in paths.
    """

    def __init__(self, root: object, name: str = "self") -> None:
        self._holders: list[_Holder] = []
        self._seen: dict[Any, object] = {id(sys.modules): 0}  # which any import changes
        self._pending = collections.deque[tuple[Any, str, bool]]([(root, name, False)])
        self._is_shared = False
        self.tensors: list[torch.Tensor] = []
        """All that were met, parameters and buffers among them."""
        self.arrays: list[np.ndarray] = []
        self.asking_types: list[dict[str, Any]] = []
        """Globals of users' functions that call `type`."""
        self._caches: list[tuple[functools._lru_cache_wrapper, int, str]] = []
        while self._pending and len(self._seen) < _LIMIT:
            value, path, shared = self._pending.popleft()
            self._is_shared = shared or isinstance(value, (type, types.FunctionType))
            if isinstance(value, torch.Tensor):
                self.tensors.append(value)
                self._visit_tensor(value, path)
            elif not isinstance(value, _LEAVES) and id(value) not in self._seen:
                if isinstance(value, np.ndarray):
                    self.arrays.append(value)
                self._seen[id(value)] = value  # kept, so that no other object gets its id
                self._visit(value, path)

    def changes(self) -> list[Change]:
        """The values that differ now, new entries last."""
        changes: list[Change] = []
        for holder in self._holders:
            after = holder.read()
            for key, value in holder.before.items():
                now = after.get(key, MISSING)
                if now is MISSING or not same(value, now):
                    now = None if now is MISSING else now
                    changes.append(
                        Change(holder.label(key), value, now, holder.owner, key, is_new=False)
                    )
            for key in after.keys() - holder.before.keys():
                # `self.count += 1` reads a class attribute and writes one of the object.
                before = of_class(holder.owner, key)
                if before is MISSING or not same(before, after[key]):
                    is_new = before is MISSING
                    before = None if is_new else before
                    label = holder.label(key)
                    changes.append(Change(label, before, after[key], holder.owner, key, is_new))
            if isinstance(holder.owner, dict) and (both := orders(holder.before, after)):
                # A cache does that as well, so it counts as one of its entries.
                order = f"the order of {holder.path}"
                changes.append(Change(order, *both, holder.owner, "order", is_new=True))
        for cache, size, path in self._caches:
            if (now := cache.cache_info().currsize) > size:  # new entries in it may change
                changes.append(Change(f"the cache of {path}", size, now, cache, "", is_new=True))
        return sorted(changes, key=lambda change: change.is_new)

    def restore(self, *, shared: bool = False) -> None:
        """Restores the old state, where that is possible.

        Args:
          shared: also objects outside this one and its copies. Otherwise only tensors are taken out
            of there, and lists stay, which someone may look at.
        """
        for cache, size, _ in self._caches:
            if cache.cache_info().currsize != size:  # it may hold tensors of the trace
                cache.cache_clear()
        for holder in self._holders:
            if holder.write is None:
                continue
            now, before = holder.read(), holder.before
            changed = [k for k in now.keys() | before.keys() if now.get(k) is not before.get(k)]
            if holder.is_shared and not shared:
                kept = isinstance(holder.owner, (list, collections.deque))
                changed = [k for k in changed if has_tensor(now.get(k)) and not kept]
            if changed or (not holder.is_shared and orders(before, now)):
                holder.write(before)

    @contextmanager
    def as_it_was(self) -> Generator[None]:
        """In this block, objects that copies share have their old values, and then these again."""
        shared = [(h, h.write, h.read()) for h in self._holders if h.is_shared and h.write]
        # Other threads may look at the rest.
        shared = [(h, write, now) for h, write, now in shared if not same(h.before, now)]
        for holder, write, _ in shared:
            write(holder.before)
        try:
            yield
        finally:
            for _, write, content in shared:
                write(content)

    # ---- references between objects

    def _hold(
        self,
        path: str,
        owner: Any,
        read: Callable[[], dict],
        write: Callable[[dict], None] | None,
        label: Callable[[Any], str],
    ) -> None:
        before = read()
        self._holders.append(_Holder(path, owner, read, write, label, before, self._is_shared))
        for key, value in before.items():
            if not isinstance(value, PLAIN):
                self._reach((value, label(key)))

    def _reach(self, *parts: tuple[Any, str]) -> None:
        """Looks at these later."""
        self._pending.extend((value, path, self._is_shared) for value, path in parts)

    def _visit(self, value: Any, path: str) -> None:
        if isinstance(value, nn.Module):
            self._visit_module(value, path)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, path)
        elif isinstance(value, types.MethodType):
            self._reach(*[(value.__self__, path), (value.__func__, path)])
        elif isinstance(value, functools.partial):
            self._reach(*[(value.func, path), (value.args, path), (value.keywords, path)])
        elif isinstance(value, type):
            self._visit_class(value, path)
        elif isinstance(value, types.CellType):
            self._hold(path, value, lambda: cell_content(value), cell_writer(value), lambda _: path)
        elif isinstance(value, (tuple, frozenset)):
            self._reach(*[(part, f"{path}[{i}]") for i, part in enumerate(value)])
            self._visit_attributes(value, path)
        elif isinstance(value, (dict, list, set, collections.deque, *_WEAK)):
            self._visit_container(value, path)
        elif isinstance(value, np.ndarray) and value.dtype.hasobject and value.dtype.fields is None:
            self._visit_objects(value, path)
        elif isinstance(value, weakref.ReferenceType):
            self._reach((value(), path))
        elif isinstance(value, contextvars.ContextVar):

            def write_variable(before: dict) -> None:
                value.set(before.get("value"))

            self._hold(path, value, lambda: variable_content(value), write_variable, lambda _: path)
        elif (token := token_of(value)) is not None:
            self._hold(path, value, lambda: {"": token()}, token_writer(value), lambda _: path)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._caches.append((value, value.cache_info().currsize, path))
            self._reach((value.__wrapped__, path))
            self._reach(*[(part, f"{path}()") for part in cached_results(value)])
        elif isinstance(value, threading.local):
            self._visit_attributes(value, path)
        elif isinstance(value, types.ModuleType):
            pass  # of which the names in code are looked at
        elif type(value).__module__.startswith("jaxsr.interop._core."):
            pass  # of a running trace
        elif type(value).__module__.partition(".")[0] not in _OPAQUE:
            self._visit_attributes(value, path)

    def _visit_tensor(self, tensor: torch.Tensor, path: str) -> None:
        """Visits the attributes that code has set on a tensor."""
        if id(tensor) in self._seen:
            return
        self._seen[id(tensor)] = tensor

        def write(before: dict) -> None:
            for name in attributes_of(tensor).keys() - before.keys():
                delattr(tensor, name)
            vars(tensor).update(before)

        self._hold(path, tensor, lambda: attributes_of(tensor), write, lambda key: f"{path}.{key}")

    def _visit_objects(self, array: np.ndarray, path: str) -> None:
        """A NumPy array of objects."""

        def write(before: dict) -> None:
            for place, part in before.items():
                array[place] = part

        if array.size > _LONG:
            self._reach(*[(part, path) for part in array.flat])
            return
        self._hold(
            path, array, lambda: dict(np.ndenumerate(array)), write, lambda key: f"{path}[{key}]"
        )

    def _visit_module(self, module: nn.Module, path: str) -> None:
        attributes = vars(module)

        def read() -> dict:
            return {k: v for k, v in attributes.items() if k not in _REGISTERED}

        def write(before: dict) -> None:
            kept = {k: attributes[k] for k in _REGISTERED if k in attributes}
            attributes.clear()
            attributes.update({**kept, **before})

        self._hold(path, module, read, write, lambda key: f"{path}.{key}")
        children = module._modules

        def write_children(before: dict) -> None:
            children.clear()
            children.update(before)

        self._hold(
            path, children, lambda: dict(children), write_children, lambda key: f"{path}.{key}"
        )
        self._reach(
            *[
                (tensor, f"{path}.{name}")
                for table in (module._parameters, module._buffers)
                for name, tensor in table.items()
            ]
        )
        self._reach((type(module), type(module).__name__))

    def _visit_attributes(self, value: Any, path: str) -> None:
        """The attributes of any object, and its class."""
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):

            def write(before: dict) -> None:
                attributes.clear()
                attributes.update(before)

            self._hold(path, value, lambda: dict(attributes), write, lambda key: f"{path}.{key}")
        names = [n for kind in type(value).__mro__ for n in slots_of(kind)]
        if names:

            def read_slots() -> dict:
                return {n: getattr(value, n) for n in names if hasattr(value, n)}

            def write_slots(before: dict) -> None:
                for name, part in before.items():
                    object.__setattr__(value, name, part)

            self._hold(path, value, read_slots, write_slots, lambda key: f"{path}.{key}")
        self._reach((type(value), type(value).__name__))

    def _visit_container(self, value: Any, path: str) -> None:
        if len(value) > _LONG:
            self._hold(path, value, lambda: long_content(value), None, path.__add__)
        elif isinstance(value, (dict, *_WEAK)):

            def write_dict(before: dict) -> None:
                value.clear()
                value.update(before)

            self._hold(
                path, value, lambda: dict(value.items()), write_dict, lambda key: f"{path}[{key!r}]"
            )
            self._reach(*[(k, f"a key of {path}") for k in value if not isinstance(k, PLAIN)])
        elif isinstance(value, set):

            def write_set(before: dict) -> None:
                value.clear()
                value.update(before.values())

            self._hold(
                path, value, lambda: {set_key(v): v for v in value}, write_set, lambda _: path
            )
        else:

            def write_list(before: dict) -> None:
                value.clear()
                value.extend(before.values())

            self._hold(
                path,
                value,
                lambda: dict(enumerate(value)),
                write_list,
                lambda key: f"{path}[{key}]",
            )
        if type(value).__module__ not in ("builtins", "collections", "weakref"):
            self._visit_attributes(value, path)

    def _visit_function(self, function: types.FunctionType, path: str) -> None:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._reach(*[(cell, closure_name(name, cell, function)) for name, cell in cells.items()])
        defaults = f"a default argument of {function.__qualname__}"
        self._reach(*[(function.__defaults__, defaults), (function.__kwdefaults__, defaults)])
        attributes = function.__dict__

        def write(before: dict) -> None:
            attributes.clear()
            attributes.update(before)

        self._hold(
            path,
            function,
            lambda: dict(attributes),
            write,
            lambda key: f"{function.__qualname__}.{key}",
        )
        if is_users_file(function.__code__.co_filename):
            names = names_of(function.__code__)
            if "globals" in names:
                names |= function.__globals__.keys()
            if isinstance(function.__globals__.get("type", type), type):
                if "type" in names:
                    self.asking_types.append(function.__globals__)
                names -= {"type"}  # a trace's own
            self._visit_names(function.__globals__, names)
            modules = [cell_content(cell).get("value") for cell in cells.values()]
            modules += modules_named(names, function.__globals__.get("__package__"))
            for module in modules:
                if isinstance(module, types.ModuleType):
                    self._visit_names(vars(module), names)
            if names & {"environ", "getenv", "putenv"} and id(os.environ) not in self._seen:
                self._seen[id(os.environ)] = os.environ
                self._visit_environment()

    def _visit_environment(self) -> None:
        def write(before: dict) -> None:
            os.environ.clear()
            os.environ.update(before)

        self._is_shared = True
        self._hold(
            "os.environ",
            os.environ,
            lambda: dict(os.environ),
            write,
            lambda key: f"os.environ[{key!r}]",
        )

    def _visit_names(self, space: dict, names: frozenset[str]) -> None:
        """The globals of a file or module that code names, and of modules that it imports."""
        module, is_users = space.get("__name__", ""), is_users_file(space.get("__file__") or "")
        for name in sorted(names & space.keys()):
            value = space[name]
            if (id(space), name) in self._seen:
                continue
            self._seen[id(space), name] = space
            if isinstance(value, types.ModuleType):
                self._visit_names(vars(value), names)
                continue
            if not is_users and not isinstance(value, PLAIN):
                continue

            def read(name: str = name) -> dict:
                return {name: space[name]} if name in space else {}

            self._hold(module, space, read, space.update, lambda key: f"global {module}.{key}")

    def _visit_class(self, kind: type, path: str) -> None:
        del path
        for base in kind.__mro__:
            if base in (object, nn.Module) or (id(base) in self._seen and base is not kind):
                continue
            self._seen[id(base)] = base
            file = getattr(sys.modules.get(base.__module__), "__file__", None)
            if base.__module__ == "builtins" or not is_users_file(file or ""):
                continue

            def read(base: type = base) -> dict:
                return {k: v for k, v in vars(base).items() if is_attribute(k, v)}

            def write(before: dict, base: type = base, read: Callable = read) -> None:
                for name in read().keys() - before.keys():
                    delattr(base, name)
                for name, value in before.items():
                    if vars(base).get(name) is not value:
                        setattr(base, name, value)

            name = base.__qualname__
            self._hold(name, base, read, write, lambda key, name=name: f"{name}.{key}")
            for key, member in vars(base).items():
                functions = [*functions_in(member)]
                if not functions and hasattr(type(member), "__get__"):
                    functions = [member]  # a descriptor
                self._reach(*[(function, f"{name}.{key}") for function in functions])


def kept_change(state: Snapshot) -> Change | None:
    """The first change that the next call would see; new entries may be a cache."""
    for change in state.changes():
        if change.is_growth or not (change.is_new or change.holds_tensors):
            return change
    return None


def lengthen(changes: Iterable[Change]) -> None:
    """Makes the lists that have grown as long as after very many calls."""
    for change in changes:
        if change.is_growth:
            change.owner.extend([change.after] * _LONG)  # pyright: ignore[reportAttributeAccessIssue]
