"""Batches of a user's data by step number, and those of a validation.

The position in the data is the step number. Sample `s` of a run (step · batch + row) is item
`order(s)`, each epoch in a fresh permutation, for any number of hosts and workers and after any
restart. Every host makes the rows of its own devices; an iterable it reads in whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsr.data.sampler import shuffled
from jaxsr.errors import InputError
from jaxsr.training.task_data import HostBatch, TaskData, preserved_generators, seed_generators
from jaxsr.training.user_code import located

_END = object()


@dataclass(frozen=True, kw_only=True)
class StepBatches:
    """This host's rows of every step's batch, by step; Grain's random access source."""

    data: TaskData
    batch: int
    """Rows of the global batch."""
    host: int
    hosts: int
    shuffle: bool

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, step: int) -> HostBatch:
        rows = self.batch // self.hosts
        data = self.data
        if data.kind == "steps":
            batch = data.of_step(step)
            _check_rows(batch, self.batch, f"{data.name} for step {step}")
            host_rows = slice(self.host * rows, (self.host + 1) * rows)
            return {name: array[host_rows] for name, array in batch.items()}
        first = step * self.batch + self.host * rows
        assert data.length is not None
        samples = sample_numbers(
            first, rows, length=data.length, seed=data.seed, shuffle=self.shuffle
        )
        items = [data.item(int(index), int(epoch)) for index, epoch in samples]
        batch = data.batch(items, samples[:, 0].tolist(), first)
        _check_rows(batch, rows, f"collate of {data.name}")
        return batch


def sample_numbers(first: int, count: int, *, length: int, seed: int, shuffle: bool) -> np.ndarray:
    """Index and epoch of samples `first` to `first + count - 1`: int64 (count, 2)."""
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


class BatchIterator:
    """Batches from a step on; leaving the `with` block ends the worker processes."""

    def __init__(self, batches: Iterator[HostBatch], close: Callable[[], None]) -> None:
        self._batches, self._close = batches, close

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        return next(self._batches)

    def __enter__(self) -> Iterator[HostBatch]:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def step_batches(
    data: TaskData,
    *,
    batch: int,
    start_step: int,
    host: int = 0,
    hosts: int = 1,
    shuffle: bool = True,
    workers: int = 0,
) -> BatchIterator:
    """This host's rows of the batches of `start_step` and all later steps.

    Args:
      data: where from.
      batch: rows of the global batch, a multiple of `hosts`.
      start_step: the first step to yield.
      host, hosts: this host's number, and how many there are.
      shuffle: whether each epoch is a fresh permutation of the items.
      workers: processes that work ahead; 0 loads between steps. An iterable is read without.

    Raises:
      InputError: workers are asked for and Grain is missing, or the data cannot be sent to them.
    """
    if data.kind == "stream":
        if workers:
            raise InputError(
                f"--workers {workers} needs data with a length; {data.name} returned an iterable, "
                "which only one process can read"
            )
        return BatchIterator(_stream_batches(data, batch, start_step, host, hosts), lambda: None)
    source = StepBatches(data=data, batch=batch, host=host, hosts=hosts, shuffle=shuffle)
    if workers:
        from jaxsr.training.data_workers import in_workers

        return in_workers(source, start=start_step, workers=workers)

    def load() -> Iterator[HostBatch]:
        for step in range(start_step, len(source)):
            with preserved_generators():
                rows = source[step]
            yield rows

    return BatchIterator(load(), lambda: None)


def _stream_batches(
    data: TaskData, batch: int, start_step: int, host: int, hosts: int
) -> Iterator[HostBatch]:
    """Every host reads every item, and keeps its own rows."""
    rows = batch // hosts
    with preserved_generators():
        items = data.endless_items(start_step * batch)
    step = start_step
    while True:
        with preserved_generators():
            taken = [next(items) for _ in range(batch)]
            first = step * batch + host * rows
            numbers = range(first, first + rows)
            made = data.batch(taken[host * rows : (host + 1) * rows], numbers, first)
        yield made
        step += 1


def validation_batches(data: TaskData, batch: int) -> Iterator[HostBatch]:
    """Every item once, in order; the last batch may be smaller.

    Raises:
      InputError: the data has no end, or can be read only once.
    """
    if data.kind == "steps" or (data.kind == "stream" and isinstance(data.source, Iterator)):
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
