"""Settings of glibc's allocator: keep the memory of freed arrays, in huge pages.

By default glibc returns an array of many megabytes to the system when it is freed. The system gives
the next array zeroed, page by page, which costs as much as computing it (benchmarks/ops-diary.md).
"""

import ctypes
import functools
import os
import sys
import threading

TUNABLES = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.mmap_threshold": 1 << 40,
    "glibc.malloc.trim_threshold": 1 << 40,
    "glibc.malloc.top_pad": 1 << 26,
    # Only the first arena can hold large arrays; the others would ask the system for them.
    "glibc.malloc.arena_max": 1,
}
OF_COMMAND = {
    # Larger arrays are returned to the system. A heap that is never returned fragments: restoring
    # 16 megapixels took 2.5 GB at its peak.
    "restore": {"glibc.malloc.mmap_threshold": 1 << 26, "glibc.malloc.trim_threshold": 1 << 28},
    # All intermediate results of a step are one array. The space of the last one is a few bytes too
    # small for it as soon as another array is stored next to it: MSHNet's 0.8 GB took four such
    # spaces after ten steps.
    "train": {"glibc.malloc.mmap_threshold": 1 << 26},
}
"""Settings of some commands."""
SWITCH = "JAXSR_ALLOCATOR"


def with_tunables(environment: dict[str, str], *, command: str = "") -> dict[str, str]:
    """Returns the environment of a process that keeps freed memory; its own settings stay.

    Args:
      environment: that of this process.
      command: command of jaxsr; some have settings of their own.
    """
    tunables = TUNABLES | OF_COMMAND.get(command, {})
    user_settings = [part for part in environment.get("GLIBC_TUNABLES", "").split(":") if part]
    user_names = {part.split("=")[0] for part in user_settings}
    added = [f"{name}={value}" for name, value in tunables.items() if name not in user_names]
    return environment | {"GLIBC_TUNABLES": ":".join(user_settings + added)}


def keep_freed_memory(command: str = "") -> None:
    """Restarts the process with those settings, which glibc reads when a program is loaded.

    Does nothing if they are set already, without glibc, with `JAXSR_ALLOCATOR=system`, or if a
    restart would lose something: a debugger, a profiler, or a script from standard input. Call it
    first in a program, never in a library.
    """
    environment = with_tunables(dict(os.environ), command=command)
    set_already = environment["GLIBC_TUNABLES"] == os.environ.get("GLIBC_TUNABLES")
    if set_already or os.environ.get(SWITCH) == "system" or not _has_glibc() or not _can_restart():
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def release_freed_memory() -> None:
    """Returns free memory in glibc's heap to the system."""
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def release_memory_of_compilers() -> None:
    """From now on returns memory that XLA's compiler has freed after each long compilation.

    A large training step takes a gigabyte to compile, which the heap would otherwise keep.
    """
    if not _has_glibc():
        return
    import jax

    trim = ctypes.CDLL(None).malloc_trim

    def after_compiling(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and duration_secs > _LONG_S:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(after_compiling)


_LONG_S = 1.0


def _can_restart() -> bool:
    """Whether the process runs this program alone, and its command line can run it again."""
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    watched = monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6))
    if watched or sys.gettrace() or sys.getprofile() or sys.flags.interactive or sys.flags.inspect:
        return False
    return threading.active_count() == 1 and _runs_program(sys.orig_argv[1:], sys.argv[1:])


def _runs_program(words: list[str], arguments: list[str]) -> bool:
    """Whether the interpreter's words run a module, code or the installed command, and no other.

    A debugger (`-m pdb -m jaxsr.train`) has further words; a script from standard input has none.
    """
    *flags, target = words[: len(words) - len(arguments)] or [""]
    if flags and flags[-1].startswith("-") and flags[-1].endswith(("m", "c")):
        flags.pop()
    elif os.path.basename(target) != "jaxsr":
        return False
    before = ["", *flags]
    return all(w.startswith("-") or b in ("-W", "-X") for b, w in zip(before, flags, strict=False))


def _has_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        return False
