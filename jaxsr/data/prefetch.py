"""An endless iterator of a host's batches, by step number, filled by threads that work ahead.

A `Samples` object makes a batch: from the numbers of its samples in the run, it makes the arrays,
and a function that fills some of their rows. `sample` is added, int32 (b), these numbers.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np

from jaxsr.data.photos import available_cpus
from jaxsr.errors import InputError

HostBatch = dict[str, np.ndarray]
Fill = Callable[[np.ndarray], None]
"""Fills the rows of these numbers."""


@runtime_checkable
class Samples(Protocol):
    """Data by the sample's number; one that has a `close` is closed with its stream.

    After an interrupt `abandon` is called instead, which waits for nothing.
    """

    def begin(self, first: int, count: int) -> tuple[HostBatch, Fill | None]:
        """Arrays of `count` samples from `first` on, and a function that fills them, or None."""
        ...


def sample_rows(first: int, count: int) -> np.ndarray:
    """The entry `sample` of a batch.

    Raises:
      InputError: there are no more numbers.
    """
    if first + count > _MOST_SAMPLES:
        raise InputError(
            f"sample {first} and its batch reach {_MOST_SAMPLES}, where 32-bit sample numbers "
            f"end; start a new run from these weights"
        )
    return np.arange(first, first + count, dtype=np.int32)


_MOST_SAMPLES = 2**31  # sample numbers are int32 on the device
_MOST_THREADS = 16


class ReadAgainError(InputError):
    """Data may have drawn from the process's generators, or another thread did meanwhile."""


class _Gate:
    """Lets threads fill batches, but not while a block of another thread runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._filling = self._pauses = self._alone = self._moving = 0

    def fill(self, fill: Fill, rows: np.ndarray) -> None:
        try:
            self._fill(fill, rows, alone=False)
        except ReadAgainError:
            self._fill(fill, rows, alone=True)

    def _fill(self, fill: Fill, rows: np.ndarray, *, alone: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not (self._pauses or (alone and self._moving)))
            self._filling, self._alone = self._filling + 1, self._alone + alone
        try:
            fill(rows)
        finally:
            with self._changed:
                self._filling, self._alone = self._filling - 1, self._alone - alone
                self._changed.notify_all()

    @contextmanager
    def paused(self) -> Generator[None]:
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: not self._filling)
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    @contextmanager
    def moving(self) -> Generator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._moving += 1
        try:
            yield
        finally:
            with self._changed:
                self._moving -= 1
                self._changed.notify_all()


_GATE = _Gate()

filling_paused = _GATE.paused
"""A block in which no thread fills a batch: a trace would see changes that data make in Python."""
generators_may_move = _GATE.moving
"""A block that may draw from the process's generators, or set them; a batch that may have drawn is
filled again outside such blocks."""


class BatchStream:
    """Iterates without end; `close` or the end of a `with` block stops its threads."""

    def __init__(
        self,
        samples: Samples,
        *,
        global_batch: int,
        start_step: int = 0,
        host: int = 0,
        hosts: int = 1,
        threads: int | None = None,
        prefetch: int = 4,
        numbered: bool = True,
    ) -> None:
        """Checks the arguments; threads start with the first batch that has something to fill.

        Host h of n has rows `h · b/n` to `(h + 1) · b/n - 1` of the global batch of b.

        Args:
          samples: makes the arrays.
          global_batch: samples per step over all hosts, a multiple of `hosts`.
          start_step: the first step to yield: a resumed run passes the step it stopped at.
          host, hosts: this host's number, and how many there are.
          threads: threads that fill. Default: one per CPU, at most 16.
          prefetch: batches prepared ahead of the one in use.
          numbered: whether batches have `sample`.

        Raises:
          ValueError: an argument is out of range.
        """
        if hosts < 1 or not 0 <= host < hosts:
            raise InputError(
                f"host must be between 0 and hosts - 1, got host={host}, hosts={hosts}"
            )
        if global_batch < 1 or global_batch % hosts:
            raise InputError(
                f"global_batch={global_batch} cannot be split over hosts={hosts}; "
                f"use a positive multiple of {hosts}"
            )
        if start_step < 0:
            raise InputError(f"start_step must be 0 or more, got start_step={start_step}")
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, got threads={threads}")
        if prefetch < 0:
            raise InputError(f"prefetch must be 0 or more batches, got prefetch={prefetch}")
        self._samples, self._numbered = samples, numbered
        self._rows = global_batch // hosts
        self._first = start_step * global_batch + host * self._rows
        self._stride = global_batch
        threads = threads or min(available_cpus(), _MOST_THREADS)
        self._parts = np.array_split(np.arange(self._rows), min(threads, self._rows))
        self._pool = ThreadPoolExecutor(threads, "batches")
        self._ahead: deque[tuple[HostBatch, list[Future[None]]]] = deque()
        self._prefetch = prefetch

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> HostBatch:
        while len(self._ahead) <= self._prefetch:
            self._begin()
        batch, work = self._ahead.popleft()
        try:
            for part in work:
                part.result()
        except Exception:
            self.close()
            raise
        return batch

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._pool.shutdown(wait=False, cancel_futures=True)  # they may read without end
            getattr(self._samples, "abandon", lambda: None)()
        else:
            self.close()

    def close(self) -> None:
        """Stops the threads once they finish their current reads; no batch comes after this."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        getattr(self._samples, "close", lambda: None)()

    def _begin(self) -> None:
        """Hands the next batch to the threads."""
        first = self._first
        self._first += self._stride
        batch, fill = self._samples.begin(first, self._rows)
        if self._numbered:
            batch["sample"] = sample_rows(first, self._rows)
        work = []
        if fill is not None:
            work = [self._pool.submit(_GATE.fill, fill, part) for part in self._parts]
        self._ahead.append((batch, work))
