"""Does the input keep up with the step? Rates of crops, and of a step with and without decoding.

1. How many crops a second come out: every photo decoded anew for each crop, and from memory; beside
   them the usual way in PyTorch, a `DataLoader` whose workers open, convert and cut with Pillow,
   with nothing cached, as people have it.
2. How much of the rate of the training step is left when its batches are real instead of one
   batch held still? The step is that of `python -m jaxsr.train` in a preset, unchanged. On a CPU
   it uses every core, so that whatever the input computes is taken from it: the worst case.

Photos are the built-in ones or those of `--data FOLDER`. Figures are medians and the spread from
least to most.
"""

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark
from benchmarks.harness.turns import take_turns
from jaxsr.data.batches import PhotoCrops
from jaxsr.data.photos import Photos, open_photos, open_training_photos
from jaxsr.data.prefetch import BatchStream, HostBatch
from jaxsr.data.processors import available_cpus
from jaxsr.runtime.allocator import keep_freed_memory


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the measurement."""

    data: Path | None = None
    """Folder of photos. Default: the built-in ones."""
    batch: int = 16
    """Crops in a batch."""
    crop: int = 96
    """Side in pixels."""
    seconds: float = 3.0
    """Seconds for each rate of crops."""
    preset: str = "super-resolution"
    """Whose training step."""


def rate_kept(
    step: Callable[[HostBatch], Any],
    batches: Iterator[HostBatch],
    *,
    steps: int = 20,
    rounds: int = 7,
) -> Row:
    """Steps per second with real batches and with one batch held still, in alternating rounds.

    Args:
      step: takes a host batch, moves it to the device and runs a training step; what it returns is
        waited for (`jax.block_until_ready`) at the end of each round, so that batches are fetched
        while the device works, as in training.
      batches: the real ones. They go on being prepared while the still rounds run, so the first
        `prefetch` batches of a real round cost nothing: ask for many more steps than that.

    Returns:
      `steps_per_s_real`, `steps_per_s_still` (medians), `kept` (the median over rounds of real ÷
      still) and `spread` of the latter.
    """
    import jax

    still = next(batches)

    def timed(next_batch: Callable[[], HostBatch]) -> float:
        start = time.perf_counter()
        last = None
        for _ in range(steps):
            last = step(next_batch())
        jax.block_until_ready(last)
        return steps / (time.perf_counter() - start)

    timed(lambda: still)
    rates = take_turns(
        {"real": lambda: timed(lambda: next(batches)), "still": lambda: timed(lambda: still)},
        rounds=rounds,
    )
    ratios = [real / still for real, still in zip(rates["real"], rates["still"], strict=True)]
    return {
        "steps_per_s_real": median(rates["real"]),
        "steps_per_s_still": median(rates["still"]),
        "kept": median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


def crop_rows(folder: Path | None, *, batch: int, crop: int, seconds: float) -> list[Row]:
    """Crops per second by each way, in three alternating rounds."""
    cold = open_photos(folder, crop=crop, cache_bytes=0)
    warm = open_photos(folder, crop=crop)

    def train_batches(photos: Photos) -> BatchStream:
        return BatchStream(PhotoCrops(photos=photos, crop=crop, seed=0), global_batch=batch)

    sources: dict[str, Callable[[], Any]] = {
        "decoded for every crop": lambda: train_batches(cold),
        "from memory": lambda: train_batches(warm),
        "torch DataLoader, Pillow, decoded for every crop": lambda: _torch_batches(
            cold, batch, crop
        ),
    }
    rates = take_turns(
        {name: partial(_crops_per_s, make, batch, seconds) for name, make in sources.items()},
        rounds=3,
    )
    return [
        {"what": name, "crops_per_s": median(values), "spread": [min(values), max(values)]}
        for name, values in rates.items()
    ]


def step_rows(folder: Path | None, *, preset: str) -> list[Row]:
    """Rates of a preset's training step, for each way in which photos reach the device."""
    from jaxsr.training.engines import JaxEngine
    from jaxsr.training.fast_srgan import FastSRGANTask
    from jaxsr.training.task_run import TaskRun

    run = dataclasses.replace(FastSRGANTask.presets[preset], data=folder)
    ways: dict[str, Row] = {
        "decoded for every crop": {"resident_gb": 0.0, "cache_gb": 0.0},
        "from memory": {"resident_gb": 0.0},
        "resident on the device": {},
    }
    rows = []
    for name, options in ways.items():
        task = TaskRun("fast-srgan", FastSRGANTask, dataclasses.replace(run, **options))
        engine, phase = JaxEngine(task), task.phases[0][0]
        with task.batches(0, host=0, hosts=1) as batches:
            rates = rate_kept(partial(engine.train_step, phase), batches)
        rows.append({"what": f"{preset} step, {name}", "batch": run.batch, **rates})
    return rows


def _crops_per_s(make: Callable[[], Any], batch: int, seconds: float) -> float:
    with contextlib.closing(make()) as batches:
        for _ in range(8):  # more than is prepared ahead, so that the queue is in its steady state
            next(batches)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            count += batch
        return count / (time.perf_counter() - start)


class _PillowCrops:
    """A torch data set as super-resolution repositories write it."""

    def __init__(self, paths: tuple[Path, ...], crop: int, length: int) -> None:
        self.paths, self.crop, self.length = paths, crop, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        from PIL import Image

        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        left = random.randint(0, image.width - self.crop)
        top = random.randint(0, image.height - self.crop)
        return np.array(image.crop((left, top, left + self.crop, top + self.crop)))


def _torch_batches(photos: Photos, batch: int, crop: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    data = _PillowCrops(photos.paths, crop, 10_000_000)
    loader = DataLoader(data, batch, num_workers=available_cpus(), prefetch_factor=4)  # type: ignore
    yield from loader


def measure(options: Options) -> None:
    """Answers both questions, prints rows, and writes the report."""
    photos, _ = open_training_photos(options.data, None, crop=options.crop)
    size = {"count": len(photos), "megapixels": photos.nbytes / 3e6}
    report = Report("input_pipeline", options, photos=size, cpus=available_cpus())
    batch, crop, seconds = options.batch, options.crop, options.seconds
    for measured in (
        lambda: crop_rows(options.data, batch=batch, crop=crop, seconds=seconds),
        lambda: step_rows(options.data, preset=options.preset),
    ):
        for row in measured():
            report.add(row)
            shown = (
                f"{name} {value:,.3g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
                if name not in ("what", "spread")
            )
            print(f"{row['what']:50}", "  ".join(shown), flush=True)


if __name__ == "__main__":
    keep_freed_memory("train")  # as the command does; workers of the DataLoader inherit it
    run_benchmark(measure, Options)
