"""The image kernels against OpenCV, Pillow, torch, albumentations, kornia, dm_pix, augmax, others.

On a machine with a GPU that JAX finds, it races torch on CUDA there, and reports the bandwidth of a
plain copy. Every library gets the layout in which it is fastest: OpenCV channels last, Pillow one
channel after the other over all threads, torch and jaxsr both. Each row has the largest difference
from jaxsr's values; `same` says whether it is the same mathematics. All contenders have the same
threads and jaxsr's allocator settings. Compile time and temporary memory are those of one shape
with an empty cache. dm_pix has no resize, and the blurs of augmax 0.4.1 raise an error.
"""

from dataclasses import dataclass

from benchmarks.harness.report import RESULTS, Report, ReportOptions
from benchmarks.harness.turns import quiet_idle_threads, time_calls
from benchmarks.ops.race import QUEUED, OnDevice
from jaxsr.runtime.allocator import keep_freed_memory

RECORD = RESULTS / "ops.json"


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    rounds: int = 21
    """Turns of each contender."""
    only: str = ""
    """Measure only rows whose name contains this."""


def copy_bandwidth(size: int = 1 << 27) -> float:
    """Gigabytes a second that a plain copy reads and writes on JAX's device.

    Args:
      size: of the array, in float32 numbers; several times the device's caches.
    """
    import jax

    x = jax.random.uniform(jax.random.key(0), (size,))
    copy = jax.jit(lambda x: x + 1)
    calls = OnDevice(lambda: copy(x), jax.block_until_ready).queued
    timing = time_calls({"copy": calls}, rounds=9)["copy"].of_one(QUEUED)
    return 2 * x.nbytes / timing.median_ms / 1e6


def measure(options: Options) -> None:
    """Measures every row, prints it, and writes the report."""
    report = Report("ops", options, key=("name",))
    keep_freed_memory()
    threads = quiet_idle_threads()
    import cv2
    import jax
    import torch

    from benchmarks.ops import filters, functions, race, resize

    cv2.setNumThreads(threads)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    bandwidth = copy_bandwidth() if jax.default_backend() == "gpu" else None
    report.write(device=jax.devices()[0].device_kind, threads=threads, copy_gb_per_s=bandwidth)
    for row in (*resize.ROWS, *filters.ROWS, *functions.ROWS):
        if options.only in row.name:
            figures = race.measure(row, options.rounds, bandwidth)
            race.show(figures)
            report.add(figures)
