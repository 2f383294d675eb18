"""Code that catches an error which a compiled program cannot raise: where its `try` can be seen."""

import ast
import functools
import linecache
import sys
import types
from typing import NamedTuple

from jaxsr.interop._core.frames import is_outside_frameworks

_ENTRY = "jaxsr.interop._core.functionalize"
"""Runs the module's code. Code outside of `apply` may catch what it raises."""


class _Block(NamedTuple):
    first: int
    last: int
    names: frozenset[str]
    """What is caught, without the modules' names; "" stands for everything."""
    line: int


def try_around(names: frozenset[str]) -> str:
    """Where code of the module catches one of these errors around the running call; else ""."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"] != _ENTRY:
        file = frame.f_code.co_filename
        if is_outside_frameworks(file):
            for block in _caught(file):
                if block.first <= frame.f_lineno <= block.last and block.names & names:
                    return f"{file}:{block.line}"
        frame = frame.f_back
    return ""


@functools.cache
def _caught(file: str) -> list[_Block]:
    """The bodies of `try` and of `with suppress(…)` in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # no file of Python: a notebook's cell, say, has magic lines
        return []
    blocks = list[_Block]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers:
            names = frozenset[str]().union(*(_names(h.type) for h in node.handlers))
        elif isinstance(node, ast.With):
            calls = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
            calls = [call for call in calls if _name(call.func) == "suppress"]
            names = frozenset(_name(kind) for call in calls for kind in call.args)
        else:
            continue
        blocks.append(
            _Block(node.body[0].lineno, node.body[-1].end_lineno or 0, names, node.lineno)
        )
    return blocks


def _names(kind: ast.expr | None) -> frozenset[str]:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return frozenset(_name(one) for one in kinds)


def _name(kind: ast.expr | None) -> str:
    return "" if kind is None else getattr(kind, "attr", getattr(kind, "id", "?"))
