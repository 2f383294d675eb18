"""Containers of torch code as JAX pytrees: a class with tensors goes through `jit` with its type.

JAX knows tuples, lists, dictionaries and namedtuples. A class of torch's pytree registry becomes a
JAX node with torch's own way of taking it apart. Any other object that holds tensors (dataclasses,
caches, dictionaries of a library) is taken apart as `copy.copy` does, by `__reduce_ex__`.
"""

import copy
import enum
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch
from jax.tree_util import default_registry
from torch import nn
from torch.utils import _pytree as torch_pytree

from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError

_INDIVISIBLE = (
    bool, int, float, complex, str, bytes, type, enum.Enum, np.dtype, np.ndarray, np.generic,
    torch.Tensor, torch.dtype, torch.device, jax.Array, nn.Module,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip
"""Types that are never taken apart."""


class _Static:
    """The part of a container that JAX does not trace: two are equal if all their values are."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, _Static) and bool(self.values == other.values)
        except Exception:  # a value whose comparison has no truth value
            return False

    def __hash__(self) -> int:
        # Contexts are often lists: those with equal hashes are compared.
        return hash(len(self.values))


def _is_array(value: object) -> bool:
    """Whether JAX may trace it, or has put it in the place of an array (`object()`, shardings)."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) or type(value) is object:
        return True
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def _register(cls: type, flatten: Callable, unflatten: Callable) -> None:
    if not default_registry.is_node(cls):
        jax.tree_util.register_pytree_node(cls, flatten, unflatten)


def _register_torch_node(cls: type, node: torch_pytree.NodeDef) -> None:
    def flatten(value: PyTree) -> tuple[list[PyTree], _Static]:
        children, context = node.flatten_fn(value)
        return list(children), _Static(context)

    def unflatten(static: _Static, children: Iterable[PyTree]) -> PyTree:
        return node.unflatten_fn(list(children), static.values[0])

    _register(cls, flatten, unflatten)


def register_torch_nodes() -> None:
    """Makes every class of torch's pytree registry a JAX node, so that `jit` takes it as input."""
    for cls, node in list(torch_pytree.SUPPORTED_NODES.items()):
        if isinstance(cls, type):
            _register_torch_node(cls, node)


def _take_apart(value: PyTree) -> tuple[list[PyTree], _Static]:
    make, *parts = value.__reduce_ex__(4)
    arguments, state, items, pairs, *_ = [*parts, None, None, None]
    tree = (arguments, state, items and list(items), pairs and list(pairs))
    for part in jax.tree.leaves(tree):
        register(part)
    leaves, structure = jax.tree.flatten(tree)
    traced = tuple(_is_array(leaf) for leaf in leaves)
    static = tuple(None if _is_array(leaf) else leaf for leaf in leaves)
    children = [leaf for leaf in leaves if _is_array(leaf)]
    return children, _Static(make, structure, traced, static)


def _put_together(static: _Static, children: Iterable[PyTree]) -> PyTree:
    make, structure, traced, leaves = static.values
    remaining = iter(children)
    filled = [next(remaining) if t else leaf for leaf, t in zip(leaves, traced, strict=True)]
    arguments, state, items, pairs = jax.tree.unflatten(structure, filled)
    # As `copy.copy` does with these parts.
    value = make(*arguments)
    if state is not None:
        if hasattr(value, "__setstate__"):
            value.__setstate__(state)
        else:
            attributes, slots = state if isinstance(state, tuple) else (state, None)
            value.__dict__.update(attributes or {})
            for name, slot in (slots or {}).items():
                object.__setattr__(value, name, slot)
    for item in items or ():
        value.append(item)
    for key, item in pairs or ():
        value[key] = item
    return value


def _holds_arrays(value: object, path: frozenset[int] = frozenset()) -> bool:
    if _is_array(value):
        return True
    if id(value) in path or isinstance(value, _INDIVISIBLE):
        return False
    path |= {id(value)}
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        parts = value.values() if isinstance(value, dict) else value
        if any(_holds_arrays(v, path) for v in parts):
            return True
    return any(_holds_arrays(v, path) for v in _attributes(value))


def _attributes(value: object) -> list[object]:
    names = [n for cls in type(value).__mro__ for n in _slots_of(cls) if hasattr(value, n)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, n) for n in names)]


def _slots_of(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def register(value: PyTree) -> bool:
    """Makes the class of a container a JAX node if it holds arrays or tensors.

    Returns:
      Whether `value` is a container that JAX takes apart.

    Raises:
      UnsupportedTorchError: it holds tensors and Python cannot take it apart.
    """
    cls = type(value)
    if default_registry.is_node(cls) or torch_pytree.is_namedtuple_class(cls):
        return True
    if isinstance(value, _INDIVISIBLE) or _is_array(value) or value is None:
        return False
    node = torch_pytree.SUPPORTED_NODES.get(cls)
    if node is not None:
        _register_torch_node(cls, node)
        return True
    if not _holds_arrays(value):
        return False
    try:
        _take_apart(value)
    except (TypeError, RecursionError) as e:
        raise UnsupportedTorchError(
            f"a {cls.__name__} holds tensors and cannot be taken apart ({e}); use a tuple, a "
            "dictionary or a dataclass, or torch.utils._pytree.register_pytree_node"
        ) from e
    _register(cls, _take_apart, _put_together)
    return True


def map_leaves(function: Callable[[Any], Any], value: PyTree) -> PyTree:
    """`value` with `function` of every leaf; containers keep their types and their order."""
    if type(value) is dict:
        return {k: map_leaves(function, v) for k, v in value.items()}
    if not register(value):
        return function(value)
    structure = jax.tree.structure(value, is_leaf=lambda x: x is not value)
    children = jax.tree.leaves(value, is_leaf=lambda x: x is not value)
    return jax.tree.unflatten(structure, [map_leaves(function, child) for child in children])


def private_copy(value: Any) -> Any:
    """A copy of an object that torch code may change, as an empty cache; else the same object."""
    if value is None or isinstance(value, _INDIVISIBLE) or not hasattr(value, "__dict__"):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # objects that cannot be copied are passed through
        return value
