"""Where a GPU's time goes: the kernels of some calls, as JAX's or torch's profiler has them."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.report import Row

_LISTED = 40
"""Kernels that a table lists, those with the most time first."""
_NAME = 120
"""Characters of a kernel's name."""


def kernel_times(framework: Literal["jax", "torch"], run: Callable[[], Any], calls: int) -> Row:
    """Kernels of a program on a GPU.

    Args:
      framework: that runs it.
      run: calls the program and waits for its results.
      calls: of the program within; figures are for one.

    Returns:
      `device_ms`: time of all kernels and copies; `launches` of them; `kinds`: name, launches and
      ms of those that take the most, joined where names differ in numbers.
      Nothing where it does not run on a GPU.
    """
    if framework == "torch":
        import torch

        return _table(_torch_kernels(run), calls) if torch.cuda.is_available() else {}
    import jax

    return _table(_jax_kernels(run), calls) if jax.default_backend() == "gpu" else {}


def _jax_kernels(run: Callable[[], Any]) -> list[tuple[str, float]]:
    import jax
    from jax.profiler import ProfileData

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        file = next(Path(folder).rglob("*.xplane.pb"))
        data = ProfileData.from_file(str(file))
    return [
        (f"{dict(event.stats).get('hlo_op', '')}: {event.name}", event.duration_ns / 1e6)
        for plane in data.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if (line.name or "").startswith("Stream")
        for event in line.events
    ]


def _torch_kernels(run: Callable[[], Any]) -> list[tuple[str, float]]:
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    return [
        (event.name, event.time_range.elapsed_us() / 1e3)
        for event in recorded.events() or ()
        if event.device_type == DeviceType.CUDA
    ]


def _table(events: Iterable[tuple[str, float]], calls: int) -> Row:
    kinds = _Times()
    for name, ms in events:
        kinds.add(re.sub(r"[._]?\d+\b", "", name), ms)
    return {
        "device_ms": round(sum(kinds.ms.values()) / calls, 4),
        "launches": sum(kinds.launches.values()) // calls,
        "kinds": kinds.longest(calls),
    }


class _Times:
    """Launches and time by name."""

    def __init__(self) -> None:
        self.launches: dict[str, int] = defaultdict(int)
        self.ms: dict[str, float] = defaultdict(float)

    def add(self, name: str, ms: float) -> None:
        self.launches[name[:_NAME]] += 1
        self.ms[name[:_NAME]] += ms

    def longest(self, calls: int) -> list[Row]:
        """Those that take the most, for one of so many calls."""
        return [
            {
                "name": name,
                "launches": round(self.launches[name] / calls, 2),
                "ms": round(self.ms[name] / calls, 4),
            }
            for name in sorted(self.ms, key=lambda name: -self.ms[name])[:_LISTED]
        ]
