"""Decoded photos kept in host memory up to a number of bytes, and beyond it in a scratch file."""

import logging
import mmap
import os
import tempfile
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.errors import InputError
from jaxsr.interop.out_of_memory import free_memory_bytes

_SHARE_OF_FREE_MEMORY = 0.25  # the rest is for the step, the neighbours and the file cache
_SEGMENT_BYTES = 2**30  # of a scratch file that one mapping covers
_log = logging.getLogger(__name__)


class PixelCache:
    """Arrays by key, bounded in bytes, safe to use from several threads.

    An array that was kept stays. Each epoch visits every photo once in a fresh order, so each photo
    is as likely as any other to be wanted next: evicting one for another gains nothing, and with
    least-recently-used eviction fewer would be found than without any.
    """

    def __init__(
        self, limit_bytes: int | None = None, *, scratch_folder: Path | None = None
    ) -> None:
        """Begins empty.

        Args:
          limit_bytes: bound on the arrays' bytes; None takes a quarter of the free memory.
          scratch_folder: on a local disk; arrays beyond the bound are kept there, as plain pixels,
            of which a crop costs microseconds where decoding its photo costs many milliseconds.
            The file has no name and vanishes with the process, however that ends.

        Raises:
          ValueError: the bound is negative, or no file can be made in the folder.
        """
        if limit_bytes is None:
            limit_bytes = int(_SHARE_OF_FREE_MEMORY * free_memory_bytes())
        if limit_bytes < 0:
            raise InputError(f"cache_bytes must be 0 (keep nothing) or more, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._arrays: dict[Hashable, np.ndarray] = {}
        self._lock = threading.Lock()
        self._scratch = _ScratchFile(scratch_folder) if scratch_folder is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets an empty cache of size 0: the bound is for the whole machine."""
        return PixelCache, (0,)

    def get(self, key: Hashable) -> np.ndarray | None:
        return self._arrays.get(key)

    def keeps(self, key: Hashable, nbytes: int) -> bool:
        """Whether an array of so many bytes is kept, or would be."""
        has_room = self.held_bytes + nbytes <= self.limit_bytes
        return key in self._arrays or has_room or self._scratch is not None

    def keep(self, key: Hashable, array: np.ndarray) -> np.ndarray:
        """Keeps `array`, made read-only, if there is room; returns the array stored for `key`."""
        array.flags.writeable = False
        with self._lock:
            if key in self._arrays:
                return self._arrays[key]
            if self.held_bytes + array.nbytes <= self.limit_bytes:
                self._arrays[key] = array
                self.held_bytes += array.nbytes
            elif self._scratch is not None:
                try:
                    self._arrays[key] = array = self._scratch.put(array)
                except OSError as error:
                    _log.warning("photos not kept so far are decoded anew: %s", error.strerror)
                    self._scratch = None
        return array


class _ScratchFile:
    """Arrays written one behind the other into a file without a name, and mapped for reading."""

    def __init__(self, folder: Path) -> None:
        # Open for as long as this object lives.
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError as error:
            raise InputError(
                f"cannot keep photos in {folder}: {error.strerror}; "
                f"give a folder on a local disk that can be written to"
            ) from error
        self._end = self._used = self._segment_start = 0
        self._segment: mmap.mmap | None = None

    def put(self, array: np.ndarray) -> np.ndarray:
        """Copies `array` to the file and returns a read-only view.

        Raises:
          OSError: the disk is full.
        """
        data = np.ascontiguousarray(array)
        if self._segment is None or self._used + data.nbytes > len(self._segment):
            # Many arrays to a mapping: each mapping holds an open file descriptor.
            length = _SEGMENT_BYTES * -(-data.nbytes // _SEGMENT_BYTES)
            os.ftruncate(self._file.fileno(), self._end + length)  # takes no space on the disk yet
            self._segment = mmap.mmap(
                self._file.fileno(), length, access=mmap.ACCESS_READ, offset=self._end
            )
            self._segment_start, self._used = self._end, 0
            self._end += length
        rest = data.data.cast("B")
        place = self._segment_start + self._used
        while rest:  # written, not copied into the mapping, where a full disk would be a signal
            wrote = os.pwrite(self._file.fileno(), rest, place)
            rest, place = rest[wrote:], place + wrote
        stored = np.frombuffer(self._segment, np.uint8, data.nbytes, self._used)
        self._used += -(-data.nbytes // 64) * 64  # the next one aligned for any dtype
        return stored.view(data.dtype).reshape(array.shape)  # `data` has an axis more than a scalar
