"""The allocator of the process: arrays that are freed and made again, without asking the system.

glibc returns a large array to the system when it is freed. The next one comes page by page, zeroed,
which costs as much as resizing an image does. Importing `jaxsr.ops` does not change that.
"""

import ctypes
import sys

# mallopt(3): parameters of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_SETTINGS = {
    # Other arenas than the first cannot hold large arrays, and would ask the system for them.
    _ARENA_MAX: 1,
    _MMAP_THRESHOLD: 1 << 30,
    _TRIM_THRESHOLD: (1 << 31) - 1,
    _TOP_PAD: 1 << 26,
}


def keep_freed_memory() -> bool:
    """Has the process keep the memory of freed arrays, for the next ones.

    Call it in a program, before the first use of JAX: threads that run already keep their
    arenas. It needs no restart, and up to 2 GB stay with the process.

    Returns:
      Whether the process has an allocator with these settings: glibc's, on Linux.

    Example:
      >>> from jaxsr import ops
      >>> isinstance(ops.keep_freed_memory(), bool)
      True
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*setting) for setting in _SETTINGS.items())
