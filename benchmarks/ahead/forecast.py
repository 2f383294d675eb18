"""Step time and efficiency of training on 8 to 1024 chips, on paper from compiled programs.

Nothing is measured. A program compiled for eight devices gives what each of them computes, reads,
writes and sends; with a batch for each device only communication changes with their number. Models
of equal layers are compiled with one layer and with two, and continued. On TPUs their FLOPs and
communication are those of H100's program: libtpu hides a part of both in fused kernels. Bytes and
memory on v6e are those of v5e's program, for these take minutes to compile. The assumptions are in
docs/scale.md.

Without options it compiles what `out` lacks. `--table` prints the table, which
`docs/figures/forecast.py` draws.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ahead import aot
from benchmarks.ahead.forecast_programs import (
    LAYERS,
    Figures,
    compile_layers,
    continued,
    figures_of,
)
from benchmarks.ahead.missing import AheadOptions, compile_missing
from benchmarks.harness.report import RESULTS, Row, TableOptions, read_rows, run_benchmark
from benchmarks.harness.tables import markdown

RECORD = RESULTS / "forecast.json"
CHIPS = (8, 64, 256, 1024)
COMPILED_FOR = 8
UTILISATION = 0.5
"""Share of the roofline that a device reaches; published runs have 0.33 to 0.67 of the peak."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Devices in groups with fast links, and the network between the groups."""

    name: str
    chip: str
    """As topologies name it."""
    compiled: str
    """Topology of the programs of equal layers."""
    group: int
    """Devices that the fast links join."""
    network_bytes_per_s: float
    """Bandwidth of one device to other groups, each direction."""


