"""Contenders of one piece of work on the image kernels."""

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.harness.turns import Timing, time_calls


@dataclass(frozen=True)
class Entry:
    """One library's way to do a row's work, and what its result says."""

    name: str
    """Those of jaxsr begin with its name."""
    call: Callable[[], Any]
    """Does the work and waits for it."""
    values: Callable[[Any], np.ndarray] = np.asarray
    """The result, in the layout of the row's first entry."""
    same: bool | None = None
    """Whether it does the same mathematics; None asks the values."""
    compiled: dict[str, Any] | None = None
    """Cost of compiling it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Work of one shape; the first entry is jaxsr's."""

    name: str
    entries: Callable[[], list[Entry]]
    tolerance: float
    """Largest difference of the same mathematics."""
    moved_bytes: int | None = None
    """Input and output once, where the work is a matter of bandwidth."""


QUEUED = 20
"""Calls on a GPU that wait for their results together: one alone is as short as its launch."""


@dataclass(frozen=True)
class OnDevice:
    """A call whose work goes on beside the host's, until it is waited for."""

    start: Callable[[], Any]
    wait: Callable[[Any], Any]

    def __call__(self) -> Any:
        """One call, waited for."""
        out = self.start()
        self.wait(out)
        return out

    def queued(self) -> None:
        """`QUEUED` calls, waited for together."""
        out = None
        for _ in range(QUEUED):
            out = self.start()
        self.wait(out)


def jit_entry(
    name: str, call: Callable[..., Any], *arrays: Any, values: Callable[[Any], np.ndarray]
) -> Entry:
    """A JAX function, compiled for these arrays and timed while at it."""
    import jax

    start = time.perf_counter()
    program = jax.jit(call).lower(*arrays).compile()
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    assert memory is not None
    facts = {"compile_s": round(seconds, 3), "temporary_mb": memory.temp_size_in_bytes / 1e6}
    work = OnDevice(lambda: program(*arrays), jax.block_until_ready)
    return Entry(name, work, values, compiled=facts)


def torch_device() -> str:
    """Where torch's contenders compute: beside JAX."""
    import jax
    import torch

    return "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"


def finished(call: Callable[[], Any]) -> OnDevice:
    """A torch contender that waits for its result."""
    import torch

    def wait(out: Any) -> None:
        if torch_device() == "cuda":
            torch.cuda.synchronize()

    return OnDevice(call, wait)


def importable(name: str) -> Any:
    """The module, or None with a message."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"left out: {name} is not installed", file=sys.stderr)
        return None


def _timings(entries: list[Entry], rounds: int) -> dict[str, Timing]:
    if torch_device() == "cpu":
        return time_calls({entry.name: entry.call for entry in entries}, rounds=rounds)
    calls = {e.name: e.call.queued for e in entries if isinstance(e.call, OnDevice)}
    timings = time_calls(calls, rounds=rounds)
    return {name: timing.of_one(QUEUED) for name, timing in timings.items()}


def measure(
    row: Row, rounds: int, bandwidth: float | None, *, leave_out: Sequence[str] = ()
) -> dict[str, Any]:
    """The figures of one row.

    Args:
      row: the work.
      rounds: turns of each contender.
      bandwidth: a plain copy's in GB/s, if known.
      leave_out: contenders whose names begin so.
    """
    entries = [e for e in row.entries() if not e.name.startswith(tuple(leave_out))]
    reference = entries[0].values(entries[0].call()).astype(np.float64)
    timings = _timings(entries, rounds)
    of_jaxsr = [timing for name, timing in timings.items() if name.startswith("jaxsr")]
    best = min(timing.median_ms for timing in of_jaxsr)
    best_cpu = min(timing.median_cpu_ms for timing in of_jaxsr)
    figures = []
    for entry in (entry for entry in entries if entry.name in timings):
        timing = timings[entry.name]
        difference = float(np.abs(entry.values(entry.call()).astype(np.float64) - reference).max())
        figures.append(
            {
                "name": entry.name,
                **asdict(timing),
                **(entry.compiled or {}),
                "largest_difference": difference,
                "same": difference <= row.tolerance if entry.same is None else entry.same,
                "jaxsr_is_faster": round(timing.median_ms / best, 3),
                "jaxsr_is_faster_by_cpu": round(timing.median_cpu_ms / best_cpu, 3),
            }
        )
    result: dict[str, Any] = {"name": row.name, "contenders": figures}
    if bandwidth and row.moved_bytes:
        result["gb_per_s"] = row.moved_bytes / best / 1e6
        result["fraction_of_copy_bandwidth"] = round(result["gb_per_s"] / bandwidth, 3)
    return result


def show(result: dict[str, Any]) -> None:
    """Prints a row."""
    print(f"\n{result['name']}")
    for figure in result["contenders"]:
        rule = "" if figure["same"] else "  another rule"
        compiled = f"  compile {figure['compile_s']:.2f} s" if "compile_s" in figure else ""
        print(
            f"  {figure['name']:34s}{figure['median_ms']:9.2f} ms"
            f" [{figure['quartiles_ms'][0]:.2f}, {figure['quartiles_ms'][1]:.2f}]"
            f" {figure['jaxsr_is_faster']:7.2f}x   cpu {figure['median_cpu_ms']:9.2f} ms"
            f" {figure['jaxsr_is_faster_by_cpu']:7.2f}x"
            f"   differs by {figure['largest_difference']:.1e}{rule}{compiled}",
            flush=True,
        )
    if "gb_per_s" in result:
        share = 100 * result["fraction_of_copy_bandwidth"]
        print(f"  {result['gb_per_s']:.0f} GB/s, {share:.0f} % of a plain copy's")
