"""Shared parts of all benchmarks: the command line, and one schema for results (see README.md)."""

import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from jaxsr.errors import InputError
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.runtime.cli import parse_options, run_command

RESULTS = Path(__file__).resolve().parents[1] / "results"
SCHEMA = 1
PACKAGES = (
    "jax", "jaxlib", "libtpu", "torch", "torchax", "transformers", "opencv-python-headless",
    "pillow", "kornia", "dm_pix", "scipy", "scikit-image", "numpy", "timm", "torchvision",
    "spandrel", "segmentation-models-pytorch", "diffusers", "albumentations", "augmax",
    "llvmlite", "llama-cpp-python",
)  # fmt: skip

Row = dict[str, Any]
OptionsT = TypeVar("OptionsT")
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of every benchmark with results."""

    out: Path | None = None
    """JSON to write. Default: only printed."""


@dataclass(frozen=True, kw_only=True)
class TableOptions(ReportOptions):
    """Options of benchmarks whose results are a table of a page."""

    table: bool = False
    """Print the results as a table of Markdown and measure nothing."""


class Report:
    """Results of one run, written after each row.

    Args:
      benchmark: its module's name.
      options: of this run; `out` is the file.
      key: fields that identify a row. With them, rows of earlier runs stay in the file until a row
        with the same values replaces them, each with its own `environment`.
      **notes: further entries of the file.

    Raises:
      InputError: `out` lies in `benchmarks/results` and the tree has uncommitted changes.
    """

    def __init__(
        self, benchmark: str, options: ReportOptions, *, key: tuple[str, ...] = (), **notes: Any
    ) -> None:
        commit, is_clean = _commit()
        self._path, self._key = options.out, key
        if self._path and not is_clean and RESULTS in self._path.resolve().parents:
            raise InputError(
                f"{self._path} needs a tree without uncommitted changes, for results name their "
                "commit; commit first, or write elsewhere with --out"
            )
        # A path by its name: results say nothing of the machine's folders.
        recorded = {
            name: value.name if isinstance(value, Path) else value
            for name, value in vars(options).items()
            if name != "out"
        }
        self._document = {
            "schema": SCHEMA,
            "benchmark": benchmark,
            "options": recorded,
            "environment": _environment(commit if is_clean or not commit else f"{commit}-dirty"),
            **notes,
        }

        # Those of earlier runs, before notes are written.
        self._rows: dict[tuple[Any, ...], Row] = (
            {self._id(row): row for row in read_rows(self._path)} if key else {}
        )

    def _id(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    def add(self, row: Row) -> None:
        """Adds a row, or replaces that of the same key, and writes the file."""
        if self._key:  # read anew, for several processes may add rows
            self._rows = {self._id(row): self._of_run(row) for row in read_rows(self._path)}
        self._rows[self._id(row) if self._key else (len(self._rows),)] = row
        self.write()

    def show(self, row: Row) -> None:
        """Adds a row and prints it."""
        self.add(row)
        print(row, flush=True)

    def add_all(self, rows: Iterable[Row], *, by: str = "") -> None:
        """Adds rows with a `status` as they come, prints each, and at last how many there are.

        Args:
          rows: with a `reason` or `reasons`.
          by: field whose values are counted apart. Default: all are counted together.
        """
        counts: dict[str, Counter[str]] = {}
        for row in rows:
            self.add(row)
            counts.setdefault(row.get(by, "in all"), Counter())[row["status"]] += 1
            reason = row.get("reason") or next(iter(row.get("reasons", ())), "")
            name = ":".join(map(str, self._id(row)))
            print(f"{row['status']:10} {name}  {reason}"[:200], flush=True)
        for value, statuses in counts.items():
            print(f"{value}: " + ", ".join(f"{n} {each}" for each, n in statuses.most_common()))

    def _of_run(self, row: Row) -> Row:
        started = self._document["environment"]["load_average_before"]
        of_this_run = row["environment"]["load_average_before"] == started
        return {k: v for k, v in row.items() if k != "environment" or not of_this_run}

    def write(self, **notes: Any) -> None:
        """Writes the file, with further notes."""
        self._document |= notes
        self._document["environment"]["load_average_after"] = list(os.getloadavg())
        document = self._document | {"rows": [*self._rows.values()]}
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self._path, (json.dumps(document, indent=1, default=str) + "\n").encode())


def read_rows(path: Path | None) -> list[Row]:
    """Rows of a file, each with its `environment`; none where there is no file."""
    if path is None or not path.exists():
        return []
    document = json.loads(path.read_text())
    return [{"environment": document["environment"], **row} for row in document["rows"]]


def finished(
    path: Path | None, key: tuple[str, ...], *, rerun: Sequence[str] = ()
) -> set[tuple[Any, ...]]:
    """Which rows a file has, by the values of `key`, but for those of the statuses to run again."""
    rows = [row for row in read_rows(path) if row.get("status") not in rerun]
    return {tuple(row[name] for name in key) for row in rows}


def part_of(items: Sequence[ItemT], shard: str) -> Sequence[ItemT]:
    """Every nth item: those of shard 2/4 are the second, the sixth and so on.

    Raises:
      InputError: it is not such a shard.
    """
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise InputError(f"shard must be such as 2/4, got {shard!r}")
    return items[int(part) - 1 :: int(parts)]


def _environment(commit: str | None) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "commit": commit,
        "versions": versions,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {_instruction_set()}",
        "load_average_before": list(os.getloadavg()),
        "load_average_after": None,
    }


def _instruction_set() -> str:
    """Instruction set as NumPy names it: X86_V3 has AVX2, X86_V4 also AVX-512; kernels differ."""
    configuration: Any = np.show_config(mode="dicts")
    found = configuration["SIMD Extensions"]["found"]
    return found[-1] if found else "baseline"


def _commit() -> tuple[str | None, bool]:
    """The commit, and whether all but the results themselves is as in it."""
    if shutil.which("git") is None:
        return None, False
    git = functools.partial(
        subprocess.run, cwd=RESULTS.parents[1], capture_output=True, text=True, check=False
    )
    status = git(["git", "status", "--porcelain", "--", ".", ":!benchmarks/results"])
    commit = git(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
    return commit or None, status.returncode == 0 and not status.stdout


def run_benchmark(
    measure: Callable[[OptionsT], None],
    options_class: type[OptionsT],
    *,
    table: Callable[[OptionsT], list[str]] | None = None,
) -> NoReturn:
    """Runs the program `python -m benchmarks.NAME`; user errors are one line and exit status 2.

    Args:
      measure: the program.
      options_class: of its options.
      table: lines of Markdown for the option `table`.
    """
    program = sys.modules["__main__"].__spec__
    name = program.name.removesuffix(".__main__") if program else "benchmarks"
    summary = (sys.modules[measure.__module__].__doc__ or "").split("\n\n")[0]

    def command(arguments: list[str]) -> None:
        prog = f"python -m {name}"
        options = parse_options(options_class, arguments, prog=prog, description=summary)
        if table is not None and getattr(options, "table", False):
            print("\n".join(table(options)))
        else:
            measure(options)

    sys.exit(run_command(command))
