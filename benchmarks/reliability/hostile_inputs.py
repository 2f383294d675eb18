"""Damaged and hostile files of every kind that jaxsr reads: refused in a line, or read.

Small sound files are cut, flipped, or given other counts (`tests/oracles/hostile`), and read one
by one in a process. What is not allowed: another exception than one that a user can correct, a
message of several lines, a crash, more than 10 s, or 2 GiB beyond what the worker had before.
Exit status 1 if any of these happened; the row names the first files, which `--keep` stores.
"""

import hashlib
import os
import random
import resource
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import Child, Ended
from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark
from jaxsr.errors import InputError, UserError
from tests.oracles.hostile.files import KINDS, check_refusal, mutated

MOST_S = 10.0
MOST_BYTES = 2 * 2**30
ALLOWED = ("read", "refused")
_POLL_S = 0.01
_MEMORY_STATUS = 77
_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    inputs: int = 10_000
    """Files in all, as many of each kind."""
    kinds: tuple[str, ...] = tuple(KINDS)
    """Kinds of files."""
    seed: int = 0
    """Seed for the damage."""
    keep: Path | None = None
    """Folder for the files that were not read or refused as they must be."""

    def __post_init__(self) -> None:
        if unknown := set(self.kinds) - set(KINDS):
            raise InputError(f"kinds must be among {', '.join(KINDS)}, got {', '.join(unknown)}")


class _Reader:
    """A process that reads files of a kind, started again when it dies."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._start()

    def _start(self) -> None:
        self._child = Child(reads, (self._kind,))
        self._child.receive()  # its imports are done

    def read(self, path: Path) -> tuple[str, str]:
        """(outcome, reason) of a file."""
        self._child.send(path)
        try:
            return self._child.receive(MOST_S)
        except Ended as end:
            self.close()
            self._start()
            if end.exit_status is None:
                return "too slow", end.reason
            is_memory = end.exit_status == _MEMORY_STATUS
            return ("too much memory", "") if is_memory else ("crash", end.reason)

    def close(self) -> None:
        self._child.kill()


def reads(kind: str) -> Generator[tuple[str, str], Path, None]:
    """In the process: outcomes of the files that it is sent, after one that says that it began."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what decoders print
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    make, read = KINDS[kind]
    folder = Path(tempfile.mkdtemp())
    for name, data in make().items():  # so that no import is counted
        (folder / name).write_bytes(data)
        _outcome(read, folder / name)
    limit = [_resident_bytes() + MOST_BYTES]
    threading.Thread(target=_watch_memory, args=(limit,), daemon=True).start()
    outcome = ("began", "")
    while True:
        path = yield outcome
        limit[0] = _resident_bytes() + MOST_BYTES
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        outcome = _outcome(read, path)
        # Native code may hold the interpreter, and with it the thread that watches.
        if _peak_bytes() > limit[0]:
            outcome = ("too much memory", outcome[1])


def _outcome(read: Any, path: Path) -> tuple[str, str]:
    try:
        read(path)
    except (UserError, OSError) as error:
        try:
            check_refusal(error)
        except AssertionError:
            return "fault", repr(error)[:300]
        return "refused", str(error)[:300]
    except BaseException as error:
        return "fault", repr(error)[:300]
    return "read", ""


def _watch_memory(limit: list[int]) -> None:
    while True:
        if _resident_bytes() > limit[0]:
            os._exit(_MEMORY_STATUS)
        time.sleep(_POLL_S)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def measure_kind(kind: str, count: int, options: Options) -> Row:
    """Reads `count` damaged files of a kind; returns the row."""
    seeds = list(KINDS[kind][0]().items())
    reader = _Reader(kind)
    outcomes: Counter[str] = Counter()
    slowest, wrong = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name, data = seeds[number % len(seeds)]
            seed = f"{options.seed} {kind} {number}".encode()
            rng = random.Random(int.from_bytes(hashlib.sha256(seed).digest()[:8], "big"))
            path = Path(folder) / name
            path.write_bytes(content := mutated(data, rng))
            began = time.perf_counter()
            outcome, reason = reader.read(path)
            slowest = max(slowest, time.perf_counter() - began)
            outcomes[outcome] += 1
            if outcome not in ALLOWED:
                wrong.append(f"{number}-{name}: {outcome} {reason}")
                print(f"{kind} {wrong[-1]}", file=sys.stderr, flush=True)
                if options.keep is not None:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{kind}-{number}-{name}").write_bytes(content)
            path.unlink()
    reader.close()
    return {
        "kind": kind,
        "inputs": count,
        **{name: outcomes[name] for name in ALLOWED},
        "wrong": len(wrong),
        "first_wrong": wrong[:_NAMED],
        "slowest_s": round(slowest, 3),
    }


def measure(options: Options) -> None:
    """Every kind in turn."""
    report = Report("hostile_inputs", options)
    wrong = 0
    for kind in options.kinds:
        row = measure_kind(kind, -(-options.inputs // len(options.kinds)), options)
        report.add(row)
        wrong += row["wrong"]
        print(
            f"{kind:<12} {row['inputs']} inputs: {row['read']} read, {row['refused']} refused, "
            f"{row['wrong']} wrong; slowest {row['slowest_s']} s",
            flush=True,
        )
    if wrong:
        raise InputError(f"{wrong} inputs were not read or refused as they must be")


if __name__ == "__main__":
    run_benchmark(measure, Options)
