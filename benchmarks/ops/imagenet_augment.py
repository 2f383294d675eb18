"""ImageNet's augmentation of `examples/imagenet_augment`: pictures a second of each contender.

    python -m benchmarks.imagenet_augment --out benchmarks/results/imagenet_augment.json

Each contender has a process of its own, stopped unless it is its turn; a turn is a batch.
`pictures_per_cpu_s` is of the least processor time, which other work disturbs less. The forecast is
read from the program compiled for one TPU: what its memory's rate allows at most, no measurement.
"""

import importlib.util
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from benchmarks.harness.processes import Steps, Worker, race_workers
from benchmarks.harness.report import Report, ReportOptions, run_benchmark

SCRIPT = Path(__file__).resolve().parents[2] / "examples/imagenet_augment/augment.py"
CONTENDERS = ("jaxsr", "Grain + albumentations", "Grain + torchvision", "kornia")


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    batch: int = 256
    """Pictures of 256²."""
    rounds: int = 9
    """Timed batches of each contender."""
    topology: str = "v5e:1x1"
    """The TPU of the forecast."""


def example() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("imagenet_augment", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _batches(name: str, count: int) -> Steps:
    module = example()
    batch = module.CONTENDERS[name](module.pictures(count))
    batch()  # compiles, or starts threads
    goes_on = yield {}
    while goes_on:
        wall, cpu = time.perf_counter(), time.process_time()
        batch()
        goes_on = yield {"s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    yield {}


def measure(options: Options) -> None:
    """Races the contenders, compiles the forecast, and writes the report."""
    report = Report("imagenet_augment", options)
    count = options.batch
    starts = {name: partial(Worker, _batches, (name, count)) for name in CONTENDERS}
    raced, failures = race_workers(starts, rounds=options.rounds, warmup=1)
    for name, error in failures.items():
        if "Error: No module named" not in error:
            raise RuntimeError(f"{name}: {error}")
        print(f"{name}: left out, {error}")
    for name, result in raced.items():
        figures = result.turns
        each = sorted(count / figure["s"] for figure in figures)
        row = {
            "name": name,
            "pictures_per_s": round(each[len(each) // 2], 1),
            "least_and_most_per_s": [round(each[0], 1), round(each[-1], 1)],
            "pictures_per_cpu_s": round(count / min(figure["cpu_s"] for figure in figures), 1),
            "peak_host_mib": result.end["peak_host_mib"],
        }
        report.show(row)
    row = {"name": f"jaxsr, forecast for {options.topology}"}
    row |= {k: round(v, 1) for k, v in example().forecast(options.topology, count).items()}
    report.show(row)


if __name__ == "__main__":
    run_benchmark(measure, Options)
