"""Every image function: differences from its oracles, its gradient, and its program for a TPU.

Rows of `oracle` run all cases of `tests/oracles/images`, with the libraries that programs for CPUs
call and with XLA's kernels alone, and count what differs; gradients of float64 pictures are held to
central differences. Rows of `tpu` compile each function ahead of time for one chip of a TPU v5e
(libtpu; no TPU, no measurement): main memory read and written over input and output once each, and
temporaries.

`--table` prints the table of docs/ops.md, of these results and of those of `benchmarks.ops`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.report import (
    RESULTS,
    Report,
    Row,
    TableOptions,
    read_rows,
    run_benchmark,
)
from benchmarks.harness.tables import markdown
from benchmarks.ops import races as ops
from benchmarks.ops.on_tpu import TOPOLOGY, program_on_tpu
from tests.oracles.images.coverage import ELSEWHERE, KERNELS

RECORD = RESULTS / "ops_functions.json"
BATCH = (8, 256, 256)


@dataclass(frozen=True, kw_only=True)
class Options(TableOptions):
    """Options of this benchmark."""

    out: Path | None = None
    """JSON to write. Default: only printed."""
    functions: tuple[str, ...] = ()
    """Only these. Default: all."""
    kernels: tuple[str, ...] = KERNELS
    """Kernels for the rows of oracles."""
    parts: tuple[str, ...] = ("oracle", "tpu")
    """Which rows."""


def oracle_rows(options: Options) -> Iterator[Row]:
    """A row for each oracle."""
    import jax

    from jaxsr.xla_calls.calls import SWITCH
    from tests.oracles.images.every import ORACLES
    from tests.oracles.images.oracle import gradient_error, judge

    first = {oracle.function: oracle.name for oracle in reversed(ORACLES)}
    for kernels in options.kernels:
        os.environ[SWITCH] = kernels
        jax.clear_caches()
        for oracle in ORACLES:
            if options.functions and oracle.function not in options.functions:
                continue
            has_gradient = oracle.derivative and "float32" in oracle.dtypes and kernels == "native"
            is_first = oracle.name == first[oracle.function]
            yield {
                "name": f"oracle of {oracle.name}, {kernels}",
                "function": oracle.function,
                "rule": oracle.rule,
                "by": oracle.by,
                "kernels": kernels,
                "dtypes": {dtype: asdict(judge(oracle, dtype)) for dtype in oracle.dtypes},
                "gradient_error": gradient_error(oracle) if has_gradient and is_first else None,
            }
            jax.clear_caches()


def tpu_rows(options: Options) -> Iterator[Row]:
    """A row for each function, of its first oracle."""
    import jax
    import numpy as np

    from tests.oracles.images.every import ORACLES

    functions = {oracle.function: oracle for oracle in reversed(ORACLES)}
    for name, oracle in sorted(functions.items()):
        if options.functions and name not in options.functions:
            continue
        dtype = "float32" if "float32" in oracle.dtypes else oracle.dtypes[0]
        images = np.zeros((*BATCH, oracle.channels), dtype)
        arguments = oracle.draw(np.random.default_rng(0), images)
        shapes = [(x.shape, jax.numpy.asarray(x).dtype) for x in (images, *arguments)]
        _, megabytes = program_on_tpu(oracle.call, shapes)
        ideal = megabytes["ideal"]
        yield {
            "name": f"tpu {name}",
            "function": name,
            "rule": oracle.rule,
            "shape": list(images.shape),
            "dtype": dtype,
            "ideal_megabytes": ideal,
            "moved_over_ideal": round(megabytes["moved"] / ideal, 2),
            "temporaries_over_ideal": round(megabytes["temporary"] / ideal, 2),
        }


def table(rows: Sequence[Row], races: Sequence[Row]) -> list[str]:
    """Markdown: every function of pictures, of these rows and those of `benchmarks.ops`."""
    lines = []
    oracles, programs, speeds = (
        _by_function(rows, "oracle"),
        _by_function(rows, "tpu"),
        _speeds(races),
    )
    for function in sorted(oracles.keys() | ELSEWHERE.keys()):
        if function in oracles:
            cells = [*_exactness(oracles[function]), _program(programs.get(function, []))]
        else:
            cells = [f"`{ELSEWHERE[function]}.py`", *"–––––"]
        cells.append("; ".join(speeds.get(function, [])) or "–")
        lines.append((f"`{function}`", *cells))
    titles = ("cases", "levels unequal", "float32", "gradient", "TPU", "CPU")
    return markdown(("function", "oracle", *titles), lines)


def committed_table(rows: Sequence[Row]) -> list[str]:
    """The table with the committed races."""
    return table(rows, read_rows(ops.RECORD))


def _by_function(rows: Sequence[Row], kind: str) -> dict[str, list[Row]]:
    by_function: dict[str, list[Row]] = {}
    for row in rows:
        if row["name"].split()[0] == kind:
            by_function.setdefault(row["function"], []).append(row)
    return by_function


def _exactness(rows: list[Row]) -> list[str]:
    """Oracles, cases, unequal levels, the largest difference of float32, and of gradients."""
    judged = [judgement for row in rows for judgement in row["dtypes"].values()]
    levels = [judgement for judgement in judged if judgement["results"].startswith("uint")]
    values, unequal = (sum(j[name] for j in levels) for name in ("values", "unequal"))
    reals = [judgement["largest"] for judgement in judged if judgement["results"] == "float32"]
    errors = [row["gradient_error"] for row in rows if row["gradient_error"] is not None]
    return [
        ", ".join(sorted({row["by"] for row in rows})),
        f"{sum(judgement['cases'] for judgement in judged):,}",
        f"{unequal:,} of {values:,}" if values else "–",
        f"{max(reals):.0e}" if reals else "–",
        f"{max(errors):.0e}" if errors else "–",
    ]


def _program(rows: list[Row]) -> str:
    """Bytes moved, and temporaries, over the ideal."""
    if not rows:
        return "–"
    return f"{rows[0]['moved_over_ideal']:.1f}, {rows[0]['temporaries_over_ideal']:.1f}"


def _speeds(races: Sequence[Row]) -> dict[str, list[str]]:
    """jaxsr's speed over the fastest library of the same rule and of another, for each function."""
    cells_of: dict[str, list[str]] = {}
    for race in races:
        name, _, dtype = race["name"].rpartition(", 64 x 224², ")
        peers = [c for c in race["contenders"] if not c["name"].startswith("jaxsr")]
        if not name or not peers:
            continue
        function = name.split(" ")[0].rstrip(",")
        cells = []
        for same in (True, False):
            of_rule = [c for c in peers if c["same"] is same]
            best = min(of_rule, key=lambda c: c["jaxsr_is_faster_by_cpu"], default=None)
            if best:
                ratios = [
                    _ratio(best[key]) for key in ("jaxsr_is_faster_by_cpu", "jaxsr_is_faster")
                ]
                cells.append(f"{best['name']}{'' if same else '†'} {ratios[0]} ({ratios[1]})")
        options = name.removeprefix(function).strip(", ")
        cells_of.setdefault(function, []).append(
            f"{f'{options}, ' * bool(options)}{dtype}: {', '.join(cells)}"
        )
    return cells_of


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def measure(options: Options) -> None:
    """Runs what the options name, or prints the table."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    report = Report("ops_functions", options, key=("name",), topology=TOPOLOGY)
    for part, rows in (("oracle", oracle_rows), ("tpu", tpu_rows)):
        for row in rows(options) if part in options.parts else ():
            report.show(row)


if __name__ == "__main__":
    run_benchmark(measure, Options, table=lambda _: committed_table(read_rows(RECORD)))
