"""A row of a benchmark computed in a process of its own, with bounds on time and memory."""

import multiprocessing
import os
import re
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarks._results import Row
from jaxsr.errors import one_line


def row_of_child(compute: Callable[[], Row], *, timeout_s: float, memory_gib: float) -> Row:
    """What `compute` returns in a forked process that says nothing.

    Args:
      compute: gives the row, with `status` and `reason`; what it raises is a status `failed`.
      timeout_s: after which the process is killed, a status `timeout`.
      memory_gib: address space of the process.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, compute, memory_gib))
    process.start()
    sender.close()
    try:
        if receiver.poll(timeout_s):
            return receiver.recv()
        return {"status": "timeout", "reason": f"more than {timeout_s} s"}
    except EOFError:
        process.join(10)
        return {"status": "crashed", "reason": f"the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _child(sender: Connection, compute: Callable[[], Row], memory_gib: float) -> None:
    size = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    with open(os.devnull, "w") as null:  # of the libraries
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
        try:
            row = compute()
        except Exception as error:
            row = {"status": "failed", "reason": f"{type(error).__name__}: {one_line(error)}"}
        sender.send(row)


def without_folders(text: str) -> str:
    """Messages name files; results say nothing of the machine's folders."""
    return re.sub(r"/\S*/(?:site-packages/|tmp\w+/(?=[\w.-]+/config\.json))", "", text)
