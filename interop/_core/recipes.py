"""Values that depend on no input and are not evaluated while tracing, should Python need one.

Two kinds are left to the compiled program: constants too large to be part of it, and whole-number
buffers that are not part of the state_dict, which describe the configuration. A recipe says how
torch computes such a value, so that `.item()`, `nonzero` or an index by a mask work on it and on
values computed from it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from jaxsr.interop._core.schema import schema_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.annotations import PyTree

LIMIT = 1 << 26
"""Elements of the largest value that is computed for Python."""

_EMPTY = tuple(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
_INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default)


class Recipe:
    """How torch computes one value, whatever is written afterwards."""

    def __init__(self, make: Callable[[], torch.Tensor | None]) -> None:
        self._make: Callable[[], torch.Tensor | None] | None = make
        self._value: torch.Tensor | None = None

    def value(self) -> torch.Tensor | None:
        """The value, computed once; None where a constant that it is made of has been written."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value

    def describe(self, tensor: JaxTensor) -> None:
        """Makes it the recipe of a tensor, until that is written."""
        tensor.recipe = (tensor.cell.version, self)


def recipe_of(tensor: JaxTensor) -> Recipe | None:
    """The recipe of its present value, where that depends on no input."""
    cell, version, const = tensor.cell, tensor.cell.version, tensor.const
    if const is not None:
        return Recipe(lambda: const if cell.version == version else None)
    return tensor.recipe[1] if tensor.recipe and tensor.recipe[0] == version else None


def known_value(tensor: JaxTensor) -> torch.Tensor | None:
    """The torch tensor behind it, where the value depends on no input."""
    recipe = recipe_of(tensor)
    return None if recipe is None else recipe.value()


def run_on_constants(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """Torch's result, with zeros for memory that torch leaves as it was."""
    result = func(*args, **kwargs)
    return result.zero_() if func.overloadpacket in _EMPTY else result


def record(
    func: torch._ops.OpOverload,
    args: tuple,
    kwargs: dict,
    result: PyTree,
    adopt: Callable[[torch.Tensor], JaxTensor],
) -> None:
    """Gives the results of an operator their recipes, where its arguments are known.

    Args:
      func: the operator.
      args: its arguments.
      kwargs: its keyword arguments.
      result: its return value.
      adopt: makes a constant of the trace of a plain torch tensor.
    """
    schema = schema_of(func)
    made = [t for t in pytree.tree_leaves(result) if isinstance(t, JaxTensor)]
    if schema.random or schema.mutated or all(t.const is not None for t in made):
        return
    args, kwargs = pytree.tree_map_only(torch.Tensor, adopt, (args, kwargs))
    recipes = {
        id(t): recipe_of(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, JaxTensor)
    }
    if any(recipe is None for recipe in recipes.values()):
        return
    args, kwargs = pytree.tree_map_only(JaxTensor, lambda t: recipes[id(t)], (args, kwargs))

    @functools.cache
    def computed() -> list[torch.Tensor | None]:
        known = pytree.tree_map_only(Recipe, Recipe.value, (args, kwargs))
        if any(recipe.value() is None for recipe in recipes.values() if recipe is not None):
            return [None] * len(made)
        if "device" in kwargs:
            known[1]["device"] = torch.device("cpu")
        tensors = pytree.tree_leaves(run_on_constants(func, *known))
        return [t for t in tensors if isinstance(t, torch.Tensor)]

    for index, tensor in enumerate(made):
        if recipe_of(tensor) is None and tensor.numel() <= LIMIT:
            Recipe(lambda index=index: computed()[index]).describe(tensor)


def places_for_masks(func: torch._ops.OpOverload, args: tuple, wrap: Callable) -> tuple:
    """Arguments of an indexing operator with the places of each known mask instead of the mask.

    Args:
      func: the operator; others keep their arguments.
      args: its arguments.
      wrap: makes a tensor of the trace of a torch tensor.
    """
    if func not in _INDEXED or (func is _INDEXED[1] and args[2].numel() == 1):
        return args
    indices: list[torch.Tensor | None] = []
    for index in args[1]:
        known = None
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            known = known_value(index)
        indices += [index] if known is None else map(wrap, known.nonzero().unbind(1))
    return (args[0], indices, *args[2:])
