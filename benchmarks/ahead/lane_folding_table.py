"""Which fold the images of a width get on which chip: makes `interop/folding/table.py`.

For each chip and number of channels two normalised convolutions and their gradients are compiled
plain and with every fold of up to 256 lanes; the fewest of the compiler's estimated cycles win. No
TPU, no measurement. An image is 256 columns at 16 channels, and as much narrower as it has more.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ahead.missing import AheadOptions, compile_missing
from benchmarks.harness.report import RESULTS, Row, read_rows, run_benchmark
from jaxsr.interop.atomic_write import atomic_write

RECORD = RESULTS / "lane_folding_table.json"
TABLE = Path(__file__).resolve().parents[2] / "interop" / "folding" / "table.py"
CHIPS = {"v5e": "v5e:1x1", "v6e": "v6e:1x1", "v5p": "v5p:1x1x1"}
CHANNELS = (2, 4, 8, 16, 24, 28, 32, 48, 64)
BATCH = 8
WORTH = 0.95
"""A fold must leave fewer cycles than this part of the plain network's."""
EQUAL = 1.1
"""Cycles that differ by less than this factor count as equal, and the smallest such fold wins: it
multiplies fewer zeros, and whole networks confirm it. SPAN's step of 28 channels (bfloat16, v6e)
takes 7.7 M cycles with 4 columns and 8.9 M with 8, which here have 1.77 M and 1.69 M."""


@dataclass(frozen=True, kw_only=True)
class Options(AheadOptions):
    """Options of the search."""

    out: Path | None = RECORD
    """JSON of the results; the table is made from it."""


def candidates(channels: int) -> list[int]:
    """Folds to try, 1 for none."""
    return [1] + [f for f in (2, 4, 8, 16, 32, 64) if 64 <= f * channels <= 256]


def cycles(chip: str, channels: int, size: int) -> Row:
    """Estimated cycles of the network's forward pass and gradient with one fold."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding
    from torch import nn

    from jaxsr.interop.aot.compile import abstract, compile_ahead
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.interop.folding.policy import LaneFolding
    from jaxsr.interop.module import to_jax

    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]

    network = nn.Sequential(*block(3), *block(channels), *block(channels))
    model = to_jax(network, lane_folding=LaneFolding({channels: size}) if size > 1 else None)

    def loss(params: Any, x: Any) -> Any:
        params = {name: p.astype(jnp.bfloat16) for name, p in params.items()}
        y, _ = model.apply(params, model.buffers, x, train=True)
        return jnp.mean(jnp.square(y.astype(jnp.float32)))

    topology = load_topology(CHIPS[chip])
    side = min(256, 16 * 256 // channels)
    x = jax.ShapeDtypeStruct((BATCH, 3, side, side), jnp.bfloat16)
    arguments = abstract((model.params, x), SingleDeviceSharding(topology.devices[0]))
    ahead = compile_ahead(jax.jit(jax.grad(loss)), arguments, topology, name="fold")
    if ahead.error:
        raise RuntimeError(f"{chip}, {channels} channels, fold {size}: {ahead.error}")
    return {"cycles": ahead.cycles}


def best_folds(rows: list[Row], chip: str) -> dict[int, int]:
    """The best fold of each width."""
    folds = {}
    for channels in sorted(CHANNELS):
        by_fold = {
            row["fold"]: row["cycles"]
            for row in rows
            if (row["chip"], row["channels"]) == (chip, channels)
        }
        fewest = min(by_fold.values())
        if fewest < WORTH * by_fold[1]:
            good = {fold for fold, number in by_fold.items() if number < EQUAL * fewest}
            folds[channels] = min(good - {1})
    return folds


def measure(options: Options) -> None:
    """Compiles what is missing, then writes the table where the results are complete."""
    programs = {
        (chip, channels, fold): partial(cycles, chip, channels, fold)
        for chip in CHIPS
        for channels in CHANNELS
        for fold in candidates(channels)
    }
    compile_missing("lane_folding_table", options, programs, ("chip", "channels", "fold"))
    rows = read_rows(options.out)
    if options.out == RECORD and {row["chip"] for row in rows} == set(CHIPS):
        lines = [
            '"""Columns to fold by most channels: made by `benchmarks.lane_folding_table`."""',
            "",
            "FOLDS = {",
            *(f'    "{chip}": {best_folds(rows, chip)},' for chip in CHIPS),
            "}",
            "",
        ]
        atomic_write(TABLE, "\n".join(lines).encode())


if __name__ == "__main__":
    run_benchmark(measure, Options)
