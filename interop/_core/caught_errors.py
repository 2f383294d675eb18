"""Code that catches an error which a compiled program cannot raise: where its `try` can be seen."""

import ast
import functools
import linecache
import sys
import types
from typing import NamedTuple

from jaxsr.interop._core.stack_frames import is_outside_frameworks

_ENTRY = "jaxsr.interop._core.functionalize"
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
