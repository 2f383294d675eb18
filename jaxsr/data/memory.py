"""Decoded photos kept in host memory, up to a number of bytes."""

import os
import threading
from collections.abc import Hashable
from pathlib import Path

import numpy as np

_SHARE_OF_FREE_MEMORY = (
    0.25  # the rest is for the process itself, its neighbours and the file cache
)


class PixelCache:
    """Arrays by key, bounded in bytes, safe to use from several threads.

    What was kept once stays. Each epoch visits every photo once in a fresh order, so each photo is
    as likely as any other to be wanted next: evicting one for another gains nothing, and with
    least-recently-used eviction fewer would be found than without any.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: bound on the arrays' bytes; None takes a quarter of the free memory."""
        if limit_bytes is None:
            limit_bytes = int(_SHARE_OF_FREE_MEMORY * free_memory_bytes())
        if limit_bytes < 0:
            raise ValueError(f"cache_bytes must be 0 (keep nothing) or more, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._arrays: dict[Hashable, np.ndarray] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> np.ndarray | None:
        return self._arrays.get(key)

    def keep(self, key: Hashable, array: np.ndarray) -> np.ndarray:
        """Keeps `array` if there is room, makes it read-only, returns what stands under `key`."""
        array.flags.writeable = False
        with self._lock:
            if key in self._arrays:
                return self._arrays[key]
            if self.held_bytes + array.nbytes <= self.limit_bytes:
                self._arrays[key] = array
                self.held_bytes += array.nbytes
        return array


def free_memory_bytes() -> int:
    """Bytes that this process could still take, of the machine's or of its container's."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        (group / "memory.max", group / "memory.current"),
        (group / "memory/memory.limit_in_bytes", group / "memory/memory.usage_in_bytes"),
    ):
        if limit.exists() and used.exists() and limit.read_text().strip() != "max":
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)
