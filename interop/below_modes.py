"""Operators below a `TorchDispatchMode`, as torch runs them without one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


def run_below(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """`func(*args, **kwargs)` inside `__torch_dispatch__`.

    There torch leaves lazy conjugates unresolved in the parts of an operator of complex numbers of:
    `linalg.pinv` of a (1, 4) matrix gives the conjugate of its result.
    """
    tensors = (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
    if not any(t.is_complex() for t in tensors):
        return func(*args, **kwargs)
    guard, keys = torch._C._SetExcludeDispatchKeyGuard, torch._C.DispatchKey
    with guard(keys.Conjugate, False), guard(keys.Negative, False):
        return func(*args, **kwargs)
