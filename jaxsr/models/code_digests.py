"""Digests of the user's code, by which results, runs and programs of other code are told apart."""

import ast
import collections
import functools
import logging
import sys
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from jaxsr.interop.python_code import functions_in, is_users_file
from jaxsr.interop.sealed_json import short_digest
from jaxsr.models.described_values import Describer

log = logging.getLogger(__name__)


def code_digests(task: object = None) -> dict[str, str]:
    """Returns digests of the user's code by name: imported modules, and what a notebook defines.

    A module whose file was edited after the import has another digest, with its code in memory, and
    a warning.

    Args:
      task: class or function that is trained. If a notebook's cell defines it, its code counts, and
        the cells' functions, classes and values that it names.
    """
    digests = {}
    of_main = getattr(task, "__module__", None) == "__main__"
    if of_main and not hasattr(sys.modules["__main__"], "__file__"):
        text = "\n".join(Describer(unknown="alike").code([task]))
        digests["__main__"] = short_digest(text.encode("utf-8", "backslashreplace"))
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and is_users_file(file) and Path(file).is_file():
            source = Path(file).read_bytes()
            if others := _not_of(source, module, file):
                log.warning(
                    "%s of %s in memory is not the file's, which may have been edited since the "
                    "import, and is used; restart Python, or reload the module, to use the file's",
                    min(others), file,
                )  # fmt: skip
                source += repr(sorted(others.items())).encode("utf-8", "backslashreplace")
            digests[name] = short_digest(source)
    return digests


def _not_of(source: bytes, module: types.ModuleType, file: str) -> dict[str, str]:
    """Functions and constants of a loaded module that its source does not have, by name."""
    # Other loaders change the code that they load, as pytest's does.
    if type(getattr(module, "__loader__", None)) is not SourceFileLoader:
        return {}
    try:
        with warnings.catch_warnings(action="ignore"):  # of the code, which the import gave
            tree = ast.parse(source)
            code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"code": type(error).__name__}
    forms = {*map(_form, _codes_in(code))}
    holders = (type, types.FunctionType, functools._lru_cache_wrapper)
    values = [value for value in [*vars(module).values()] if isinstance(value, holders)]
    defined = [value for value in values if value.__module__ == module.__name__]
    kinds = [kind for kind in defined if isinstance(kind, type)]
    members = [member for kind in kinds for member in vars(kind).values()]
    loaded = [f.__code__ for member in [*defined, *members] for f in _functions_in(member)]
    loaded = [c for c in loaded if c.co_filename == file]
    others = {c.co_qualname: repr(_form(c)) for c in loaded if _form(c) not in forms}
    stored = {  # as attributes, by code that counts in a class
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for owner, node in [(module, tree), *((k, classes.get(k.__qualname__)) for k in kinds)]:
        for name, value in _constants(node).items() if node else ():
            now = vars(owner).get(name, value)
            if name not in stored and type(now) is type(value) and now != value:
                others[name] = repr(now)
    return others


def _functions_in(member: Any) -> Iterator[types.FunctionType]:
    """Also those that a decorator wraps."""
    for function in functions_in(member):
        yield from _functions_in(getattr(function, "__wrapped__", None))
        yield function
    if isinstance(member, functools._lru_cache_wrapper):
        yield from _functions_in(member.__wrapped__)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _codes_in(part)


def _form(code: types.CodeType) -> tuple:
    """The code without its lines, with equal text in every process."""
    constants = map(_constant, code.co_consts)
    return code.co_qualname, code.co_code, code.co_names, code.co_varnames, *constants


def _constant(value: object) -> object:
    if isinstance(value, types.CodeType):
        return _form(value)
    # The order of a set depends on the process.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _constants(scope: ast.Module | ast.ClassDef) -> dict[str, object]:
    """Numbers and texts that a module or class assigns, once in all of it."""
    stored = collections.Counter(
        name
        for node in ast.walk(scope)
        for name in ([node.id] if isinstance(node, ast.Name) else getattr(node, "names", []))
        if isinstance(node, ast.Global) or isinstance(getattr(node, "ctx", None), ast.Store)
    )
    return {
        target.id: node.value.value
        for node in scope.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and stored[target.id] == 1
    }
