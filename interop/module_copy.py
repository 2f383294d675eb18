"""Copies modules, also those that torch refuses to copy."""

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

Module = TypeVar("Module", bound=nn.Module)


def copy_module(module: Module, memo: dict[int, object] | None = None) -> Module:
    """A deep copy of a module.

    torch refuses to copy a tensor with a graph behind it, such as `torch.nn.utils.weight_norm`
    keeps in an attribute; its value is copied, which the module's hook computes anew.

    Args:
      module: what to copy.
      memo: copies made already, by `id`, as for `copy.deepcopy`.

    Example:
      >>> layer = torch.nn.utils.weight_norm(nn.Conv1d(1, 2, 3))
      >>> copy_module(layer)(torch.ones(1, 1, 3)).shape
      torch.Size([1, 2, 1])
    """
    memo = {} if memo is None else memo
    for sub in module.modules():
        for value in pytree.tree_leaves([v for k, v in vars(sub).items() if k != "_modules"]):
            if isinstance(value, torch.Tensor) and id(value) not in memo and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)
