"""Llama-like models of 1B and 8B on v5e slices: bytes a chip and communication, by mesh.

Each program is what `python -m jaxsr.train … --aot` compiles: a step of AdamW on all weights, in
bfloat16 with float32 state, blocks recomputed. All layers are equal: a step is compiled with one
and with two, and its figures continued to the model's depth. Communication is that of the same mesh
of H100s, for libtpu's text hides scattered gradients in fused kernels. Beside both stands what the
rules of MaxText's base.yml give (`logical_axis_rules`: every matrix split over `fsdp` by its
embedding axis and over `tensor` by its other one, norms over `tensor`). `--table` prints the table
of docs/scale.md.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ahead.forecast_programs import Figures, continued, figures_of
from benchmarks.ahead.language_model_task import shapes
from benchmarks.ahead.missing import AheadOptions, compile_missing
from benchmarks.harness.llamas import LLAMAS
from benchmarks.harness.report import RESULTS, Row, TableOptions, read_rows, run_benchmark
from benchmarks.harness.tables import markdown
from jaxsr.interop.mesh_shape import MeshShape

RECORD = RESULTS / "sharding.json"
MESHES = (
    ("1B", "v5e:4x4", "fsdp=16"),
    ("1B", "v5e:4x4", "fsdp=4,tensor=4"),
    ("8B", "v5e:4x4", "fsdp=16"),
    ("8B", "v5e:4x4", "fsdp=4,tensor=4"),
    ("1B", "v5e:16x16", "fsdp=256"),
    ("1B", "v5e:16x16", "fsdp=64,tensor=4"),
    ("8B", "v5e:16x16", "fsdp=256"),
    ("8B", "v5e:16x16", "fsdp=64,tensor=4"),
)
"""Model, slice and mesh; one row of tokens for each chip."""
TWINS = {"v5e:4x4": "h100:2x8", "v5e:16x16": "h100:32x8"}
"""GPUs as many as the slice has chips."""
LENGTH = 2048
"""Tokens in a row."""


@dataclass(frozen=True, kw_only=True)
class Options(AheadOptions, TableOptions):
    """Options of the run."""

    longest_s: float = 1200.0
    """A program that compiles for longer is given up."""
    out: Path | None = RECORD
    """JSON of the results."""


def compiled(model: str, topology: str, mesh: str, layers: int, longest_s: float) -> Row:
    """The report of one program, as `--aot-json` has it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [
            "benchmarks.ahead.language_model_task:Text", "--size", model, "--layers", str(layers),
            "--length", str(LENGTH), "--batch", str(math.prod(_parts(mesh))), "--mesh", mesh,
            "--dtype", "bfloat16", "--remat", "--aot", topology, "--aot-json", str(report),
            "--out", f"{folder}/run",
        ]  # fmt: skip
        began = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "jaxsr.train", *words],
            capture_output=True, text=True, timeout=longest_s, check=False,
        )  # fmt: skip
        if not report.exists():
            raise RuntimeError(result.stderr.strip().split("\n")[-1])
        (program,) = json.loads(report.read_text())["programs"]
    return {**program, "command_s": round(time.perf_counter() - began)}


def programs() -> Iterator[tuple[str, str, str, int]]:
    """Model, topology, mesh and layers: quick ones first."""
    for topologies in (TWINS, {slice_name: slice_name for slice_name in TWINS}):
        for model, slice_name, mesh in MESHES:
            for layers in (1, 2):
                yield model, topologies[slice_name], mesh, layers


def measure(options: Options) -> None:
    """Compiles what is not in the results yet."""
    calls = {each: partial(compiled, *each, options.longest_s) for each in programs()}
    compile_missing("sharding", options, calls, ("model", "topology", "mesh", "layers"))


def whole(rows: dict[Any, Row], model: str, topology: str, mesh: str) -> Figures | None:
    """Figures of a step of all layers, where it was compiled."""
    both = [rows.get((model, topology, mesh, layers)) for layers in (1, 2)]
    if not all(row and row["compiles"] for row in both):
        return None
    one, two = (figures_of(row) for row in both if row)
    return continued(one, two, LLAMAS[model]["num_hidden_layers"])


def by_maxtext(model: str, mesh: str) -> tuple[float, float, float]:
    """Bytes by MaxText's rules: state on a chip, gathered and scattered, and summed.

    State is a parameter and Adam's two moments, float32. With blocks recomputed each matrix is
    gathered forward and backward, and its gradient scattered, in bfloat16. `tensor` sums the
    activations behind attention and MLP: forward, recomputed, and both gradients.
    """
    fsdp, tensor = _parts(mesh)
    sizes = LLAMAS[model]
    matrices = sum(math.prod(shape) for shape in shapes(model) if len(shape) == 2)
    norms = sum(math.prod(shape) for shape in shapes(model) if len(shape) == 1)
    state = 12 * (matrices / fsdp + norms) / tensor
    rows = tensor  # one for each chip of a group that shares its rows
    activations = 2 * rows * LENGTH * sizes["hidden_size"]
    summed = 6 * sizes["num_hidden_layers"] * activations if tensor > 1 else 0
    return state, 3 * 2 * matrices / tensor, summed


def table(rows: list[Row]) -> list[str]:
    """A line of Markdown for each model, slice and mesh."""
    by_key = {(r["model"], r["topology"], r["mesh"], r["layers"]): r for r in rows}
    titles = (
        "model", "slice, mesh", "state a chip", "by MaxText's rules", "whole step a chip",
        "gathered and scattered", "by MaxText's rules", "summed", "by MaxText's rules",
    )  # fmt: skip
    lines = []
    for model, slice_name, mesh in MESHES:
        twin = whole(by_key, model, TWINS[slice_name], mesh)
        if twin is None:
            continue
        figures = whole(by_key, model, slice_name, mesh)
        total = f"{(figures.arguments + figures.temporaries) / 2**30:.1f} GiB" if figures else "–"
        state, gathered, summed = by_maxtext(model, mesh)
        size = sum(map(math.prod, shapes(model))) / 1e9
        state_mb = (figures or twin).arguments / 1e6
        lines.append((
            f"{size:.2f} B", f"{slice_name}, `{mesh}`", f"{state_mb:,.0f} MB",
            f"{state / 1e6:,.0f} MB", total, f"{twin.gathered / 1e9:.1f} GB",
            f"{gathered / 1e9:.1f} GB", f"{twin.reduced / 1e9:.1f} GB", f"{summed / 1e9:.1f} GB",
        ))  # fmt: skip
    return markdown(titles, lines)


def _parts(mesh: str) -> tuple[int, int]:
    """Sizes of `fsdp` and `tensor`."""
    shape = MeshShape.parse(mesh)
    return shape.fsdp, shape.tensor


if __name__ == "__main__":
    run_benchmark(measure, Options, table=lambda options: table(read_rows(options.out)))
