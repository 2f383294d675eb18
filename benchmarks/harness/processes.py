"""Work in processes of its own: rows with bounds on time and memory, contenders in turns.

A child computes a result each time it is asked. Where idle threads or freed memory of one contender
would disturb another, each has a process, stopped between its turns. A bound on processor time does
not depend on what else the machine does.
"""

import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.report import ReportOptions, Row
from benchmarks.harness.turns import take_turns
from jaxsr.errors import one_line
from jaxsr.runtime.allocator import with_tunables

Steps = Generator[dict[str, Any], bool, None]
"""A contender in its process: yields facts when it is ready and after each turn. It is sent True
for another turn, and yields once more after False."""


class Ended(RuntimeError):
    """A child has ended.

    Args:
      status: `ok`, `failed`, `timeout` or `crashed`.
      reason: one line; empty where it is `ok`.
      exit_status: of a process that ended by itself.
    """

    def __init__(self, status: str, reason: str, exit_status: int | None = None) -> None:
        super().__init__(reason or status)
        self.status, self.reason, self.exit_status = status, reason, exit_status


class Child:
    """A process that runs a generator, which yields a result each time it is sent something.

    Args:
      steps: makes the generator, in the process, from the other arguments.
      arguments: can be pickled where the process is spawned.
      start: fork has what this process imported; spawn may be used from threads.
      alone: it starts no processes, and is killed when this one ends. Otherwise it leads a group,
        which is killed with all processes that it started.
      processor_s: processor time of all its threads, after which it is killed.
      memory_gib: address space; None where it uses a GPU, which reserves terabytes.
      log: file for what it prints. Default: where this process prints.
    """

    def __init__(
        self,
        steps: Callable[..., Generator[Any, Any, None]],
        arguments: tuple[Any, ...] = (),
        *,
        start: Literal["fork", "spawn"] = "spawn",
        alone: bool = True,
        processor_s: int | None = None,
        memory_gib: float | None = None,
        log: Path | None = None,
    ) -> None:
        self._alone, self._processor_s, self._log = alone, processor_s, log
        context = multiprocessing.get_context(start)
        self._connection, childs_end = context.Pipe()
        arguments = (childs_end, steps, arguments, alone, processor_s, memory_gib, log)
        self._process = context.Process(target=_serve, args=arguments, daemon=alone)
        self._process.start()
        childs_end.close()

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    def send(self, value: Any) -> None:
        """Asks for the next result; the generator is sent the value."""
        self._connection.send(value)

    def receive(self, longest_s: float | None = None) -> Any:
        """The result that was asked for; the first comes by itself.

        Raises:
          Ended: there is none, or it takes longer; then the process is killed.
        """
        try:
            if not self._connection.poll(None if longest_s is None else max(longest_s, 0.0)):
                self.kill()
                raise Ended("timeout", f"more than {longest_s:.0f} s")
            end, result = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(10)
            code = self._process.exitcode
            if code == -signal.SIGXCPU:
                reason = f"more than {self._processor_s} s of processor time"
                raise Ended("timeout", reason, code) from None
            reason = f"the process ended with exit status {code}{_last_line(self._log)}"
            raise Ended("crashed", reason, code) from None
        if end:
            raise Ended(end, result)
        return result

    def kill(self) -> None:
        """Ends the process; a stopped one would stay for ever, with all its memory."""
        if not self._alone:
            with suppress(ProcessLookupError):  # it has no group yet, or all of it has ended
                os.killpg(self.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _last_line(log: Path | None) -> str:
    lines = log.read_text(errors="replace").split("\n") if log and log.exists() else []
    return next((f": {line.strip()[:200]}" for line in reversed(lines) if line.strip()), "")


def _serve(
    connection: Connection,
    steps: Callable[..., Generator[Any, Any, None]],
    arguments: tuple[Any, ...],
    alone: bool,
    processor_s: int | None,
    memory_gib: float | None,
    log: Path | None,
) -> None:
    if not alone:
        os.setpgid(0, 0)
    if processor_s is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the signal's default
        resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 10))
    if memory_gib is not None:
        size = int(memory_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    if log is not None:
        with log.open("a") as output:  # of the libraries
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
    try:
        generator = steps(*arguments)
        result = next(generator)
        while True:
            connection.send(("", result))
            result = generator.send(connection.recv())
    except StopIteration:
        connection.send(("ok", ""))
    except Exception as error:
        traceback.print_exc()
        connection.send(("failed", f"{type(error).__name__}: {one_line(error)}"[:400]))


@dataclass(frozen=True, kw_only=True)
class BoundedOptions(ReportOptions):
    """Options of a run over many cases, which goes on where the rows of `out` end."""

    rerun: tuple[str, ...] = ()
    """Statuses of rows in --out whose cases run once more, such as failed timeout."""
    processor_s: int = 300
    """Processor time of one case."""
    timeout_s: int = 3000
    """Wall time of one case."""
    memory_gib: int = 24
    """Address space of one case's process."""

    def row_of_child(self, compute: Callable[[], Row]) -> Row:
        """The row that `compute` returns, with `status` and `reason`, in a forked process.

        Where there is none, `status` and `reason` are those of `rows_of_child`.
        """
        bounds: dict[str, Any] = {"processor_s": self.processor_s, "memory_gib": self.memory_gib}
        return next(rows_of_child(lambda: [compute()], timeout_s=self.timeout_s, **bounds))


def rows_of_child(
    compute: Callable[[], Iterable[Row]],
    *,
    timeout_s: float,
    log: Path | None = None,
    start: Literal["fork", "spawn"] = "fork",
    **bounds: Any,
) -> Generator[Row]:
    """Rows of a child process as it computes them, and after them how it ended.

    Args:
      compute: gives the rows; can be pickled where the process is spawned.
      timeout_s: wall time after which the process is killed.
      log: file for what the process prints. Default: nowhere.
      start: fork or spawn.
      **bounds: `processor_s` and `memory_gib` of `Child`.

    Yields:
      The rows; last one of `status` (`ok`, `failed`, `timeout`, `crashed`) and `reason`.
    """
    log = log or Path(os.devnull)
    until = time.monotonic() + timeout_s
    child = Child(_each, (compute,), start=start, alone=False, log=log, **bounds)
    try:
        while True:
            yield child.receive(until - time.monotonic())
            child.send(None)
    except Ended as end:
        is_late = end.status == "timeout" and end.exit_status is None
        reason = f"more than {timeout_s:.0f} s" if is_late else end.reason
        yield {"status": end.status, "reason": reason}
    finally:
        child.kill()


def _each(compute: Callable[[], Iterable[Row]]) -> Generator[Row]:
    yield from compute()


class Worker(Child):
    """A contender in a process of its own, stopped unless it is its turn.

    Args:
      steps: makes the contender, in its process, from the other arguments.
      arguments: can be pickled.
      keeps_memory: give it the allocator settings of jaxsr's commands.
      command: of jaxsr, whose settings these are.
      longest_start_s: until its first result; None waits without end.
      waits: for the first result; without, several start side by side, and `wait` follows.

    Raises:
      Ended: it failed, or its start took longer.
    """

    def __init__(
        self,
        steps: Callable[..., Steps],
        arguments: tuple[Any, ...],
        *,
        keeps_memory: bool = True,
        command: str = "",
        longest_start_s: float | None = None,
        waits: bool = True,
    ) -> None:
        self._is_ready = False
        environment = dict(os.environ)
        if keeps_memory:
            os.environ |= with_tunables(environment, command=command)
        try:
            super().__init__(_contender, (steps, arguments))
        finally:
            if "GLIBC_TUNABLES" not in environment:
                os.environ.pop("GLIBC_TUNABLES", None)
            os.environ |= environment
        self._began, self._longest_start_s = time.monotonic(), longest_start_s
        if waits:
            self.wait()

    def wait(self) -> None:
        """Until its first result, which is `ready` then.

        Raises:
          Ended: it failed, or its start took too long.
        """
        if self._is_ready:
            return
        longest_s = self._longest_start_s
        left_s = None if longest_s is None else self._began + longest_s - time.monotonic()
        self.ready: dict[str, Any] = self._result(left_s)
        self._is_ready = True

    def _result(self, longest_s: float | None = None) -> dict[str, Any]:
        try:
            result = self.receive(longest_s)
        except Ended:
            self.kill()  # a stopped one would keep this process from ending
            raise
        self._signal(signal.SIGSTOP)
        return result

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self._process.is_alive():
            os.kill(self.pid, number)

    def turn(self, *, goes_on: bool = True) -> dict[str, Any]:
        """Lets it run until its next result."""
        self._signal(signal.SIGCONT)
        self.send(goes_on)
        return self._result()

    def finish(self) -> dict[str, Any]:
        """Its last result, with `peak_host_mib`; the process ends."""
        result = self.turn(goes_on=False)
        self.kill()
        return result


@dataclass(frozen=True)
class Raced:
    """Results of a worker's process: when it was ready, of each turn, and at the end."""

    ready: Row
    turns: list[Row]
    end: Row


def race_workers(
    starts: Mapping[str, Callable[[], Worker]], **options: Any
) -> tuple[dict[str, Raced], dict[str, str]]:
    """Workers in turns.

    Args:
      starts: start a worker each; those that do not wait for its first result start side by side.
      **options: of `take_turns`.

    Returns:
      What they yielded, and the errors of those that did not start.
    """
    workers: dict[str, Worker] = {}
    failures: dict[str, str] = {}
    try:
        for name, start in starts.items():
            try:
                workers[name] = start()
            except RuntimeError as error:
                failures[name] = str(error)
        for name, worker in workers.items():
            try:
                worker.wait()
            except RuntimeError as error:
                failures[name] = str(error)
        racing = {name: worker for name, worker in workers.items() if name not in failures}
        turns = take_turns({name: worker.turn for name, worker in racing.items()}, **options)
        return {n: Raced(w.ready, turns[n], w.finish()) for n, w in racing.items()}, failures
    finally:
        for worker in workers.values():
            worker.kill()


def _contender(steps: Callable[..., Steps], arguments: tuple[Any, ...]) -> Steps:
    contender = steps(*arguments)
    goes_on = yield next(contender)
    while goes_on:
        goes_on = yield contender.send(True)
    result = contender.send(False)
    yield result | {
        "peak_host_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    }
