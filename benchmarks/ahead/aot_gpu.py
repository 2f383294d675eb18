"""Figures of XLA's CUDA compiler for jaxsr's programs: no GPU is needed, nothing is measured.

Memory, arithmetic, bytes and communication are of one device; times are a roofline, an estimate.
`before` rows keep images in torch's order (`--lane-folding off`). `--table` prints the table of
docs/gpu-measured.md.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.ahead.aot import STEPS, Programs, llama, pictures, rows_of, tiles, train
from benchmarks.ahead.missing import AheadOptions, compile_missing
from benchmarks.harness.report import RESULTS, Row, TableOptions, read_rows, run_benchmark
from benchmarks.harness.tables import markdown

RECORD = RESULTS / "aot_gpu.json"
GPUS = ("a100:8", "h100:8", "b200:8", "l4:8")
COMPARED = "h100:8"


@dataclass(frozen=True, kw_only=True)
class Options(AheadOptions, TableOptions):
    """Options of the run."""

    out: Path | None = RECORD
    """JSON of the results."""


def programs() -> Programs:
    """Everything there is to compile, by name."""
    entries: Programs = {}
    for topology in GPUS:
        for family, preset, phase in STEPS[:2] if topology != COMPARED else STEPS:
            entries[f"train {family} {phase} {topology}"] = partial(
                train, family, preset, phase, topology, "bfloat16"
            )
        entries[f"restore tiles {topology}"] = partial(tiles, topology, "bfloat16")
        entries[f"detect pictures {topology}"] = partial(pictures, topology)
        for kind in ("prefill", "decode"):
            entries[f"llama 3.1-8b {kind} {topology}"] = partial(llama, None, kind, topology)
    for family, preset, phase in STEPS:
        entries[f"before: train {family} {phase} {COMPARED}"] = partial(
            train, family, preset, phase, COMPARED, "bfloat16", lane_folding="off"
        )
    return entries


def measure(options: Options) -> None:
    """Compiles what is not in the results yet."""
    compile_missing("aot_gpu", options, rows_of(programs()), ("program",))


def table(rows: list[Row]) -> list[str]:
    """A line of Markdown for each program."""
    titles = (
        "program", "memory", "GFLOP", "read, written", "transposed", "all-reduces",
        "kernels: cuDNN, products, others", "estimate",
    )  # fmt: skip
    lines = []
    for row in rows:
        kernels = row["kernels"]
        products = kernels.get("Triton products", 0) + kernels.get("cuBLAS", 0)
        others = kernels.get("XLA", 0) + kernels.get("Triton", 0)
        sums = row["collectives"].get("all-reduce", {"count": 0, "bytes": 0})
        lines.append((
            row["program"],
            f"{row['memory_bytes']['total'] / 2**30:.2f} GiB, {row['memory_share']:.1%}",
            f"{row['flops_per_device'] / 1e9:.0f}",
            f"{row['bytes_per_device'] / 2**30:.2f} GiB",
            f"{row['transposed_bytes'] / 2**20:.0f} MiB",
            f"{sums['count']}, {sums['bytes'] / 1e6:.1f} MB",
            f"{kernels.get('cuDNN', 0)}, {products}, {others}",
            f"{row['estimate']['seconds'] * 1e3:.2f} ms, {row['estimate']['bound']}",
        ))  # fmt: skip
    return markdown(titles, lines)


if __name__ == "__main__":
    run_benchmark(measure, Options, table=lambda options: table(read_rows(options.out)))
