"""Where a GPU's time goes: the kernels of some calls, as JAX's or torch's profiler has them."""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from benchmarks._results import Row

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
      `device_ms`: time of all kernels and copies; `launches` of them; `kernels`: name, launches and
      ms of those that take the most. Nothing where it does not run on a GPU.
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
    launches: dict[str, int] = defaultdict(int)
    total_ms: dict[str, float] = defaultdict(float)
    for name, ms in events:
        launches[name[:_NAME]] += 1
        total_ms[name[:_NAME]] += ms
    longest = sorted(total_ms, key=lambda name: -total_ms[name])[:_LISTED]
    return {
        "device_ms": round(sum(total_ms.values()) / calls, 4),
        "launches": sum(launches.values()) // calls,
        "kernels": [
            {
                "name": name,
                "launches": round(launches[name] / calls, 2),
                "ms": round(total_ms[name] / calls, 4),
            }
            for name in longest
        ],
    }
