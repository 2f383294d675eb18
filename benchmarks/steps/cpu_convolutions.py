"""Convolutions in programs for CPUs: as jaxsr has them, by torch's calls of oneDNN, and by XLA.

The result and both gradients, float32, channels last, of shapes from the training steps and from
restoring. The three take turns in one process, each over four sets of arrays, so that no result of
the call before lies in a cache. `JAXSR_CPU_KERNELS` chooses among them.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import RESULTS, Report, ReportOptions, Row, run_benchmark
from benchmarks.harness.turns import race
from benchmarks.steps.cpu_programs import program_with

SHAPES = (
    (8, 96, 3, 64, 3, 1), (8, 24, 64, 64, 3, 1), (8, 48, 64, 256, 3, 1), (8, 96, 64, 64, 3, 2),
    (8, 96, 64, 3, 3, 1), (8, 6, 512, 512, 3, 1), (4, 256, 16, 16, 3, 1), (4, 128, 96, 32, 3, 1),
    (4, 128, 32, 32, 3, 1), (4, 32, 128, 128, 3, 1), (1, 256, 48, 48, 3, 1), (8, 96, 64, 64, 1, 1),
    (4, 56, 64, 256, 1, 1), (4, 28, 512, 128, 1, 1), (4, 14, 256, 1024, 1, 1),
    (4, 7, 2048, 512, 1, 1),
)  # fmt: skip
"""Images, side, channels in and out, side of the kernel, stride."""
KERNELS = {"jaxsr": "native", "torch": "torch", "XLA": "xla"}
"""Contenders, and their values of `JAXSR_CPU_KERNELS`."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    rounds: int = 15
    """Turns of each contender."""
    out: Path | None = RESULTS / "cpu_convolutions.json"
    """JSON of the figures."""


def contenders(shape: tuple[int, ...], wrt: str) -> dict[str, Callable[[], Any]]:
    """A call for each of `KERNELS`.

    Args:
      shape: one of `SHAPES`.
      wrt: which array is the result: `out`, `input` or `weight`.
    """
    import jax
    import numpy as np

    from jaxsr.interop.lowerings.convolution import convolution_p

    images, side, channels, outputs, kernel, stride = shape
    x, w = (images, side, side, channels), (outputs, channels, kernel, kernel)
    y = (images, -(-side // stride), -(-side // stride), outputs)
    *operands, result = {"out": (x, w, y), "input": (w, y, x), "weight": (x, y, w)}[wrt]
    rng = np.random.default_rng(0)
    sets = [[jax.device_put(rng.standard_normal(s, np.float32)) for s in operands] for _ in "1234"]
    options = {
        "wrt": wrt, "shape": result, "stride": (stride,) * 2, "padding": (kernel // 2,) * 2,
        "dilation": (1, 1), "groups": 1, "channels_last": True, "precision": None,
    }  # fmt: skip

    def contender(kernels: str) -> Callable[[], Any]:
        turns = itertools.cycle(sets)
        program = program_with(kernels, lambda a, b: convolution_p.bind(a, b, **options), *sets[0])
        return lambda: program(*next(turns))

    return {name: contender(kernels) for name, kernels in KERNELS.items()}


def measure(options: Options) -> None:
    """Times every shape and writes the report."""
    import jaxsr.interop  # noqa: F401  # before torch: its idle threads sleep
    from jaxsr.interop.cpu_kernels import onednn

    report = Report("cpu_convolutions", options, onednn=onednn.version())
    for shape in SHAPES:
        for wrt in ("out", "input", "weight"):
            row: Row = {"shape": shape, "wrt": wrt}
            race(report, row, contenders(shape, wrt), rounds=options.rounds)


if __name__ == "__main__":
    run_benchmark(measure, Options)
