"""Contenders side by side on one machine: they take turns, in a new order every round.

A slow period of the machine so affects all of them. A call waits for its own result.
"""

import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, TypeVar

from benchmarks.harness.report import Report, Row

ResultT = TypeVar("ResultT")


def take_turns(
    contenders: Mapping[str, Callable[[], ResultT]],
    *,
    rounds: int,
    warmup: int = 0,
    longest_s: float = math.inf,
) -> dict[str, list[ResultT]]:
    """Calls every contender once a round; returns what each returned, round by round.

    Args:
      contenders: by name; a call does the work and waits for it.
      rounds: turns of each.
      warmup: calls of each before the first round.
      longest_s: no round is begun after so much time.
    """
    for call in contenders.values():
        for _ in range(warmup):
            call()
    results: dict[str, list[ResultT]] = {name: [] for name in contenders}
    order = list(contenders)
    shuffle, start = random.Random(0).shuffle, time.perf_counter()
    for number in range(rounds):
        if number and time.perf_counter() - start > longest_s:
            break
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


def race(
    report: Report, facts: Row, contenders: Mapping[str, Callable[[], Any]], **options: int
) -> None:
    """Times contenders, prints their medians, and adds them to a report as one row.

    Args:
      report: of the benchmark.
      facts: what else the row says.
      contenders: by name; those of torch begin with `torch`, and one is `jaxsr`.
      **options: of `time_calls`.
    """
    times = time_calls(contenders, **options)
    best = min(time.median_ms for name, time in times.items() if name.startswith("torch"))
    ratio = round(best / times["jaxsr"].median_ms, 3)
    row = facts | {name: asdict(time) for name, time in times.items()}
    report.add(row | {"ratio_to_best_torch": ratio})
    medians = (f"{name} {time.median_ms:8.2f} ms" for name, time in times.items())
    print(*facts.values(), *medians, f"jaxsr {ratio:.2f} x torch", flush=True)


def quiet_idle_threads() -> int:
    """Keeps torch's idle threads from spinning through the next contender's turn.

    Call it before torch is imported. Returns the threads every contender may use.
    """
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
    return len(os.sched_getaffinity(0))
