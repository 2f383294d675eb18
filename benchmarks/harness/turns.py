"""Contenders side by side on one machine: they take turns, in a new order every round.

A slow period of the machine so affects all of them. A call waits for its own result. Where idle
threads or freed memory of one would disturb another, each has a process, stopped between its turns.
"""

import multiprocessing
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any, TypeVar

from jaxsr.errors import one_line
from jaxsr.runtime.allocator import with_tunables

ResultT = TypeVar("ResultT")
OptionsT = TypeVar("OptionsT")

Steps = Generator[dict[str, Any], bool, None]
"""A contender in its process: yields facts when it is ready and after each turn. It is sent True
for another turn, and yields once more after False."""


def take_turns(
    contenders: Mapping[str, Callable[[], ResultT]], *, rounds: int, warmup: int = 0
) -> dict[str, list[ResultT]]:
    """Calls every contender once a round; returns what each returned, round by round.

    Args:
      contenders: by name; a call does the work and waits for it.
      rounds: turns of each.
      warmup: calls of each before the first round.
    """
    for call in contenders.values():
        for _ in range(warmup):
            call()
    results: dict[str, list[ResultT]] = {name: [] for name in contenders}
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            results[name].append(contenders[name]())
    return results


@dataclass(frozen=True)
class Timing:
    """How long calls of one contender took."""

    median_ms: float
    quartiles_ms: tuple[float, float]
    least_ms: float
    least_cpu_ms: float
    """Least processor time of all threads, which other work disturbs less."""
    median_cpu_ms: float
    """Median of it: what a thread does after the call has returned falls into another turn, so that
    the least of many is that of a lucky one."""

    def of_one(self, calls: int) -> "Timing":
        """For one of so many calls that were timed together."""
        return Timing(
            median_ms=round(self.median_ms / calls, 5),
            quartiles_ms=(self.quartiles_ms[0] / calls, self.quartiles_ms[1] / calls),
            least_ms=round(self.least_ms / calls, 5),
            least_cpu_ms=round(self.least_cpu_ms / calls, 5),
            median_cpu_ms=round(self.median_cpu_ms / calls, 5),
        )


def time_calls(
    contenders: Mapping[str, Callable[[], Any]], *, rounds: int, warmup: int = 3, untimed: int = 0
) -> dict[str, Timing]:
    """Times contenders of this process that take turns.

    Args:
      contenders: by name.
      rounds: turns of each.
      warmup: calls of each before the first round.
      untimed: calls in each turn before the one that is timed. One for programs that run over and
        over: memory that XLA frees after a call comes back fast to the next, and slowly when
        another contender ran for seconds meanwhile.
    """

    def timed(call: Callable[[], Any]) -> tuple[float, float]:
        for _ in range(untimed):
            call()
        cpu, start = time.process_time(), time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - cpu)

    calls = {name: lambda call=call: timed(call) for name, call in contenders.items()}
    return {
        name: _summary(*zip(*pairs, strict=True))
        for name, pairs in take_turns(calls, rounds=rounds, warmup=warmup).items()
    }


def _summary(wall: tuple[float, ...], cpu: tuple[float, ...]) -> Timing:
    low, _, high = quantiles(wall, n=4)
    return Timing(
        median_ms=round(median(wall), 4),
        quartiles_ms=(round(low, 4), round(high, 4)),
        least_ms=round(min(wall), 4),
        least_cpu_ms=round(min(cpu), 4),
        median_cpu_ms=round(median(cpu), 4),
    )


def quiet_idle_threads() -> int:
    """Keeps torch's idle threads from spinning through the next contender's turn.

    Call it before torch is imported. Returns the threads every contender may use.
    """
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
    return len(os.sched_getaffinity(0))


class Worker:
    """A contender in a process of its own, stopped unless it is its turn.

    Args:
      steps: makes the contender, in its process, from the other arguments.
      arguments: can be pickled.
      keeps_memory: give it the allocator settings of jaxsr's commands.
      command: of jaxsr, whose settings these are.
      longest_start_s: until its first result; None waits without end.
      waits: for the first result; without, several start side by side, and `wait` follows.

    Raises:
      RuntimeError: it failed, or its start took longer.
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
        self.ready: dict[str, Any] = {}
        """What it yielded first."""
        context = multiprocessing.get_context("spawn")
        self._connection, childs_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(childs_end, steps, arguments), daemon=True
        )
        environment = dict(os.environ)
        if keeps_memory:
            os.environ |= with_tunables(environment, command=command)
        try:
            self._process.start()
        finally:
            if "GLIBC_TUNABLES" not in environment:
                os.environ.pop("GLIBC_TUNABLES", None)
            os.environ |= environment
        childs_end.close()
        self._began, self._longest_start_s = time.monotonic(), longest_start_s
        if waits:
            self.wait()

    def wait(self) -> None:
        """Until its first result, which is `ready` then.

        Raises:
          RuntimeError: it failed, or its start took too long.
        """
        longest_s = self._longest_start_s
        left_s = None if longest_s is None else self._began + longest_s - time.monotonic()
        if not self._connection.poll(None if left_s is None else max(left_s, 0.0)):
            self.kill()
            raise RuntimeError(f"its start takes more than {longest_s:.0f} s")
        self.ready = self._receive()

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    def _receive(self) -> dict[str, Any]:
        try:
            result = self._connection.recv()
            if isinstance(result, Exception):
                raise result
            return result
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"a contender ended with exit status {self._process.exitcode}"
            ) from None
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self._process.is_alive():
            os.kill(self.pid, number)

    def turn(self) -> dict[str, Any]:
        """Lets it run until its next result."""
        return self._send(True)

    def finish(self) -> dict[str, Any]:
        """Its last result, with `peak_host_mib`; the process ends."""
        result = self._send(False)
        self.kill()
        return result

    def _send(self, goes_on: bool) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        self._connection.send(goes_on)
        return self._receive()

    def kill(self) -> None:
        """Ends the process; a stopped one would stay for ever, with all its memory."""
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, steps: Callable[..., Steps], arguments: tuple[Any, ...]) -> None:
    try:
        contender = steps(*arguments)
        connection.send(next(contender))
        while connection.recv():
            connection.send(contender.send(True))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        connection.send(contender.send(False) | {"peak_host_mib": round(peak)})
    except Exception as error:
        traceback.print_exc()
        connection.send(RuntimeError(f"{type(error).__name__}: {one_line(error)}"[:400]))
