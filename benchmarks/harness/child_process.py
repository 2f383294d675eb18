"""Rows of a benchmark computed in a process of its own, with bounds on time and memory.

A bound on processor time does not depend on what else the machine does.
"""

import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.report import Row
from jaxsr.errors import one_line


def row_of_child(
    compute: Callable[[], Row], *, processor_s: int, timeout_s: float, memory_gib: float
) -> Row:
    """What `compute` returns in a forked process that says nothing.

    Args:
      compute: gives the row, with `status` and `reason`; what it raises is a status `failed`.
      processor_s: processor time after which the process is killed, a status `timeout`.
      timeout_s: wall time after which it is, too.
      memory_gib: address space of the process.
    """

    def rows() -> Generator[Row]:
        yield compute()

    bounds: dict[str, Any] = {"processor_s": processor_s, "memory_gib": memory_gib}
    return next(rows_of_child(rows, timeout_s=timeout_s, **bounds))


def rows_of_child(
    compute: Callable[[], Iterable[Row]],
    *,
    timeout_s: float,
    processor_s: int | None = None,
    memory_gib: float | None = None,
    log: Path | None = None,
    start: Literal["fork", "spawn"] = "fork",
) -> Generator[Row]:
    """Rows of a child process as it computes them, and after them how it ended.

    The process leads a group, which is killed with all processes that it started.

    Args:
      compute: gives the rows.
      timeout_s: wall time after which the process is killed.
      processor_s: processor time of all its threads after which it is. Default: not bounded.
      memory_gib: address space of the process; None where it uses a GPU, which reserves terabytes.
      log: what the process prints. Default: nowhere.
      start: fork has what this process imported; spawn takes a `compute` that can be pickled, and
        may be used from threads.

    Yields:
      The rows; last one of `status` (`ok`, `failed`, `timeout`, `crashed`) and `reason`.
    """
    context = multiprocessing.get_context(start)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, compute, processor_s, memory_gib, log))
    process.start()
    sender.close()
    until = time.monotonic() + timeout_s
    try:
        while receiver.poll(max(until - time.monotonic(), 0.0)):
            is_last, row = receiver.recv()
            yield row
            if is_last:
                return
        yield {"status": "timeout", "reason": f"more than {timeout_s:.0f} s"}
    except EOFError:
        process.join(10)
        if process.exitcode == -signal.SIGXCPU:
            yield {"status": "timeout", "reason": f"more than {processor_s} s of processor time"}
            return
        reason = f"the process ended with {process.exitcode}"
        yield {"status": "crashed", "reason": f"{reason}{_last_line(log)}"}
    finally:
        _kill_group(process)


def _kill_group(process: BaseProcess) -> None:
    try:
        os.killpg(process.pid or 0, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its group yet, or all of it has ended
        process.kill()
    process.join()


def _last_line(log: Path | None) -> str:
    lines = log.read_text(errors="replace").split("\n") if log and log.exists() else []
    return next((f": {line.strip()[:200]}" for line in reversed(lines) if line.strip()), "")


def _child(
    sender: Connection,
    compute: Callable[[], Iterable[Row]],
    processor_s: int | None,
    memory_gib: float | None,
    log: Path | None,
) -> None:
    os.setpgid(0, 0)
    if processor_s is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the signal's default
        resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 10))
    if memory_gib is not None:
        size = int(memory_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    with open(log or os.devnull, "a") as output:  # of the libraries
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            for row in compute():
                sender.send((False, row))
            sender.send((True, {"status": "ok", "reason": ""}))
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {one_line(error)}"
            sender.send((True, {"status": "failed", "reason": reason}))
