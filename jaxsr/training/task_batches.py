"""Batches of a user's data by step number, and those of a validation.

The position in the data is the step number. Sample `s` of a run (step · batch + row) is item
`order(s)`. Each epoch is a fresh permutation, for any number of hosts and workers and after any
restart. Every host makes the rows of its own devices, but reads an iterable in whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsr.data.prefetch import BatchStream, Fill, HostBatch, Samples
from jaxsr.data.sampler import shuffled
from jaxsr.errors import InputError
from jaxsr.training.generators import preserved_generators, seed_generators
from jaxsr.training.task_data import TaskData
from jaxsr.training.user_code import located

_AHEAD = 4
"""Batches that threads make ahead."""
_END = object()


@dataclass(frozen=True, kw_only=True)
class StepBatches:
    """This host's rows of every step's batch, by step; a random access source for Grain."""

    data: TaskData
    batch: int
    """Rows of the global batch."""
    host: int
    hosts: int
    shuffle: bool

    def __len__(self) -> int:
        return 2**31

    def begin(self, first: int, count: int) -> tuple[HostBatch, Fill | None]:
        """See `jaxsr.data.prefetch.Samples`."""
        step = first // self.batch
        if not self.data.threads:
            with preserved_generators():
                return self[step], None
        if self.data.kind == "steps" or self.data.collate is not None:
            batch: HostBatch = {}
            return batch, lambda rows: batch.update(self[step])
        numbers = self._numbers(first, count)
        if self.data.resident:
            return {"index": numbers[:, 0].astype(np.int32)}, None
        return self.data.fixed(numbers)

    def _numbers(self, first: int, count: int) -> np.ndarray:
        data = self.data
        assert data.length is not None
        return sample_numbers(
            first, count, length=data.length, seed=data.seed, shuffle=self.shuffle
        )

    def __getitem__(self, step: int) -> HostBatch:
        rows = self.batch // self.hosts
        data = self.data
        if data.kind == "steps":
            batch = data.of_step(step)
            _check_rows(batch, self.batch, f"{data.name} for step {step}")
            host_rows = slice(self.host * rows, (self.host + 1) * rows)
            return {name: array[host_rows] for name, array in batch.items()}
        first = step * self.batch + self.host * rows
        samples = self._numbers(first, rows)
        items = [data.item(int(index), int(epoch)) for index, epoch in samples]
        batch = data.batch(items, samples[:, 0].tolist(), first)
        _check_rows(batch, rows, f"collate of {data.name}")
        return batch


def sample_numbers(first: int, count: int, *, length: int, seed: int, shuffle: bool) -> np.ndarray:
    """Returns index and epoch of samples `first` to `first + count - 1`: int64 (count, 2)."""
    if shuffle:
        return shuffled(first, count, length=length, seed=seed)
    numbers = np.arange(first, first + count, dtype=np.int64)
    return np.stack([numbers % length, numbers // length], axis=1)


def _check_rows(batch: HostBatch, rows: int, where: str) -> None:
    for name, array in batch.items():
        if array.ndim == 0 or len(array) != rows:
            raise InputError(
                f"{where} gave {name!r} of shape {array.shape}, not {rows} rows; make its first "
                "axis that of the samples, or set --batch"
            )


def step_batches(
    data: TaskData,
    *,
    batch: int,
    start_step: int,
    host: int = 0,
    hosts: int = 1,
    shuffle: bool = True,
    workers: int = 0,
    prefetch: int | None = None,
    numbered: bool = False,
) -> BatchStream:
    """Returns this host's rows of the batches of `start_step` and all later steps.

    Args:
      data: the user's data.
      batch: rows of the global batch, a multiple of `hosts`.
      start_step: the first step to yield.
      host, hosts: this host's number, and the number of hosts.
      shuffle: whether each epoch is a fresh permutation of the items.
      workers: processes that work ahead; 0 loads between steps. An iterable allows none.
      prefetch: batches that threads make ahead. Default: 4, if there are threads.
      numbered: whether batches have `sample`, the numbers of their samples in the run.

    Raises:
      InputError: workers are requested and Grain is missing, or the data cannot be sent to them.
    """
    source = StepBatches(data=data, batch=batch, host=host, hosts=hosts, shuffle=shuffle)
    samples: Samples = data.source if data.kind == "samples" else source
    ahead = data.kind == "samples" or (data.threads and not data.resident)
    if data.kind == "stream":
        samples = _Stream(data, start_step * batch, batch)
    if workers:
        if data.kind == "samples":
            raise InputError(
                f"{data.name} makes its batches in threads, not in processes; use --workers 0"
            )
        if data.kind == "stream":
            raise InputError(
                f"--workers {workers} needs data with a length; {data.name} returned an iterable, "
                "which only one process can read"
            )
        from jaxsr.training.data_workers import Workers

        samples = Workers(source, start=start_step, workers=workers)
    return BatchStream(
        samples,
        global_batch=batch,
        start_step=start_step,
        host=host,
        hosts=hosts,
        threads=data.threads or None,
        prefetch=(_AHEAD if prefetch is None else prefetch) if ahead else 0,
        numbered=numbered,
    )


class _Stream:
    """An iterable: every host reads every item, and keeps its own rows."""

    def __init__(self, data: TaskData, skip: int, batch: int) -> None:
        self._data, self._batch, self._read = data, batch, skip
        with preserved_generators():
            self._items = data.endless_items(skip)

    def begin(self, first: int, count: int) -> tuple[HostBatch, None]:
        with preserved_generators():
            taken = [next(self._items) for _ in range(self._batch)]
            rows = taken[first - self._read :][:count]
            self._read += self._batch
            return self._data.batch(rows, range(first, first + count), first), None


def validation_batches(data: TaskData, batch: int) -> Iterator[HostBatch]:
    """Yields every item once, in order; the last batch may be smaller.

    Raises:
      InputError: the data has no end, or can be read only once.
    """
    read_once = data.kind == "stream" and isinstance(data.source, Iterator)
    if data.kind in ("steps", "samples") or read_once:
        raise InputError(
            f"{data.name} must be readable from its start to its end at every validation; return "
            "data with a length, or a class with __iter__"
        )
    numbers = range(data.length) if data.length is not None else None
    items = (data.item(i) for i in numbers) if numbers is not None else data.iterator(0)
    first, ended = 0, False
    while not ended:
        with preserved_generators():
            taken: list[Any] = []
            while len(taken) < batch and not ended:
                seed_generators(data.seed, 0, first + len(taken))
                with located(f"{data.name}: item {first + len(taken)}"):
                    item = next(items, _END)
                if item is _END:
                    ended = True
                else:
                    taken.append(item)
            made = data.batch(taken, range(first, first + len(taken)), first) if taken else None
        if made is not None:
            _check_rows(made, len(taken), f"collate of {data.name}")
            yield made
        first += len(taken)
    if not first:
        raise InputError(f"{data.name} gave no item to validate on")
