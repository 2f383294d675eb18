"""Frames of the user's code, told from those of torch, JAX and this package, and its `try` blocks.

Code may catch an error which a compiled program cannot raise; `try_around` finds where.
"""

import ast
import functools
import linecache
import sys
import sysconfig
import types
from pathlib import Path
from typing import NamedTuple

import jax
import torch

_PACKAGES = (
    Path(__file__).parents[1],
    Path(torch.__file__).parent,
    Path(jax.__file__).parent,
    Path(torch.__file__).parents[1] / "torchax",
    Path(torch.__file__).parents[1] / "opt_einsum",
)
# As imported and without links: `jaxsr/interop` is a link in the repository.
_FRAMEWORKS = tuple(f"{p}/" for folder in _PACKAGES for p in (folder, folder.resolve()))
_STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"


def code_around() -> types.FrameType:
    """The frame of the code that called something of this package, which then called this."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("jaxsr."):
        frame = frame.f_back
    return frame


def users_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """This frame or the next outer one that is neither of torch, JAX nor this package."""
    while frame is not None and not is_outside_frameworks(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@functools.cache
def is_outside_frameworks(file: str) -> bool:
    """Whether code of this file is neither torch's, JAX's, this package's nor Python's own."""
    if file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file:
        return False
    return not file.startswith("<frozen") and not file.startswith(_FRAMEWORKS)


_ENTRY = "jaxsr.interop._core.functional_module"
"""Runs the module's code. Code outside of `apply` may catch its errors."""


class _Block(NamedTuple):
    """The body of a `try` or of a `with suppress(…)`."""

    first: int
    last: int
    errors: frozenset[str]
    """Names of the errors that are caught, without their modules; "" stands for everything."""
    line: int
    """Where the statement begins."""


def try_around(errors: frozenset[str]) -> str:
    """Finds code of the module that catches one of these errors around the running call.

    Args:
      errors: names without their modules; "" stands for a `try` that catches everything.

    Returns:
      Its file and line, as `file.py:12`; "" if the error is not caught.
    """
    frame: types.FrameType | None = sys._getframe(1)
    # Code that was given to `exec` with a dictionary of its own has no `__name__`.
    while frame is not None and frame.f_globals.get("__name__") != _ENTRY:
        file = frame.f_code.co_filename
        if is_outside_frameworks(file):
            for block in _blocks_of(file):
                if block.first <= frame.f_lineno <= block.last and block.errors & errors:
                    return f"{file}:{block.line}"
        frame = frame.f_back
    return ""


@functools.cache
def _blocks_of(file: str) -> list[_Block]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # not Python alone: a notebook's cell, say, has magic lines
        return []
    blocks = list[_Block]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers:
            errors = frozenset[str]().union(*(_names(h.type) for h in node.handlers))
        elif isinstance(node, ast.With):
            calls = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
            calls = [call for call in calls if _name(call.func) == "suppress"]
            errors = frozenset(_name(kind) for call in calls for kind in call.args)
        else:
            continue
        blocks.append(
            _Block(node.body[0].lineno, node.body[-1].end_lineno or 0, errors, node.lineno)
        )
    return blocks


def _names(kind: ast.expr | None) -> frozenset[str]:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return frozenset(_name(one) for one in kinds)


def _name(kind: ast.expr | None) -> str:
    return "" if kind is None else getattr(kind, "attr", getattr(kind, "id", "?"))
