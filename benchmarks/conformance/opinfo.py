"""Runs torch's database of operators (OpInfo) through `to_jax`: all samples, with gradients.

An entry of the database in one dtype is *right* where all its samples are: where JAX is no further
from float64 torch than torch's own result of that dtype is, by the bound of `jaxsr.check`. Samples
that are refused because they need 64-bit numbers run in JAX's x64 mode instead, and are counted. It
is *refused* where samples raise an error that names the reason, and *wrong* otherwise. Groups of
entries run in processes with bounds on time and memory. With `--out`, rows that are in the file
already are left out, so that an interrupted run continues.
"""

import itertools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.conformance import suite as conformance
from benchmarks.harness.processes import rows_of_child
from benchmarks.harness.report import (
    Report,
    ReportOptions,
    Row,
    finished,
    part_of,
    read_rows,
    run_benchmark,
)
from jaxsr.errors import InputError
from jaxsr.interop.atomic_write import atomic_write
from tests.oracles.operators.samples import DTYPES, pairs

RECORD = conformance.DATABASE
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    only: str = ""
    """Run only operators whose name contains this."""
    dtype: tuple[str, ...] = (
        "float32", "bfloat16", "int64", "bool", "float32 rounded", "float32 slopes",
        "float32 in place",
    )  # fmt: skip
    """Dtypes of the samples; rounded ones are some of each operator's, as whole numbers. Slopes are
    the gradients of some samples, rounded and not, for their own gradients."""
    shard: str = "1/1"
    """Part of the entries to run: 2/4 is the second of four."""
    rerun: tuple[str, ...] = ()
    """Statuses of rows in --out whose entries run once more, such as wrong."""
    timeout_s: int = 300
    """Most time for one entry in one dtype."""
    memory_gib: int = 24
    """Address space of one process."""
    group: int = 24
    """Entries a process runs one after another."""


def run_pairs(pairs: list[Pair], options: Options) -> Iterator[Row]:
    """Rows of a group, in one process; where one ends it, the rest runs in a new one."""
    while pairs:

        def compute(group: tuple[Pair, ...] = tuple(pairs)) -> Iterator[Row]:
            prepare()
            from tests.oracles.operators.row import run_pair

            return (run_pair(*pair) for pair in group)

        timeout_s = options.timeout_s * len(pairs)
        for row in rows_of_child(compute, timeout_s=timeout_s, memory_gib=options.memory_gib):
            if "operator" in row:
                yield row
                pairs = pairs[1:]
            elif row["status"] != "ok":
                name, dtype = pairs[0]
                reason = f"{row['status']}: {row['reason']}"
                yield {
                    "operator": name, "dtype": dtype, "status": "wrong", "samples": 0,
                    "reasons": {reason: 1},
                }  # fmt: skip
                pairs = pairs[1:]


def prepare() -> None:
    """Sets up both libraries for many tiny programs on the CPU, before JAX starts."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    warnings.simplefilter("ignore")
    import jax
    import torch

    from jaxsr.runtime.setup import configure_jax

    torch.set_num_threads(1)
    configure_jax(None)
    jax.config.update("jax_traceback_filtering", "off")  # it takes as long as tracing


def measure(options: Options) -> None:
    """Runs the entries, and counts their statuses."""
    if unknown := [d for d in options.dtype if d not in DTYPES]:
        raise InputError(f"dtype must be among {', '.join(DTYPES)}, got {unknown[0]!r}")
    key = ("operator", "dtype")
    done = finished(options.out, key, rerun=options.rerun)
    listed = part_of(pairs(options.only, options.dtype), options.shard)
    listed = [pair for pair in listed if pair not in done]
    import tests.oracles.operators.row  # noqa: F401  # children are forked from this process

    report = Report("opinfo", options, key=key, entries=len(pairs()))
    groups = range(0, len(listed), options.group)
    runs = (run_pairs(listed[start : start + options.group], options) for start in groups)
    report.add_all(itertools.chain.from_iterable(runs), by="dtype")
    if options.out == RECORD:
        atomic_write(conformance.TABLE, conformance.render(read_rows(conformance.RECORD)).encode())


if __name__ == "__main__":
    run_benchmark(measure, Options)
