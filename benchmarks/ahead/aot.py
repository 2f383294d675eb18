"""Figures of the TPU compiler for every family at its real settings: no TPU, no measurement.

Memory, FLOPs, bytes and communication are the compiler's, for one device; times are a roofline,
labelled as estimates. `--table` prints a table of results/aot.json instead: training `steps`
(docs/tpu-programs.md), or `folding` (docs/lane-folding.md, plain → folded).

- `train`: both phases of Fast-SRGAN and MSHNet, the published batch on every device, statistics
  local, on 8 chips of three kinds in both dtypes.
- `folding`: a step with narrow convolutions folded into lanes (docs/lane-folding.md) and plain, on
  one chip. Other rows have what `auto` chooses.
- `scale`: the same on 8, 64 and 256 chips: what a device computes and sends must not grow.
- `fsdp`: parameters and optimiser state split in two, against plain data parallelism.
- `llama`: Llama-3.1-8B's prefill and decode, tensor-parallel over 8 chips, a cache of 8192 tokens.
- `infer`: a batch of tiles and of pictures.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.ahead.missing import AheadOptions, compile_missing
from benchmarks.harness.llamas import LLAMAS
from benchmarks.harness.report import RESULTS, Row, read_rows, run_benchmark
from benchmarks.harness.tables import markdown

if TYPE_CHECKING:
    from jaxsr.interop.aot.compile import Ahead

RECORD = RESULTS / "aot.json"

KINDS = ("v5e:2x4", "v6e:2x4", "v5p:2x2x2")
SIZES = ("v5e:2x4", "v5e:8x8", "v5e:16x16")
DTYPES = ("bfloat16", "float32")
# Family, preset, phase.
STEPS = (
    ("fast-srgan", "super-resolution", "pretrain"),
    ("fast-srgan", "super-resolution", "adversarial"),
    ("mshnet", "mshnet-toolbox", "main"),
)
# The preset is for a CPU: its batch of small crops would leave most of an accelerator idle.
LARGER = {"batch": 64, "crop": 256}
# Name of the row: title, family, preset, phase, options other than the preset's.
FOLDED_STEPS: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "mshnet main": ("MSHNet", "mshnet", "mshnet-toolbox", "main", {}),
    "span pretrain": ("SPAN, 48 channels", "span", "restore", "pretrain", LARGER),
    "span of 28 channels pretrain": (
        "SPAN, 28 channels",
        "span",
        "restore",
        "pretrain",
        LARGER | {"model": {"width": 28}},
    ),
    "fast-srgan pretrain": ("Fast-SRGAN", "fast-srgan", "super-resolution", "pretrain", {}),
}
LLAMA_3_1_8B = {
    **LLAMAS["8B"], "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}  # fmt: skip

Compiled = tuple["Ahead", Row]
"""A program, and facts about its input."""
Programs = dict[str, Callable[[], Compiled]]


@dataclass(frozen=True, kw_only=True)
class Options(AheadOptions):
    """Options of the run."""

    table: Literal["steps", "folding"] | None = None
    """Print the results as a table of Markdown and compile nothing."""
    out: Path | None = RECORD
    """JSON of the results."""


def programs() -> Programs:
    """Everything there is to compile, by name, the most informative first."""
    entries: Programs = {}
    for topology in KINDS:
        for dtype in DTYPES:
            for family, preset, phase in STEPS:
                name = f"train {family} {phase} {dtype} {topology}"
                entries[name] = partial(train, family, preset, phase, topology, dtype)
    for row, topology, dtype in folded_steps():
        _, family, preset, phase, options = FOLDED_STEPS[row]
        for choice in ("on", "off"):
            entries[f"folding {choice} {row} {dtype} {topology}"] = partial(
                train, family, preset, phase, topology, dtype, lane_folding=choice,
                options=options,
            )  # fmt: skip
    for scheme in (None, "int8"):
        for kind in ("prefill", "decode"):
            name = f"llama 3.1-8b {scheme or 'bfloat16'} {kind} v5e:2x4"
            entries[name] = partial(llama, scheme, kind, "v5e:2x4")
    for family, preset, phase in STEPS:
        for topology in SIZES[1:]:  # 8 chips are among `train`
            name = f"scale {family} {phase} bfloat16 {topology}"
            entries[name] = partial(train, family, preset, phase, topology, "bfloat16")
    for dtype in DTYPES:  # mesh 8 is among `train`
        name = f"fsdp fast-srgan adversarial {dtype} mesh data=4,fsdp=2 v5e:2x4"
        entries[name] = partial(
            train, *STEPS[1], "v5e:2x4", dtype, mesh="data=4,fsdp=2", batch_norm="global"
        )
    for topology in ("v5e:2x4", "v6e:2x4"):
        for dtype in DTYPES:
            entries[f"infer fast-srgan tiles {dtype} {topology}"] = partial(tiles, topology, dtype)
        entries[f"infer mshnet float32 {topology}"] = partial(pictures, topology)
    return entries


def folded_steps() -> Iterator[tuple[str, str, str]]:
    """Name, topology and dtype of every step that is compiled plain and folded."""
    return itertools.product(FOLDED_STEPS, ("v5e:1x1", "v6e:1x1"), DTYPES)


def train(
    family: str,
    preset: str,
    phase: str,
    topology_name: str,
    dtype: str,
    *,
    mesh: str | None = None,
    batch_norm: str = "local",
    lane_folding: str = "auto",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Compiled:
    """One phase's step with the preset's batch on every device, and what `options` change of its
    run and (under "model") of its network."""
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.training.ahead_steps import AheadSteps
    from jaxsr.training.find_task import find_task
    from jaxsr.training.task_run import TaskRun

    topology = load_topology(topology_name)
    devices = len(topology.devices)
    kind = find_task(family)
    chosen: Any = kind.presets[preset]
    model = dataclasses.replace(chosen.model, **options.get("model", {}))
    chosen = dataclasses.replace(chosen, **{**options, "model": model})
    task = TaskRun(
        family,
        kind,
        dataclasses.replace(
            chosen,
            mesh=mesh or str(devices),
            batch=chosen.batch * devices,
            dtype=dtype,
            batch_norm=batch_norm,
            lane_folding=lane_folding,
            # The data here is a stand-in: its size must not show in the figures.
            resident_gb=0.0,
            steps=1000,
            epochs=None,
            **({"warmup_epochs": 1} if family == "mshnet" else {}),
        ),
    )
    steps = AheadSteps(task, topology)
    ahead = steps.compile(phase)
    network = sum(
        p.numel()
        for player in task.objective.phase(phase).players
        for p in task.objective.get_submodule(player.network).parameters()
        if p.requires_grad
    )
    facts = {
        "batch": task.config.batch,
        "gradient_bytes": 4 * network,
        "batch_norm": batch_norm,
        "lane_folding": lane_folding,
    }
    return ahead, facts


def llama(scheme: Literal["int8"] | None, kind: str, topology_name: str) -> Compiled:
    """Prefill of 2048 tokens, or the decode loop's step, with a cache of 8192."""
    import torch

    from jaxsr.generation.ahead_engine import AheadEngine
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.models.llama.config import Llama3Scaling, LlamaConfig
    from jaxsr.models.llama.loading import shapes_of

    scaling = Llama3Scaling(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    network = shapes_of(
        LlamaConfig(**LLAMA_3_1_8B, rope_scaling=scaling), dtype=torch.bfloat16, scheme=scheme
    )
    engine = AheadEngine(network, load_topology(topology_name))
    prefill, decode = engine.compile(SamplingOptions(), batch=1, prompt=2048, slots=8192)
    parameters = sum(t.numel() for t in (*network.parameters(), *network.buffers()))
    return (prefill if kind == "prefill" else decode), {"batch": 1, "weights": parameters}


def tiles(topology_name: str, dtype: str) -> Compiled:
    """Tiles of a published generator, eight a device."""
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.generator import Generator
    from jaxsr.restoration.around_tiles import around_tiles

    around = around_tiles((-1.0, 1.0), ensemble=False)
    make = partial(Generator, FastSRGANConfig())
    return _inference(make, topology_name, "restore 256x256", dtype, around=around)


def pictures(topology_name: str) -> Compiled:
    """A detector's pictures, eight a device."""
    from jaxsr.models.mshnet.config import MSHNetConfig
    from jaxsr.models.mshnet.network import MSHNet

    return _inference(partial(MSHNet, MSHNetConfig()), topology_name, "detect 256x256")


def _inference(
    make: Callable[[], Any], topology_name: str, name: str, dtype: str = "float32", **runner: Any
) -> Compiled:
    """A network's forward of eight pictures a device."""
    import torch

    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.runtime.jax_runner import open_ahead
    from jaxsr.runtime.options import ComputeOptions

    torch.manual_seed(0)
    topology = load_topology(topology_name)
    batch = 8 * len(topology.devices)
    options = ComputeOptions(dtype="bfloat16" if dtype == "bfloat16" else "float32")
    compiled = open_ahead(make(), topology, options, **runner)
    return compiled.lower((batch, 3, 256, 256), topology, name=name), {"batch": batch}


def read() -> dict[str, Row]:
    """Rows that are compiled already, by program."""
    return {row["program"]: row for row in read_rows(RECORD)}


def steps_table() -> list[str]:
    """Lines of Markdown: a row for each training step."""
    kinds = ("train", "scale", "fsdp")
    steps = [_step(row) for name, row in read().items() if name.partition(" ")[0] in kinds]
    return markdown([*steps[0]], [[*step.values()] for step in steps])


def _step(row: Row) -> dict[str, str]:
    """A row's cells, by the titles of their columns."""
    others = dict(row["collectives"])
    reduces = others.pop("all-reduce", {"count": 0, "bytes": 0})
    return {
        "step": row["program"].partition(" ")[2].rpartition(" ")[0],
        "chips": row["topology"],
        "of HBM": f"{row['memory_share']:.1%}",
        "GFLOP a chip": f"{row['flops_per_device'] / 1e9:.0f}",
        "GB moved": f"{row['bytes_per_device'] / 1e9:.1f}",
        "M cycles": f"{row['estimated_cycles'] / 1e6:.1f}",
        "all-reduces": f"{reduces['count']}",
        "of MB (gradients)": f"{reduces['bytes'] / 1e6:.2f} ({row['gradient_bytes'] / 1e6:.2f})",
        "other": ", ".join(f"{each['count']} {kind}" for kind, each in others.items()) or "–",
        "roofline, ms": f"{row['estimate']['seconds'] * 1e3:.1f}",
        "compiled in s of a core": f"{row['compile_cpu_s']:.0f}" if "compile_cpu_s" in row else "–",
    }


def _largest(row: Row) -> str:
    """The batch at which a training step's temporaries would fill what else leaves free."""
    memory = row["memory_bytes"]
    free = memory["available"] - (memory["total"] - memory["temporaries"])
    return f"~{row['batch'] * free // memory['temporaries']}"


def folding_table() -> list[str]:
    """Lines of Markdown: every step that is compiled both plain and folded."""
    figures: list[tuple[str, str, Callable[[Row], float | None]]] = [
        ("M cycles", ".1f", lambda row: row["estimated_cycles"] / 1e6),
        ("HBM, MiB", ".0f", lambda row: row["memory_bytes"]["total"] / 2**20),
        ("temporaries in it", ".0f", lambda row: row["memory_bytes"]["temporaries"] / 2**20),
        ("traffic, GB", ".1f", lambda row: row["bytes_per_device"] / 1e9),
        ("compiled in s of a core", ".0f", lambda row: row.get("compile_cpu_s")),
    ]
    titles = ["step", "chip", *(title for title, _, _ in figures)]
    titles.insert(-1, "largest batch")
    lines, rows = [], read()
    for name, topology, dtype in folded_steps():
        plain, folded = (rows.get(f"folding {c} {name} {dtype} {topology}") for c in ("off", "on"))
        if plain is None or folded is None:
            continue
        cells = [f"{FOLDED_STEPS[name][0]}, {dtype}", topology.split(":")[0]]
        for _, digits, figure in figures:
            before, after = figure(plain), figure(folded)
            cells.append(
                f"{before:{digits}} → {after:{digits}} ({after / before:.2f})"
                if before is not None and after is not None
                else "–"
            )
        cells.insert(-1, f"{_largest(plain)} → {_largest(folded)}")
        lines.append(cells)
    return markdown(titles, lines)


TABLES: dict[str, Callable[[], list[str]]] = {
    "steps": steps_table,
    "folding": folding_table,
}


def measure(options: Options) -> None:
    """Compiles what is missing."""
    compile_missing("aot", options, rows_of(programs()), ("program",))


def rows_of(programs: Programs) -> dict[tuple[str], Callable[[], Row]]:
    """Functions that compile each program and return the row of its report."""

    def compiled(program: Callable[[], Compiled]) -> Row:
        from jaxsr.interop.aot.report import as_json

        ahead, facts = program()
        return {**as_json(ahead), **facts}

    return {(name,): partial(compiled, program) for name, program in programs.items()}


if __name__ == "__main__":
    run_benchmark(measure, Options, table=lambda options: TABLES[options.table or "steps"]())
