"""Programs compiled ahead of time that the results do not have yet."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.report import Report, ReportOptions, Row, finished


@dataclass(frozen=True, kw_only=True)
class AheadOptions(ReportOptions):
    """Options of a run, which compiles the programs that `out` does not have."""

    only: str = ""
    """Programs whose name contains this."""
    minutes: float | None = None
    """Start none after so many minutes."""
    again: bool = False
    """Compile also what `out` has."""


def compile_missing(
    benchmark: str,
    options: AheadOptions,
    programs: Mapping[tuple[Any, ...], Callable[[], Row]],
    key: tuple[str, ...],
) -> None:
    """Compiles what is missing, one program after another, and writes each row.

    Args:
      benchmark: its name in the JSON.
      options: of the run.
      programs: what gives each row, by the values of `key`, which are its name.
      key: fields that identify a row.
    """
    report = Report(benchmark, options, key=key)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported: not this machine's devices
    present = set() if options.again else finished(options.out, key)
    start = time.monotonic()
    for values, compile_program in programs.items():
        name = ", ".join(map(str, values))
        if options.only not in name or values in present:
            continue
        if options.minutes is not None and time.monotonic() - start > 60 * options.minutes:
            print(f"time is up; {name} and later ones are missing")
            break
        row = dict(zip(key, values, strict=True)) | compile_program()
        report.add(row)
        print(f"{name}: {row.get('error') or 'compiled'}", flush=True)
