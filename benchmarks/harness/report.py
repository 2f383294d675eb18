"""What all benchmarks share: the command line, and one schema for results (see README.md)."""

import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
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


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Of every benchmark with results."""

    out: Path | None = None
    """JSON to write. Default: only printed."""


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
    """Of the processor, as NumPy names it: X86_V3 has AVX2, X86_V4 also AVX-512; kernels differ."""
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


def run_benchmark(measure: Callable[[OptionsT], None], options_class: type[OptionsT]) -> NoReturn:
    """Runs the program `python -m benchmarks.NAME`; user errors are one line and exit status 2."""
    program = sys.modules["__main__"].__spec__
    name = program.name.removesuffix(".__main__") if program else "benchmarks"
    summary = (sys.modules[measure.__module__].__doc__ or "").split("\n\n")[0]

    def command(arguments: list[str]) -> None:
        prog = f"python -m {name}"
        measure(parse_options(options_class, arguments, prog=prog, description=summary))

    sys.exit(run_command(command))
