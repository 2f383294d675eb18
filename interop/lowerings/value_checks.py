"""Checks of values, where torch raises and a compiled program cannot: of matrices, and assertions.

Code that catches the error decides by it. Such code is refused, where its `try` can be seen.
"""

import ast
import functools
import linecache
import sys
import types

import torch

from jaxsr.interop._core import functionalize
from jaxsr.interop._core.frames import is_outside_frameworks
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.errors import UnsupportedTorchError

_CATCHING = {"LinAlgError", "RuntimeError", "Exception", "BaseException", ""}


@handles(aten._linalg_check_errors.default)
def _check_matrix(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    (info, name), is_matrix = args, kwargs["is_matrix"]
    if info.const is not None:
        with plain_torch():
            func(info.const, name, is_matrix=is_matrix)
    elif place := _try_around():
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


def _try_around() -> str:
    """Where code of the module catches the error of a matrix around the running call; else ""."""
    frame: types.FrameType | None = sys._getframe(1)
    # Code outside of `apply`, which ends here, may catch what it raises.
    while frame is not None and frame.f_globals["__name__"] != functionalize.__name__:
        file = frame.f_code.co_filename
        if is_outside_frameworks(file):
            for first, last, names in _caught(file):
                if first <= frame.f_lineno <= last and names & _CATCHING:
                    return f"{file}:{first - 1}"
        frame = frame.f_back
    return ""


@functools.cache
def _caught(file: str) -> list[tuple[int, int, set[str]]]:
    """First and last line of the bodies of `try` in a file, and the names of what they catch."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # no file of Python: a notebook's cell, say, has magic lines
        return []
    return [
        (node.body[0].lineno, node.body[-1].end_lineno or 0, _names(node.handlers))
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
    ]


def _names(handlers: list[ast.ExceptHandler]) -> set[str]:
    """What the handlers catch, without the modules' names; "" stands for everything."""
    names = set[str]()
    for handler in handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            name = "" if kind is None else getattr(kind, "attr", getattr(kind, "id", "?"))
            names.add(name)
    return names
