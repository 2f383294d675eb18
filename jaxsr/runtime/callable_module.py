"""Makes commands' modules callable: `jaxsr.restore` is a module, and the function in it."""

import sys
import types
from collections.abc import Callable
from typing import Any


def make_callable(module: str, function: Callable[..., Any]) -> None:
    """Makes an imported module callable as this function."""
    members = {"__call__": staticmethod(function)}
    sys.modules[module].__class__ = type("CallableModule", (types.ModuleType,), members)
