"""Batches loaded ahead by worker processes, through Grain.

The processes are spawned, never forked: JAX runs threads, which a forked child would lack.
Therefore the data and the task's `collate` are pickled (by cloudpickle), and modules of the current
folder are imported anew. Worker w of n makes the batches of steps w, w + n, …; Grain puts them in
order. The content of a step's batch does not depend on n.
"""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from typing import Any

import jax
import numpy as np

from jaxsr.data.prefetch import HostBatch
from jaxsr.errors import InputError, UserError, one_line
from jaxsr.interop.install import install_extra

log = logging.getLogger(__name__)

_AHEAD = 2
"""Batches that each worker makes ahead."""


@dataclass(frozen=True)
class _Steps:
    """A source from a step on. Its errors are values: exceptions change type between processes."""

    source: Any
    start: int

    def __len__(self) -> int:
        return len(self.source) - self.start

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.source[self.start + int(index)]
        except UserError as error:
            return {"error": str(error)}


class Workers:
    """Batches of `source[start]`, `source[start + 1]`, …, made in this order by other processes."""

    def __init__(self, source: Any, *, start: int, workers: int) -> None:
        """Args:
          source: picklable; its items are batches.
          start: index of the first batch.
          workers: number of processes, at least 1.

        Raises:
          InputError: Grain is not installed, or the source cannot be pickled.
        """
        try:
            import cloudpickle
            import grain
            from absl import flags
        except ImportError as error:
            raise InputError(
                f"--workers {workers} needs Grain ({error}); {install_extra('data')}, or use "
                "--workers 0"
            ) from error
        try:
            cloudpickle.dumps(source)
        except Exception as error:
            raise InputError(
                f"the data cannot be sent to worker processes ({type(error).__name__}: "
                f"{one_line(error)}); open files in __getitem__ instead of __init__, or use "
                "--workers 0"
            ) from error
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain reads absl's flags, which this program never
            # parses
        batches = (
            grain.MapDataset.source(_Steps(source, start))
            # Threads would share the random generators that are seeded for each item.
            .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
            .mp_prefetch(
                grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_AHEAD),
                worker_init_fn=_begin,
            )
        )
        self._first_of_this_process: Callable[[], Any] | None = lambda: source[start]
        self._others = {*multiprocessing.active_children()}
        self._batches: Any = iter(batches)

    def begin(self, first: int, count: int) -> tuple[HostBatch, None]:
        """Returns the next batch; see `jaxsr.data.prefetch.Samples`."""
        try:
            batch = next(self._batches)
        except UserError:
            raise
        except Exception as error:
            raise InputError(
                f"a worker process failed: {type(error).__name__}: {one_line(error)}; "
                "--workers 0 shows where"
            ) from error
        if isinstance(batch.get("error"), str):
            raise InputError(batch["error"])
        if self._first_of_this_process is not None:
            _warn_of_difference(batch, self._first_of_this_process())
            self._first_of_this_process = None
        return batch, None

    def close(self) -> None:
        """Ends the processes."""
        self._batches.close()

    def abandon(self) -> None:
        """Kills the processes: Grain waits for each that reads, when its iterator is dropped."""
        for process in {*multiprocessing.active_children()} - self._others:
            process.kill()
        # Frees the shared memory; a queue that a killed process was writing to may have no end.
        closing = threading.Thread(target=self.close, daemon=True)
        closing.start()
        closing.join(timeout=2)


def _warn_of_difference(batch: HostBatch, expected: HostBatch) -> None:
    """Warns where a worker's batch is not that of this process."""
    pairs = zip(jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True)
    if not all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in pairs):
        log.warning(
            "the first batch of a worker differs from that of this process: the data read what "
            "train_data set in globals or classes, which workers have as they are imported, or "
            "count, or draw from a generator without a seed; --workers 0 trains on other batches"
        )


def _begin(worker: int, workers: int) -> None:
    """Prepares a worker: one thread for torch, no terminal signals, and exit when its parent dies.

    A parent that is killed cannot tell its workers to stop.
    """
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
