"""How long networks of timm take to trace and to compile for this machine.

For each network its forward pass, and the gradient of a training step (batch statistics and random
numbers included), in a process of its own without a compile cache: seconds until JAX has traced and
lowered the program, which is Python, and until XLA has compiled it; and the processor time of the
latter over all threads, which other work on the machine disturbs less. Once with torch's kernels,
once with XLA's alone (`JAXSR_CPU_KERNELS`).
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.processes import rows_of_child
from benchmarks.harness.report import RESULTS, Report, ReportOptions, Row, run_benchmark
from jaxsr.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the benchmark."""

    models: tuple[str, ...] = (
        "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny",
        "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224",
    )  # fmt: skip
    """Names of timm."""
    programs: tuple[str, ...] = ("forward", "gradient")
    """Programs of each network."""
    kernels: tuple[str, ...] = ("native", "xla")
    """Values of JAXSR_CPU_KERNELS."""
    side_px: int = 224
    """Height and width of the two images of a batch."""
    out: Path | None = RESULTS / "compile_times.json"
    """JSON of the figures."""


def compile_model(name: str, program: str, kernels: str, side_px: int) -> Iterator[Row]:
    """Seconds of one network, in this process."""
    os.environ["JAXSR_CPU_KERNELS"] = kernels
    import jax
    import jax.numpy as jnp

    from jaxsr.interop import to_jax
    from jaxsr.models.libraries import import_library

    jax.config.update("jax_platforms", "cpu")
    network = import_library("timm").create_model(name)
    start = time.perf_counter()
    model = to_jax(network)
    images = jax.ShapeDtypeStruct((2, 3, side_px, side_px), jnp.float32)
    key = jax.random.key(0)

    def forward(params, images):  # type: ignore[no-untyped-def]
        return model.apply(params, model.buffers, images)[0]

    def loss(params, images):  # type: ignore[no-untyped-def]
        out, buffers = model.apply(params, model.buffers, images, train=True, rng=key)
        return (out**2).mean(), buffers

    function = forward if program == "forward" else jax.grad(loss, has_aux=True)
    lowered = jax.jit(function).lower(model.params, images)
    traced, traced_cpu = time.perf_counter(), time.process_time()
    lowered.compile()
    yield {
        "trace_s": round(traced - start, 2),
        "compile_s": round(time.perf_counter() - traced, 2),
        "compile_cpu_s": round(time.process_time() - traced_cpu, 2),
        "lines": lowered.as_text().count("\n"),
    }


def measure(options: Options) -> None:
    """Compiles every network in processes of their own and writes the report."""
    report = Report("compile_times", options, key=("model", "program", "kernels"))
    for name in options.models:
        for program in options.programs:
            for kernels in options.kernels:
                compute = partial(compile_model, name, program, kernels, options.side_px)
                *figures, end = rows_of_child(compute, timeout_s=3600, start="spawn")
                if not figures:
                    raise InputError(f"{name}: {end['reason']}")
                row: Row = {"model": name, "program": program, "kernels": kernels, **figures[0]}
                report.add(row)
                print(
                    f"{name:32s}{program:10s}{kernels:8s} trace {row['trace_s']:6.1f} s"
                    f"   compile {row['compile_s']:6.1f} s, CPU {row['compile_cpu_s']:6.1f} s"
                    f"   {row['lines']:7d} lines",
                    flush=True,
                )


if __name__ == "__main__":
    run_benchmark(measure, Options)
