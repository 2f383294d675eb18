"""Out-of-memory errors of XLA and torch as one sentence: requested, free, and a size that fits.

XLA has one error type, and a text for each allocator: CPUs and GPUs report the request, TPUs also
the free memory, and the TPU compiler the need of a whole program. Nothing here imports JAX or
torch: an error of theirs shows that they are loaded.
"""

import contextlib
import os
import re
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsr.interop.errors import DeviceError

LESS_MEMORY = "use a smaller batch, --accumulate, --remat, bfloat16, or more devices"
"""For training steps."""

_UNITS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_SIZE = r"([\d.]+) ?(?:([KMGTPE]?)i?B?|bytes)"
_PROGRAM = re.compile(rf"Used {_SIZE} of {_SIZE} (\w+)")
_ASKED = re.compile(
    rf"(?:trying to allocate|[Oo]ut of memory allocating|Attempting to (?:allocate|reserve)"
    rf"|Tried to allocate|Unable to allocate) {_SIZE}"
)
_FREE = re.compile(rf"(?:There are {_SIZE} free|of which {_SIZE} is free)")
_CGROUP = Path("/sys/fs/cgroup")


class OutOfMemoryError(DeviceError):
    """A device has too little memory for a program or its arrays."""


@dataclass(frozen=True)
class Shortage:
    """Figures of an error, in bytes."""

    asked: int | None
    """At once, or by a whole program."""
    free: int | None
    """Bytes that exist, where the text says so."""
    memory: str = ""
    """Kind of memory that the compiler names."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether XLA or torch raised it for want of memory on a device, or NumPy on the host."""
    if isinstance(error, MemoryError):
        return True
    kind = type(error).__name__
    if kind in ("JaxRuntimeError", "XlaRuntimeError"):
        return "RESOURCE_EXHAUSTED" in str(error)
    return kind == "OutOfMemoryError" and not isinstance(error, DeviceError)


def read_shortage(text: str) -> Shortage:
    """Sizes in the text of an error."""
    text = " ".join(text.split())
    if program := _PROGRAM.search(text):
        return Shortage(_bytes(*program.groups()[:2]), _bytes(*program.groups()[2:4]), program[5])
    asked, free = _ASKED.search(text), _FREE.search(text)
    sizes = [part for part in (free.groups() if free else ()) if part is not None]
    return Shortage(
        _bytes(*asked.groups()) if asked else None,
        _bytes(sizes[0], sizes[1] if len(sizes) > 1 else "") if sizes else None,
    )


def _bytes(number: str, unit: str | None) -> int:
    return int(float(number) * 1024 ** _UNITS[unit or ""])


def out_of_memory_error(
    error: BaseException,
    *,
    rows: int | None = None,
    multiple: int = 1,
    option: str = "--batch",
    advice: str = LESS_MEMORY,
) -> OutOfMemoryError | None:
    """The error in one line; None where it is of another kind.

    Args:
      error: of XLA or torch.
      rows: in the batch that was computed. The request is nearly proportional to it.
      multiple: rows that fit must be a multiple of it.
      option: that sets the rows.
      advice: other ways to take less memory.
    """
    if not is_out_of_memory(error):
        return None
    shortage = read_shortage(str(error))
    free = shortage.free if shortage.free is not None else _free_memory()
    if shortage.asked is None:
        return OutOfMemoryError(f"out of memory ({' '.join(str(error).split())[:200]}); {advice}")
    text = f"out of memory: {_shown(shortage.asked)} are asked for at once"
    if shortage.memory and free is not None:
        asked = _shown(shortage.asked)
        text = f"out of memory: the program needs {asked} of {_shown(free)} of {shortage.memory}"
    elif free is not None:
        text += f", {_shown(free)} are free"
    if rows is not None and free is not None and free < shortage.asked:
        fitting = int(rows * free / shortage.asked) // multiple * multiple
        if fitting:
            text += f"; {option} {fitting} instead of {rows} may fit"
    return OutOfMemoryError(f"{text}; {advice}")


def _free_memory() -> int | None:
    """Bytes that JAX's first device, or on a CPU the machine, has left."""
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return free_memory_bytes()
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats or "bytes_in_use" not in stats:
        return None
    return stats["bytes_limit"] - stats["bytes_in_use"]


def free_memory_bytes() -> int:
    """Bytes that this process could still take, of the machine's or of its container's.

    The cache of files counts as free, as in MemAvailable: Linux gives its pages to processes.
    """
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    for prefix, limit, used, total in (
        ("memory.", "max", "current", ""),
        ("memory/memory.", "limit_in_bytes", "usage_in_bytes", "total_"),
    ):
        bound, taken, stat = (_CGROUP / f"{prefix}{name}" for name in (limit, used, "stat"))
        if not (bound.exists() and taken.exists()) or bound.read_text().strip() == "max":
            continue
        lines = stat.read_text().splitlines() if stat.exists() else ()  # of an emulated kernel
        sizes = {name: int(size) for name, size in map(str.split, lines)}
        cached = sum(sizes.get(f"{total}{kind}_file", 0) for kind in ("inactive", "active"))
        free = min(free, int(bound.read_text()) - int(taken.read_text()) + cached)
    return max(free, 0)


def check_fits(least_bytes: int, what: str, *, advice: str = LESS_MEMORY) -> None:
    """Refuses arrays beyond the machine's memory before they are allocated.

    Linux grants memory that it does not have, and ends the process that uses it.

    Args:
      least_bytes: of host memory that are needed at least.
      what: name of the arrays that need them, in the plural.
      advice: what takes less.

    Raises:
      OutOfMemoryError: less is free.
    """
    free = free_memory_bytes()
    if least_bytes > free:
        raise OutOfMemoryError(
            f"{what} need at least {_shown(least_bytes)} of memory, and {_shown(free)} are free; "
            f"{advice}"
        )


def check_program_fits(
    compiled: Any, devices: Sequence[Any], what: str, *, advice: str = LESS_MEMORY
) -> None:
    """Refuses a program for the CPU whose values the machine's memory cannot hold.

    Other devices say so themselves, and end no process.

    Args:
      compiled: by `jax.jit(f).lower(...).compile()`. Its arguments are in memory already. If
        `jax.jit(f)` gets the same arguments afterwards, this program runs.
      devices: of this machine that run it; simulated ones have values of their own.
      what: name of its results, in the plural.
      advice: what takes less.

    Raises:
      OutOfMemoryError: less memory is free.
    """
    sizes = compiled.memory_analysis() if devices[0].platform == "cpu" else None
    if sizes is not None:
        results = max(sizes.output_size_in_bytes - sizes.alias_size_in_bytes, 0)
        check_fits(len(devices) * (sizes.temp_size_in_bytes + results), what, advice=advice)


def _shown(size: int) -> str:
    gib = size / 2**30
    return f"{gib:.2f} GiB" if gib >= 0.1 else f"{size / 2**20:.1f} MiB"


@contextlib.contextmanager
def naming_out_of_memory(
    *,
    rows: int | None = None,
    multiple: int = 1,
    option: str = "--batch",
    advice: str = LESS_MEMORY,
) -> Generator[None]:
    """Makes out-of-memory errors inside it one line; see `out_of_memory_error`.

    Raises:
      OutOfMemoryError: XLA or torch ran out of memory.
    """
    try:
        yield
    except Exception as error:
        named = out_of_memory_error(
            error, rows=rows, multiple=multiple, option=option, advice=advice
        )
        if named is None:
            raise
        raise named from error
