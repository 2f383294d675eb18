"""Convolutions of concatenated channels in programs for CPUs, as `restore` and `detect` run them.

`parts` is the sum of the convolutions of the parts, `whole` the convolution of the concatenation,
`jaxsr` what is chosen between them; `torch` is eager torch, which concatenates. They take turns in
one process, float32, channels last in memory, with the allocator of jaxsr's commands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness.report import RESULTS, Report, ReportOptions, run_benchmark
from benchmarks.harness.turns import race
from jaxsr.runtime.allocator import keep_freed_memory

SHAPES = (
    (1, 349, 379, 48, 4, 48, 1), (1, 180, 320, 48, 4, 48, 1), (8, 96, 96, 64, 4, 64, 1),
    (1, 256, 256, 64, 2, 64, 3), (4, 256, 256, 16, 2, 16, 3), (1, 128, 128, 64, 5, 32, 3),
    (4, 128, 128, 32, 2, 32, 3), (1, 64, 64, 128, 2, 128, 3), (1, 128, 128, 16, 2, 64, 1),
)  # fmt: skip
"""Images, height, width, channels of a part, parts, channels of the result, side of the kernel."""
LEAST_ELEMENTS = {"jaxsr": None, "parts": 0, "whole": 1 << 62}
"""Smallest concatenation that is avoided, in elements; None is the default."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    rounds: int = 15
    """Turns of each contender."""
    out: Path | None = RESULTS / "cpu_concatenations.json"
    """JSON of the figures."""


def contenders(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """A call for each contender, of one of `SHAPES`."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxsr.interop import to_jax
    from jaxsr.interop.cpu_kernels import choice
    from jaxsr.interop.lowerings.fusion import fused

    import torch  # isort: skip  # after jaxsr.interop: its idle threads sleep

    images, height, width, channels, parts, outputs, kernel = shape

    class Gathered(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(
                channels * parts, outputs, kernel, padding=kernel // 2
            )

        def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
            return self.convolution(torch.cat(arrays, 1)).relu()

    network = Gathered().eval().requires_grad_(False)
    model = to_jax(network)

    def apply(*arrays: jax.Array) -> jax.Array:
        """Applies the network to images with channels last, and returns such images."""
        first = (jnp.moveaxis(x, -1, 1) for x in arrays)
        return jnp.moveaxis(model.apply(model.params, model.buffers, *first)[0], 1, -1)

    random = np.random.default_rng(0)
    size = (images, height, width, channels)
    arrays = [jax.device_put(random.standard_normal(size, np.float32)) for _ in range(parts)]
    tensors = [torch.from_numpy(np.array(x)).movedim(-1, 1) for x in arrays]

    def program(least: int | None) -> Callable[[], Any]:
        elements = choice._LEAST_CONCATENATED if least is None else least
        with mock.patch.object(choice, "_LEAST_CONCATENATED", elements):
            compiled = jax.jit(fused(apply)).lower(*arrays).compile()
        return lambda: jax.block_until_ready(compiled(*arrays))

    calls = {name: program(least) for name, least in LEAST_ELEMENTS.items()}
    return calls | {"torch": lambda: network(*tensors)}


def measure(options: Options) -> None:
    """Times every shape and writes the report."""
    keep_freed_memory()
    report = Report("cpu_concatenations", options)
    for shape in SHAPES:
        race(report, {"shape": shape}, contenders(shape), rounds=options.rounds, untimed=1)


if __name__ == "__main__":
    run_benchmark(measure, Options)
