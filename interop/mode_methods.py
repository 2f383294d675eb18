"""torch's two modes, each with one method to override that takes plain arguments.

`run_below` runs an operator inside `__torch_dispatch__` as torch runs it without a mode.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Options = dict[str, Any]


class FunctionMode(TorchFunctionMode):
    """Hands every torch function that Python code calls to `call`."""

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        """Runs it, without the mode; `kwargs` may be changed."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Callable, types: Sequence, args: tuple = (), kwargs: Options | None = None
    ) -> Any:
        return self.call(func, args, dict(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Hands every aten operator to `call`."""

    def call(self, func: Any, args: tuple, kwargs: Options) -> Any:
        """Runs it, without the mode; `kwargs` may be changed."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Sequence, args: tuple = (), kwargs: Options | None = None
    ) -> Any:
        return self.call(func, args, dict(kwargs or {}))


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
