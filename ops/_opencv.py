"""OpenCV, where it is installed: for kernels that programs for CPUs call."""

import functools
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_LEAST_SHARED_BYTES = 1 << 18
"""Results that are worth waking another thread for."""


@functools.cache
def opencv() -> Any:
    """The module, or None where it cannot be imported."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def opencv_version() -> tuple[int, ...] | None:
    """Of the module; None where it cannot be imported."""
    cv2 = opencv()
    return None if cv2 is None else version_of(cv2.__version__)


def version_of(version: str) -> tuple[int, ...]:
    """Numbers for a program's attributes, so that another library never serves a kept one."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def for_each_row(function: Callable[[int], None], rows: int, *, nbytes: int, large: bool) -> None:
    """Calls `function` with each row, in several threads where that is faster.

    Args:
      function: of a row; that of another library lets other threads run.
      rows: how many.
      nbytes: of all results.
      large: whether the library shares each row out among its threads by itself.
    """
    parts = min(1 if large or nbytes < _LEAST_SHARED_BYTES else _thread_count(), rows)

    def run(share: range) -> None:
        for row in share:
            function(row)

    shares = [range(rows)[i::parts] for i in range(parts)]
    waiting = [_threads().submit(run, share) for share in shares[1:]]
    run(shares[0])
    for each in waiting:
        each.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_thread_count(), thread_name_prefix="jaxsr-ops")


def _thread_count() -> int:
    cv2 = opencv()
    return (os.cpu_count() or 1) if cv2 is None else cv2.getNumThreads()
