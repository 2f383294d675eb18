"""Published weights in `python -m jaxsr.restore`: JAX beside torch, from the command to the file.

For each architecture, with random weights of its own class saved as `.pth`: seconds from the
command until the first picture is there (nothing compiled before, nothing remembered), processor
seconds and peak memory of the process, and how far the two pictures differ, in levels of 255. The
picture has 16 bits, and so have the results: one step of the file is 0.0039. `--table` and
`--table --small` print the tables of docs/models.md.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.harness.report import RESULTS, Report, Row, TableOptions, read_rows, run_benchmark
from benchmarks.harness.tables import markdown
from tests.oracles.restorers import NETWORKS, options_of, own_class, save

RECORD = RESULTS / "published_weights.json"
Engine = Literal["jax", "torch"]


@dataclass(frozen=True, kw_only=True)
class Options(TableOptions):
    """Options of the run."""

    only: tuple[str, ...] = tuple(NETWORKS)
    """Networks to restore with."""
    small: bool = False
    """Their small sizes."""
    size: str = "128x96"
    """WIDTHxHEIGHT of the picture."""
    words: tuple[str, ...] = ()
    """Further words for the command, such as --tiling=approximate."""
    engines: tuple[Engine, ...] = ("jax", "torch")
    """Who restores."""
    longest_s: float = 600.0
    """A command that takes more is killed."""
    out: Path | None = RECORD
    """JSON of the figures."""


def noise(options: Options, path: Path) -> None:
    """Writes the 16-bit picture, smooth noise."""
    import cv2

    width, height = map(int, options.size.split("x"))
    coarse = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    pixels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(path), pixels.astype(np.uint16) * 257)


def restore(words: list[str], folder: Path, longest_s: float) -> Row:
    """One command in a process of its own: status, seconds, memory and what it said."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    with open(folder / "log", "wb") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "jaxsr.restore", *words],
            env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() - began > longest_s:
                process.kill()
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
    log = (folder / "log").read_text(errors="replace").replace(f"{folder}{os.sep}", "")
    lines = log.strip().split("\n")
    return {
        "exit": process.returncode,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "said": [line for line in lines if line.startswith("note:")] or lines[-1:],
    }


def compare(options: Options, name: str, folder: Path) -> Row:
    """The row of one architecture."""
    import cv2

    weights = folder / "net.pth"
    row: Row = {"network": name, "small": options.small, "size": options.size,
                "words": " ".join(options.words),
                "parameters": save(name, weights, small=options.small)}  # fmt: skip
    model = ["--model", str(weights)]
    if spec := own_class(name):
        sizes = json.dumps(options_of(name, small=options.small))
        model = ["--model", spec, "--weights", str(weights), "--model-options", sizes]
    results: dict[str, np.ndarray] = {}
    for engine in options.engines:
        place = folder / engine
        place.mkdir()
        words = [str(folder / "in.png"), "--out", str(place / "out"), "--engine", engine]
        row[engine] = restore([*words, *model, *options.words], place, options.longest_s)
        result = cv2.imread(str(place / "out" / "in.png"), cv2.IMREAD_UNCHANGED)
        if result is not None:
            results[engine] = result.astype(np.float64) / 257
    if results:
        one = next(iter(results.values()))
        row["saturated"] = round(float(((one <= 0) | (one >= 255)).mean()), 3)
        row["spread"] = round(float(one.std()), 1)
    if len(results) == 2:
        row["difference"] = round(float(np.abs(results["jax"] - results["torch"]).max()), 4)
    return row


def measure(options: Options) -> None:
    """Restores with one architecture after another."""
    report = Report("published_weights", options, key=("network", "small", "size", "words"))
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            noise(options, Path(folder) / "in.png")
            row = compare(options, name, Path(folder))
        report.show(row)


def page_table(options: Options) -> list[str]:
    """The table of docs/models.md that the options name."""
    rows = read_rows(options.out)
    return small_table(rows) if options.small else table(rows)


def table(rows: list[Row]) -> list[str]:
    """A line of Markdown for each network of the published size, in the order of `NETWORKS`."""
    titles = "CPU seconds, JAX", "torch", "peak MiB, JAX", "torch", "difference"
    lines = []
    for row in _listed(rows, small=False):
        jax, torch = row["jax"], row["torch"]
        lines.append((
            row["network"], f"{row['parameters'] / 1e6:.1f} M", f"{jax['cpu_s']:.0f}",
            f"{torch['cpu_s']:.0f}", f"{jax['peak_mib']:,}", f"{torch['peak_mib']:,}",
            _difference(row),
        ))  # fmt: skip
    return markdown(("network", "parameters", *titles), lines)


def small_table(rows: list[Row]) -> list[str]:
    """The same of small sizes, for which memory and seconds say little."""
    small = _listed(rows, small=True)
    lines = [(row["network"], f"{row['parameters']:,}", _difference(row)) for row in small]
    return markdown(("network", "parameters", "difference"), lines)


def _listed(rows: list[Row], *, small: bool) -> list[Row]:
    of_size = [row for row in rows if row["small"] is small and not row["words"]]
    by_name = {row["network"]: row for row in of_size}
    return [by_name[name] for name in NETWORKS if name in by_name]


def _difference(row: Row) -> str:
    """Between the two pictures, or what the command that failed said."""
    failed = [run["said"][-1] for run in (row["jax"], row["torch"]) if run["exit"]]
    return failed[0] if failed else str(row["difference"])


if __name__ == "__main__":
    run_benchmark(measure, Options, table=page_table)