SYSTEMS = (
    # Google Cloud's pages of the chips: 6.4 and 25.6 Tbps for a pod of 256.
    System(name="TPU v5e", chip="v5e", compiled="v5e:2x4", group=256,
           network_bytes_per_s=6.4e12 / 8 / 256),
    System(name="TPU v6e", chip="v6e", compiled="v5e:2x4", group=256,
           network_bytes_per_s=25.6e12 / 8 / 256),
    # One 400 Gbps InfiniBand adapter for each GPU.
    System(name="H100", chip="h100", compiled="h100:8", group=8, network_bytes_per_s=50e9),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options(AheadOptions, TableOptions):
    """Options of the run."""

    out: Path | None = RECORD
    """JSON of the compiled programs."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One model on so many chips of a system."""

    model: str
    system: str
    chips: int
    step_s: float
    """With communication beside computation as far as it goes."""
    least_efficiency: float
    """Time without communication, relative to a step in which nothing overlaps."""
    best_efficiency: float
    """The same where everything overlaps."""
    memory_share: float
    """Share of a chip's memory."""


def links_s(figures: Figures, system: System, chips: int, link_bytes_per_s: float) -> float:
    """Seconds of communication in a step.

    Rings in a group (Thakur et al. 2005), and between the groups each byte once into each group,
    over all adapters of the group together. On TPUs with several groups parameters are split within
    a group, and only the split gradients are summed between groups.

    Args:
      figures: of the program for eight devices.
      system: its groups.
      chips: in all.
      link_bytes_per_s: of a device in its group, one direction.
    """
    group = min(chips, system.group)
    groups = chips // group
    once = figures.gathered + 2 * figures.reduced
    inside = once * (group - 1) / group / link_bytes_per_s
    if groups == 1:
        return inside
    crossing = (groups - 1) / groups / group / system.network_bytes_per_s
    if system.chip == "h100":
        return max(inside, once * crossing)
    # A gathered byte is a parameter, gathered twice and scattered once in about equal shares.
    return inside + (2 * figures.gathered / 3 + 2 * figures.reduced) * crossing


def forecast(model: str, figures: Figures, system: System, chips: int, device: Any) -> Forecast:
    """One row of the table."""
    alone = max(figures.flops / device.flops_per_s, figures.bytes / device.memory_bytes_per_s)
    alone /= UTILISATION
    links = links_s(figures, system, chips, device.link_bytes_per_s / 2)
    step = max(alone, links)
    split = COMPILED_FOR / min(chips, system.group) if figures.gathered else 1.0
    if system.chip == "h100" and figures.gathered:
        split = COMPILED_FOR / chips
    memory = figures.arguments * split + figures.temporaries
    return Forecast(
        model=model,
        system=system.name,
        chips=chips,
        step_s=step,
        least_efficiency=alone / (alone + links),
        best_efficiency=alone / step,
        memory_share=memory / device.memory_bytes,
    )


def programs() -> dict[tuple[str], Callable[[], Row]]:
    """Functions that compile the programs, by name."""
    return {
        (f"{model}, {layers} layers, {topology}",): partial(_compiled, model, layers, topology)
        for topology in dict.fromkeys(system.compiled for system in SYSTEMS)
        for model in LAYERS
        for layers in (1, 2)
    }


def _compiled(model: str, layers: int, topology: str) -> Row:
    row = compile_layers(model, layers, topology)
    return {**row, "figures": asdict(figures_of(row))}


def models() -> Iterator[tuple[str, System, Figures]]:
    """Every model on every system, with the figures of one device's step."""
    rows = {row["program"]: row for row in read_rows(RECORD)}
    gpu = {row["program"]: row for row in read_rows(RESULTS / "aot_gpu.json")}
    tpu = aot.read()
    for system in SYSTEMS:
        mshnet = (
            gpu["train mshnet main h100:8"]
            if system.chip == "h100"
            else tpu[f"train mshnet main bfloat16 {system.chip}:2x4"]
        )
        yield "MSHNet", system, figures_of(mshnet)
        for model, layers in LAYERS.items():
            one, two = (_combined(rows, f"{model}, {n} layers", system.compiled) for n in (1, 2))
            yield model, system, continued(one, two, layers)


def _combined(rows: Mapping[str, Any], program: str, topology: str) -> Figures:
    """Bytes and memory of the system's program, FLOPs and communication of H100's."""
    own = figures_of(rows[f"{program}, {topology}"])
    counted = figures_of(rows[f"{program}, h100:8"])
    return replace(own, flops=counted.flops, gathered=counted.gathered, reduced=counted.reduced)


def forecasts() -> list[Forecast]:
    """Forecasts from the committed programs, for every model, system and number of chips."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxsr.interop.aot.topology import load_topology

    sizes = {"v5e": "v5e:2x4", "v6e": "v6e:2x4", "h100": "h100:8"}
    devices = {chip: load_topology(name).device for chip, name in sizes.items()}
    return [
        forecast(model, figures, system, chips, devices[system.chip])
        for model, system, figures in models()
        for chips in CHIPS
    ]


def table(results: list[Forecast]) -> list[str]:
    """Lines of Markdown: a row for each model and system."""
    titles = ("model", "chips", *(f"{n} of them" for n in CHIPS))
    lines = []
    for model, system in dict.fromkeys((r.model, r.system) for r in results):
        cells = []
        for r in results:
            if (r.model, r.system) == (model, system):
                least, best = (f"{100 * v:.0f}" for v in (r.least_efficiency, r.best_efficiency))
                share = f"{least} %" if least == best else f"{least}–{best} %"
                fits = "" if r.memory_share <= 1 else "does not fit: "
                digits = ".0f" if r.step_s > 0.1 else ".3g"
                cells.append(f"{fits}{1e3 * r.step_s:{digits}} ms, {share}, {r.memory_share:.0%}")
        lines.append((model, system, *cells))
    return markdown(titles, lines)


def measure(options: Options) -> None:
    """Compiles what is missing, or prints the table."""
    compile_missing("forecast", options, programs(), ("program",))


if __name__ == "__main__":
    run_benchmark(measure, Options, table=lambda _: table(forecasts()))
