"""OpenCV, where it is installed: for kernels that programs for CPUs call."""

import collections
import functools
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

LARGE_PICTURE = 1 << 16
"""Pixels from which on most functions of OpenCV share an image out among its threads."""
_FEW_PICTURES = 2
"""For each thread."""
_LEAST_SHARED_S = 1e-3
"""Work that is worth waking another thread for."""
_LEAST_CALL_S = 2e-5
"""Shorter calls wait for each other in Python more than they run side by side."""


@functools.cache
def opencv() -> Any:
    """The module, or None where it cannot be imported."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def opencv_version() -> tuple[int, ...] | None:
    """Version of the module; None where it cannot be imported."""
    cv2 = opencv()
    return None if cv2 is None else version_of(cv2.__version__)


def has_ipp() -> bool:
    """Whether OpenCV leaves functions to Intel's library, as its wheels for x86-64 do."""
    cv2 = opencv()
    return cv2 is not None and bool(cv2.ipp.useIPP())


@functools.cache
def opencv_border(border: str) -> int:
    """OpenCV's number of a border."""
    names = {
        "constant": "CONSTANT",
        "edge": "REPLICATE",
        "reflect101": "REFLECT_101",
        "symmetric": "REFLECT",
        "wrap": "WRAP",
    }
    return getattr(opencv(), f"BORDER_{names[border]}")


def version_of(version: str) -> tuple[int, ...]:
    """Numbers for a program's attributes, so that another library never serves a kept one."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def shares_out(pixels: int, pictures: int) -> bool:
    """Whether OpenCV's threads should share each image: it is large, and they are few.

    Many small images are faster one per thread.
    """
    return pixels > LARGE_PICTURE and pictures <= _FEW_PICTURES * _thread_count()


def for_each_row(function: Callable[[int], None], rows: int, *, large: bool = False) -> None:
    """Calls `function` with each row, in several threads where that is faster.

    The first row tells the cost of the others.

    Args:
      function: of a row; that of another library lets other threads run.
      rows: how many.
      large: whether the library shares each row out among its threads by itself.
    """
    start = time.perf_counter()  # the thread's own clock takes 2 µs
    for row in range(min(rows, 1)):
        function(row)
    call_s = time.perf_counter() - start
    is_long = call_s > _LEAST_CALL_S and call_s * (rows - 1) > _LEAST_SHARED_S
    # Each thread takes the next row: one that wakes late would finish its half late.
    remaining = collections.deque(range(1, rows))

    def run() -> None:
        while (row := _popped(remaining)) is not None:
            function(row)

    count = 0 if large or not is_long else min(_thread_count(), rows - 1) - 1
    others = [_threads().submit(run) for _ in range(count)]
    try:
        run()
    finally:
        started = [each for each in others if not each.cancel()]
        wait(started)
    for each in started:
        each.result()


def _popped(rows: collections.deque[int]) -> int | None:
    """The first, in one thread alone; None where none is left."""
    try:
        return rows.popleft()
    except IndexError:
        return None


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_thread_count(), thread_name_prefix="jaxsr-ops")


def _thread_count() -> int:
    cv2 = opencv()
    return (os.cpu_count() or 1) if cv2 is None else cv2.getNumThreads()
