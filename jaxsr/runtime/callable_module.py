"""Modules of commands that can be called: `jaxsr.restore` is a module, and the function in it."""

import sys
import types
from collections.abc import Callable
from typing import Any


def make_callable(module: str, function: Callable[..., Any]) -> None:
    """Lets an imported module be called as this function."""
    members = {"__call__": staticmethod(function)}
    sys.modules[module].__class__ = type("CallableModule", (types.ModuleType,), members)
