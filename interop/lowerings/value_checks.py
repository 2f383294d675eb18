"""Checks of values, where torch raises and a compiled program cannot: of matrices, and assertions.

Code that catches the error decides by it. Such code is refused, where its `try` can be seen.
"""

import torch

from jaxsr.interop._core.caught_errors import try_around
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.errors import UnsupportedTorchError

_CATCHING = frozenset({"LinAlgError", "RuntimeError", "Exception", "BaseException", ""})


@handles(aten._linalg_check_errors.default)
def _check_matrix(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    (info, name), is_matrix = args, kwargs["is_matrix"]
    if info.const is not None:
        with plain_torch():
            func(info.const, name, is_matrix=is_matrix)
    elif place := try_around(_CATCHING):
        raise UnsupportedTorchError(
            f"{name} inside `try` at {place}: whether it raises depends on values, and a compiled "
            "program cannot; use the function whose name ends in _ex (cholesky_ex, inv_ex, "
            "solve_ex), and torch.where(info > 0, …)"
        )


@handles(aten._assert_async.default, aten._assert_async.msg)
def _assert(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    condition, *message = args
    if condition.const is not None:
        with plain_torch():
            func(condition.const, *message)
