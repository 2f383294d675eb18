"""One way of timing for every benchmark that puts contenders side by side.

Contenders take turns, in a new order every round, so that a slow spell of the machine falls on all
of them; a call has to wait for its own result. Each is warmed up first. Reported are the median and
the quartiles of the wall time, and the least processor time of all threads together, which other
work on the machine disturbs less.
"""

import importlib.metadata
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

PACKAGES = (
    "jax",
    "jaxlib",
    "libtpu",
    "torch",
    "opencv-python-headless",
    "pillow",
    "kornia",
    "dm_pix",
    "scipy",
    "scikit-image",
    "numpy",
)


@dataclass(frozen=True)
class Contender:
    """One library's way to do the work of a row."""

    name: str
    call: Callable[[], Any]
    """Does the work and waits for it."""


@dataclass(frozen=True)
class Timing:
    """What one contender took."""

    median_ms: float
    quartiles_ms: tuple[float, float]
    least_ms: float
    least_cpu_ms: float


def take_turns(contenders: Sequence[Contender], *, rounds: int, warmup: int = 3) -> list[Timing]:
    """Times every contender once a round."""
    for contender in contenders:
        for _ in range(warmup):
            contender.call()
    wall: list[list[float]] = [[] for _ in contenders]
    cpu: list[list[float]] = [[] for _ in contenders]
    order = list(range(len(contenders)))
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for i in order:
            before = time.process_time()
            start = time.perf_counter()
            contenders[i].call()
            wall[i].append(1e3 * (time.perf_counter() - start))
            cpu[i].append(1e3 * (time.process_time() - before))
    return [_summary(w, c) for w, c in zip(wall, cpu, strict=True)]


def _summary(wall: list[float], cpu: list[float]) -> Timing:
    low, _, high = quantiles(wall, n=4)
    return Timing(
        median_ms=round(median(wall), 4),
        quartiles_ms=(round(low, 4), round(high, 4)),
        least_ms=round(min(wall), 4),
        least_cpu_ms=round(min(cpu), 4),
    )


def quiet_idle_threads() -> int:
    """Keeps torch's idle threads from spinning through the next contender's turn.

    Call it before torch is imported. Returns the threads every contender may use.
    """
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
    return len(os.sched_getaffinity(0))


def surroundings() -> dict[str, Any]:
    """Commit, versions, machine and its load: what a figure means nothing without."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "commit": commit,
        "versions": versions,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "load_average": os.getloadavg(),
    }
