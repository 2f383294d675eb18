"""Python loops that a trace runs operation by operation: their line, named once.

A loop of 256 rounds is 256 copies of its body for XLA to compile, which takes minutes.
"""

import collections
import linecache
import sys
import types
import warnings

from torch import nn

from jaxsr.interop._core.stack_frames import is_outside_frameworks
from jaxsr.interop.errors import LongLoopWarning

_ROUNDS = 128
"""Rounds of a loop that are worth a word."""


class RepeatedCode:
    """Counts how often the same operation runs at the same line of code for the same submodule.

    A deep network, which runs one line for many submodules, is not a loop.
    """

    def __init__(self) -> None:
        self._counts = collections.Counter[tuple]()
        self._stacks: dict[tuple, list[types.FrameType]] = {}
        """The frames of one round, for the next to tell which frame goes on: that of the loop."""
        self._loops: dict[tuple, tuple[str, int]] = {}

    def note(self, func: object) -> None:
        """Looks at where an operation runs."""
        frame: types.FrameType | None = sys._getframe(1)
        place: types.FrameType | None = None
        module: nn.Module | None = None
        while frame is not None and (place is None or module is None):
            code = frame.f_code
            if place is None and is_outside_frameworks(code.co_filename):
                place = frame
            if module is None and code.co_varnames[:1] == ("self",):
                owner = frame.f_locals.get("self")
                module = owner if isinstance(owner, nn.Module) else None
            frame = frame.f_back
        if place is None:
            return
        key = (func, place.f_code, place.f_lineno, id(module))
        self._counts[key] += 1
        if self._counts[key] == _ROUNDS - 1:
            self._stacks[key] = _stack(place)
        elif self._counts[key] == _ROUNDS:
            before = self._stacks.pop(key)
            loop = next((f for f in _stack(place) if any(f is other for other in before)), place)
            self._loops[key] = loop.f_code.co_filename, loop.f_lineno

    def warn(self) -> None:
        """Names the loop with the most rounds, if one is long."""
        self._stacks.clear()
        if not self._loops:
            return
        key = max(self._loops, key=lambda key: self._counts[key])
        file, line = self._loops[key]
        warnings.warn(
            f"{file}:{line} `{linecache.getline(file, line).strip()}` runs in a loop of about "
            f"{self._counts[key]} rounds, traced and compiled one after another; "
            "torch._higher_order_ops.scan compiles its body once",
            LongLoopWarning,
            stacklevel=2,
        )


def _stack(frame: types.FrameType | None) -> list[types.FrameType]:
    """The frames from this one outwards whose code is of neither torch, JAX nor this package."""
    frames = list[types.FrameType]()
    while frame is not None:
        if is_outside_frameworks(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames
