"""Settings of glibc's allocator: keep the memory of freed arrays, in huge pages.

By default glibc returns an array of many megabytes to the system when it is freed. The next one
comes page by page, zeroed, at a cost like that of computing it (benchmarks/ops-diary.md).
"""

import os
import sys

TUNABLES = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.mmap_threshold": 1 << 40,
    "glibc.malloc.trim_threshold": 1 << 40,
    "glibc.malloc.top_pad": 1 << 26,
    # Other arenas than the first cannot hold large arrays, and would ask the system for them.
    "glibc.malloc.arena_max": 1,
}
LEAN = {"glibc.malloc.mmap_threshold": 1 << 26, "glibc.malloc.trim_threshold": 1 << 28}
"""Instead of the above where memory has to stay flat: larger arrays return to the system. A heap
that is kept fragments: restoring 16 megapixels took 2.5 GB at its peak."""
LEAN_COMMANDS = frozenset({"restore"})
SWITCH = "JAXSR_ALLOCATOR"


def with_tunables(environment: dict[str, str], *, command: str = "") -> dict[str, str]:
    """The environment of a process that keeps freed memory; what it sets itself stays.

    Args:
      environment: of this process.
      command: of jaxsr; some of them keep only what is small.
    """
    tunables = TUNABLES | (LEAN if command in LEAN_COMMANDS else {})
    user_settings = [part for part in environment.get("GLIBC_TUNABLES", "").split(":") if part]
    user_names = {part.split("=")[0] for part in user_settings}
    added = [f"{name}={value}" for name, value in tunables.items() if name not in user_names]
    return environment | {"GLIBC_TUNABLES": ":".join(user_settings + added)}


def keep_freed_memory(command: str = "") -> None:
    """Restarts the process with those settings, which glibc reads when a program is loaded.

    Does nothing where they are set already, without glibc, or with `JAXSR_ALLOCATOR=system`. Call
    it first in a program, never in a library.
    """
    environment = with_tunables(dict(os.environ), command=command)
    set_already = environment["GLIBC_TUNABLES"] == os.environ.get("GLIBC_TUNABLES")
    if set_already or os.environ.get(SWITCH) == "system" or not _has_glibc():
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _has_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        return False
