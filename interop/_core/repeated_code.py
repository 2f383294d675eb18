"""Python loops that a trace runs operation by operation: their line, said once.

A loop of 256 rounds is 256 copies of its body for XLA to compile, which takes minutes.
"""

import collections
import linecache
import sys
import types
import warnings

from torch import nn

_FIRST = 200
"""Operations after which a trace is long enough to look at."""
_ROUNDS = 128
"""Rounds of a loop that are worth a word."""
_DEPTH = 60
"""Frames that are looked at."""


class LongLoopWarning(UserWarning):
    """A Python loop has many rounds, of which each is traced and compiled."""


class RepeatedCode:
    """Counts how often the same operation runs at the same place, of a frame and a submodule."""

    def __init__(self) -> None:
        self._operations = 0
        self._counts = collections.Counter[tuple]()
        self._places: dict[tuple, tuple[str, int]] = {}

    def note(self, func: object) -> None:
        """Looks at where an operation runs."""
        self._operations += 1
        if self._operations < _FIRST:
            return
        from jaxsr.interop._core.located_errors import is_users_file

        frame: types.FrameType | None = sys._getframe(1)
        inner: tuple | None = None
        for _ in range(_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            if is_users_file(code.co_filename):
                if inner is None:
                    owner = frame.f_locals.get("self")
                    module = id(owner) if isinstance(owner, nn.Module) else 0
                    inner = (func, code, frame.f_lineno, module)
                key = (id(frame), frame.f_lineno, *inner)
                self._counts[key] += 1
                self._places[key] = (code.co_filename, frame.f_lineno)
            frame = frame.f_back

    def warn(self) -> None:
        """Names the loop with the most rounds, if it is long."""
        if not self._counts:
            return
        key, rounds = self._counts.most_common(1)[0]
        if rounds >= _ROUNDS:
            file, line = self._places[key]
            warnings.warn(
                f"{file}:{line} `{linecache.getline(file, line).strip()}` runs in a loop of about "
                f"{rounds} rounds, traced and compiled one after another; "
                "torch._higher_order_ops.scan compiles its body once",
                LongLoopWarning,
                stacklevel=2,
            )
