"""Repeats every figure of docs/reliability.md: these programs, and the tests that the page names.

Each part is a program of its own; the others run even where one fails.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import RESULTS, run_benchmark

PROGRAMS = ("damage", "hostile_inputs", "kills")
"""Programs of this folder."""
PAGE = RESULTS.parents[1] / "docs/reliability.md"
FUZZ_EXAMPLES = "2000"
"""Command lines for each command."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the run."""

    folder: Path = RESULTS
    """Where the JSON of each program goes."""
    dry_run: bool = False
    """Print the commands alone."""


def measure(options: Options) -> None:
    """Runs all parts; one that fails ends the benchmark with status 1."""
    commands = [
        [sys.executable, "-m", f"benchmarks.{name}", "--out", str(options.folder / f"{name}.json")]
        for name in PROGRAMS
    ]
    tests = sorted(set(re.findall(r"tests/[\w/]+(?:\.py)?", PAGE.read_text())))
    commands.append([sys.executable, "-m", "pytest", "-m", "slow or not slow", *tests])
    failed = []
    for command in commands:
        print(" ".join(command[1:]), flush=True)
        environment = os.environ | {"JAXSR_FUZZ_EXAMPLES": FUZZ_EXAMPLES}
        if options.dry_run:
            continue
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(command[2])
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    run_benchmark(measure, Options)
