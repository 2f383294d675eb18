"""Everything that only a GPU can tell, in one call: parity, speed, memory, runs that are killed.

Each part runs in a process of its own with a bound on its time, and a part that fails leaves its
error. Parts without timing run side by side first. The JSON is written after each row; a later call
with the same `--out` runs what is missing or failed. The page beside it sums up. Parts that need a
GPU say so on a machine without one; there `--device cpu --quick` tries the others.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.gpu import parity, runs, speed
from benchmarks.gpu.page import page
from benchmarks.gpu.parts import Part, Setting, known_gpu
from benchmarks.harness.processes import rows_of_child
from benchmarks.harness.report import Report, ReportOptions, Row, read_rows
from jaxsr.errors import InputError
from jaxsr.interop.atomic_write import atomic_write
from tests.oracles.messages import without_folders

PARTS = (
    Part(name="families", rows=parity.families, timeout_s=180),
    Part(name="forecasts", rows=speed.forecasts, timeout_s=240),
    Part(name="compiled ahead", rows=runs.ahead, timeout_s=240),
    Part(name="deterministic", rows=runs.repeated, timeout_s=180),
    Part(name="killed", rows=runs.killed, timeout_s=240),
    Part(name="rates", rows=speed.rates, timeout_s=90, timed=True),
    Part(name="steps", rows=partial(speed.steps, "fast-srgan"), timeout_s=240, timed=True),
    Part(name="decoding", rows=speed.decoding, timeout_s=120, timed=True),
    Part(name="kernels", rows=speed.kernels, timeout_s=120, timed=True),
    Part(
        name="decoding, peers",
        rows=partial(speed.decoding, peers=True),
        timeout_s=180,
        timed=True,
    ),
    Part(name="restoring", rows=speed.restoring, timeout_s=150, timed=True),
    Part(name="conformance", rows=parity.conformance, timeout_s=240),
    Part(name="zoo", rows=parity.zoo, timeout_s=240),
    Part(name="steps mshnet", rows=partial(speed.steps, "mshnet"), timeout_s=400, timed=True),
)
"""The most valuable first, those without timing before the others where there is time for both."""
_NOT_RUN = "not run"
_LEAST_S = 15.0
"""A part is not begun with less time than this."""
_AT_ONCE = 5
"""Parts without timing that run side by side at most."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where JAX and torch compute."""
    quick: bool = False
    """Small sizes: shows that everything runs, not how fast."""
    minutes: float = 8.5
    """For the whole call; parts that do not fit are left to the next one."""
    part: tuple[str, ...] = ()
    """Only these parts."""
    again: bool = False
    """Run parts once more that `out` has."""
    logs: Path | None = None
    """Folder for what the parts print. Default: nothing is kept."""
    out: Path | None = Path("gpu.json")
    """JSON of the results; the page has the same name and ends in .md."""

    def __post_init__(self) -> None:
        names = [part.name for part in PARTS]
        if unknown := [name for name in self.part if name not in names]:
            raise InputError(f"there is no part {unknown[0]!r}; there are {', '.join(names)}")
        if self.minutes <= 0:
            raise InputError(f"minutes must be positive, got {self.minutes}")


class _Run:
    """One call: which parts are left, how long they may take, and where their rows go."""

    def __init__(self, options: Options, parts: Sequence[Part]) -> None:
        self.options, self.parts = options, parts
        self.until = time.monotonic() + 60 * options.minutes
        self.report = Report(
            "gpu", options, key=("part", "name"), gpu=known_gpu(), device=options.device
        )
        self._lock = threading.Lock()

    def add(self, part: Part, row: Row) -> None:
        """Keeps a row, and says so; several parts do at once."""
        row = {"part": part.name, **row}
        if "reason" in row:
            row["reason"] = without_folders(str(row["reason"]))[:400]
        with self._lock:
            self.report.add(row)
            if self.options.out is not None:
                text = page(read_rows(self.options.out), self.options.device)
                atomic_write(self.options.out.with_suffix(".md"), text.encode())
            print(_line(row), flush=True)

    def run(self, part: Part) -> None:
        """One part in its process, as far as there is time for it."""
        left = self.until - time.monotonic()
        if left < _LEAST_S:
            reason = "no time is left; call again to go on"
            self.add(part, {"name": "", "status": _NOT_RUN, "seconds": 0.0, "reason": reason})
            return
        if part.needs_gpu and self.options.device == "cpu":
            self.add(part, {"name": "", "status": "needs a GPU", "seconds": 0.0})
            return
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting(
                device=self.options.device,
                quick=self.options.quick,
                folder=Path(folder),
                done=self._done(part),
            )
            logs = self.options.logs
            rows = rows_of_child(
                partial(_rows, part, setting),
                timeout_s=min(part.timeout_s, left),
                log=logs / f"{part.name.replace(' ', '-')}.log" if logs else None,
                start="spawn",
            )
            for row in rows:
                seconds = round(time.monotonic() - began, 1)
                ended = {} if "name" in row else {"name": "", "seconds": seconds}
                self.add(part, ended | row)

    def _done(self, part: Part) -> frozenset[str]:
        if self.options.again:
            return frozenset()
        rows = [row for row in read_rows(self.options.out) if row["part"] == part.name]
        return frozenset(row["name"] for row in rows if row["name"] and row.get("ok", True))


def _rows(part: Part, setting: Setting) -> Iterator[Row]:
    """In the part's process."""
    yield from part.rows(setting)


def _line(row: Row) -> str:
    if not row["name"]:
        return f"{row['part']}: {row['status']}, {row['seconds']} s  {row.get('reason', '')}"[:200]
    judged = "" if row.get("ok", True) else "  NOT OK"
    figures = [
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in row.items()
        if isinstance(v, (int, float, str)) and k not in ("part", "name", "ok") and v != ""
    ]
    return f"{row['part']}: {row['name']}{judged}  {', '.join(figures)}"[:240]


def missing_parts(options: Options, rows: Sequence[Row]) -> list[Part]:
    """The parts to run: those that no earlier call has finished, failed ones last."""
    ends = {row["part"]: row["status"] for row in rows if not row["name"]}
    status = {part: end for part, end in ends.items() if end != _NOT_RUN}
    named = [part for part in PARTS if not options.part or part.name in options.part]
    if options.again:
        return named
    left = [part for part in named if status.get(part.name) not in ("ok", "needs a GPU")]
    return sorted(left, key=lambda part: part.name in status)


def measure(options: Options) -> None:
    """Runs the missing parts and writes the results and the page."""
    from jaxsr.runtime.setup import share_gpu_memory

    share_gpu_memory()
    parts = missing_parts(options, read_rows(options.out))
    run = _Run(options, parts)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    at_once = max(min(_AT_ONCE, (os.cpu_count() or 1) // 2), 1)
    for timed, group in _groups(parts):
        with ThreadPoolExecutor(1 if timed else at_once) as pool:
            for result in [pool.submit(run.run, part) for part in group]:
                result.result()
    rows = [row for row in read_rows(options.out) if row["name"]]
    wrong = [row for row in rows if not row.get("ok", True)]
    print(f"{len(rows)} rows, {len(wrong)} not ok; {options.out}")


def _groups(parts: Sequence[Part]) -> Iterator[tuple[bool, list[Part]]]:
    """Neighbours of one kind: timed parts run alone, the others side by side."""
    group: list[Part] = []
    for part in parts:
        if group and part.timed != group[0].timed:
            yield group[0].timed, group
            group = []
        group.append(part)
    if group:
        yield group[0].timed, group
