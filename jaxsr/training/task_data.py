"""Batches of a user's data: items by number, or in their own order, as arrays under names.

Items by number have `__len__` and `__getitem__`: torch's `Dataset`, Grain's sources, a Hugging Face
table, a list. A mapping of arrays is a table of items. A function of the step number returns the
global batch. An iterable of items (torch's `IterableDataset`, a generator) is read forward only: a
resumed run reads and drops what it has trained on.

The position in the data is the step number. Sample `s` of a run (step · batch + row) is item
`order(s)`, each epoch in a fresh permutation, for any number of hosts and workers and after any
restart. Before an item is read, the global random generators of `random`, NumPy and torch are
seeded from the run's seed, the epoch and the item's index. So what a dataset draws from them
depends on nothing else.

Batches hold what torch's `DataLoader` would give, in NumPy: float32, integers, bool; torch's int64
becomes int32 on the way to the device, and int64 again in the loss.
"""

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch

from jaxsr.data.sampler import shuffled
from jaxsr.errors import InputError, one_line
from jaxsr.models.user_files import place_of
from jaxsr.training.item_arrays import to_array
from jaxsr.training.user_code import located

HostBatch = dict[str, np.ndarray]
Collate = Callable[[list[Any]], Any]
Kind = Literal["items", "steps", "stream"]

_END = object()
_BATCH = 2**32 - 1
"""Stands for an item's index where a whole batch is seeded."""


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A user's data, of whatever kind."""

    source: Any
    """What the task's method returned."""
    name: str
    """The method, for errors: `Denoising.train_data`."""
    kind: Kind
    length: int | None
    """Items of an epoch; None where that is not known."""
    item_names: Sequence[str] = ("x", "y")
    """Names of an item's parts where it is a tuple."""
    collate: Collate | None = None
    """From a list of items to a batch. Default: fields are stacked."""
    seed: int = 0

    @classmethod
    def open(cls, source: Any, *, name: str, **options: Any) -> Self:
        """Finds out what kind of data this is.

        Args:
          source: see the module's docstring.
          name: for errors.
          **options: further fields.

        Raises:
          InputError: it is none of these, or empty.
        """
        if isinstance(source, torch.utils.data.DataLoader):
            raise InputError(
                f"{name} returned a DataLoader; return its dataset: --batch, --workers, --shuffle "
                "and --seed are options of the run"
            )
        if isinstance(source, Mapping):
            source = _Table(source, name)
        sized = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        if isinstance(source, type) or source is None:
            raise InputError(f"{name} returned {source!r}; {_ACCEPTED}")
        if sized:
            length = _length(source, name)
            return cls(source=source, name=name, kind="items", length=length, **options)
        if hasattr(source, "__iter__"):
            return cls(source=source, name=name, kind="stream", length=None, **options)
        if callable(source):
            return cls(source=source, name=name, kind="steps", length=None, **options)
        raise InputError(f"{name} returned a {type(source).__name__}; {_ACCEPTED}")

    def item(self, index: int, epoch: int = 0) -> Any:
        """One item, as the data gives it, with everything seeded.

        Raises:
          InputError: the data cannot give it.
        """
        with located(f"{self.name}: item {index}"):
            _seed(self.seed, epoch, index)
            try:
                # Grain's datasets draw and shuffle anew where the number is beyond their length.
                many = type(self.source).__module__.startswith("grain.")
                beyond = epoch * (self.length or 0) if many else 0
                return self.source[index + beyond]
            except StopIteration as error:
                raise InputError(
                    f"{self.name}: item {index} raised StopIteration ({place_of(error)}): an "
                    "iterator that it reads has ended; make one for each item, or return data with "
                    "__iter__ alone, which is read in its own order"
                ) from error
            except IndexError as error:
                raise InputError(
                    f"{self.name} says that it has {self.length} items, but ends before item "
                    f"{index} ({one_line(error)}); correct its __len__"
                ) from error

    def batch(self, items: list[Any], numbers: Sequence[int], stream: int) -> HostBatch:
        """A batch of these items.

        Args:
          items: at least one, as the data gave them.
          numbers: theirs, for errors.
          stream: what the random generators are seeded with before `collate`.

        Raises:
          InputError: they do not fit one another, or hold what cannot be an array.
        """
        if self.collate is not None:
            _seed(self.seed, stream, _BATCH)
            with located(f"{self.name}: collate"):
                batch = self.collate(items)
            if not isinstance(batch, Mapping) or not batch:
                raise InputError(
                    f"collate must return a dictionary of arrays, got {type(batch).__name__}"
                )
            return {str(n): to_array(v, f"collate's {n!r}") for n, v in batch.items()}
        rows = [self.fields(item, number) for item, number in zip(items, numbers, strict=True)]
        for row, number in zip(rows, numbers, strict=True):
            self._check_alike(rows[0], row, numbers[0], number)
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def fields(self, item: Any, number: int) -> HostBatch:
        """An item's parts as arrays, by name."""
        if isinstance(item, Mapping):
            named = dict(item)
        elif isinstance(item, tuple | list):
            names = getattr(item, "_fields", self.item_names)
            if len(names) != len(item):
                raise InputError(
                    f"{self.name}: item {number} has {len(item)} parts, but item_names has "
                    f"{len(names)} ({', '.join(names)}); set item_names in the task, or return "
                    "dictionaries"
                )
            named = dict(zip(names, item, strict=True))
        else:
            named = {self.item_names[0]: item}
        if not named:
            raise InputError(f"{self.name}: item {number} is empty")
        return {str(n): to_array(v, f"{self.name}: item {number}: {n!r}") for n, v in named.items()}

    def _check_alike(self, first: HostBatch, other: HostBatch, one: int, two: int) -> None:
        if first.keys() != other.keys():
            raise InputError(
                f"{self.name}: item {two} has {', '.join(other)}, item {one} has "
                f"{', '.join(first)}; make them equal"
            )
        for name, array in other.items():
            if (array.shape, array.dtype) != (first[name].shape, first[name].dtype):
                raise InputError(
                    f"{self.name}: item {two} has {name!r} of {_form(array)}, item {one} of "
                    f"{_form(first[name])}; make them equal in the dataset, or give the task a "
                    "collate"
                )

    def first(self) -> HostBatch:
        """A batch of one item, or the first batch of a function: what all others look like."""
        with preserved_generators():
            if self.kind == "steps":
                return self.of_step(0)
            if self.kind == "items":
                return self.batch([self.item(0)], [0], 0)
            if iter(self.source) is self.source:
                return {}  # looking at it would take an item away
            return self.batch([next(_items(self, 0))], [0], 0)

    def of_step(self, step: int) -> HostBatch:
        """The global batch that a function gives for a step."""
        with located(f"{self.name} for step {step}"):
            _seed(self.seed, step, _BATCH)
            try:
                batch = self.source(step)
            except StopIteration as error:
                raise InputError(
                    f"{self.name} ended before step {step}, but the run needs more; return a batch "
                    "for every step, or give fewer --steps"
                ) from error
        if not isinstance(batch, Mapping) or not batch:
            raise InputError(
                f"{self.name} for step {step} gave a {type(batch).__name__}; a function of the "
                "step number returns a dictionary of arrays, a row for each sample, for every "
                "step of --steps"
            )
        return {
            str(n): to_array(v, f"{self.name} for step {step}: {n!r}") for n, v in batch.items()
        }


_ACCEPTED = (
    "return a torch Dataset, a Grain source, a Hugging Face table, a dictionary of arrays, an "
    "iterable of items, or a function of the step number"
)


class _Table:
    """Arrays of one length as items."""

    def __init__(self, columns: Mapping[Any, Any], name: str) -> None:
        lengths = {}
        for column, values in columns.items():
            if not (hasattr(values, "dtype") and hasattr(values, "__getitem__")):
                raise InputError(
                    f"{name} returned a dictionary whose {column!r} is a {type(values).__name__}, "
                    "not an array; choose one split of it, or make it a Dataset"
                )
            lengths[column] = len(values)
        if len({*lengths.values()}) > 1:
            listed = ", ".join(f"{column!r} {length}" for column, length in lengths.items())
            raise InputError(f"{name} returned arrays of different lengths: {listed}")
        self._columns, self._length = dict(columns), next(iter(lengths.values()), 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[Any, Any]:
        return {name: values[index] for name, values in self._columns.items()}


def _length(source: Any, name: str) -> int:
    try:
        length = len(source)
    except (TypeError, ValueError, NotImplementedError) as error:  # a ValueError: below 0
        raise InputError(f"{name} returned data without a length ({one_line(error)})") from error
    if length == 0:
        option = "--val" if name.endswith("validation_data") else "--data"
        raise InputError(f"{name} returned data without an item; check what {option} names")
    if length >= 2**40:
        raise InputError(f"{name} returned data that repeats itself; leave repeat() out")
    return length


def _form(array: np.ndarray) -> str:
    return f"shape {array.shape} {array.dtype}"


def _seed(seed: int, epoch: int, index: int) -> None:
    """Seeds the global generators; NumPy promises SeedSequence to stay as it is."""
    words = np.random.SeedSequence([seed, epoch, index]).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.default_generator.manual_seed(int(words[2]) << 32 | int(words[3]))


@contextmanager
def preserved_generators() -> Generator[None]:
    """Leaves the global generators as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


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
        items = _items(data, start_step * batch)
    step = start_step
    while True:
        with preserved_generators():
            taken = [next(items) for _ in range(batch)]
            first = step * batch + host * rows
            numbers = range(first, first + rows)
            made = data.batch(taken[host * rows : (host + 1) * rows], numbers, first)
        yield made
        step += 1


def _items(data: TaskData, skip: int) -> Iterator[Any]:
    """Items of an iterable without end: it starts again where it ends, if it can."""
    number, epoch, count = 0, 0, 0
    iterator = _iterator(data, epoch)
    while True:
        _seed(data.seed, epoch, count)
        with located(f"{data.name}: item {number}"):
            item = next(iterator, _END)
        if item is _END:
            repeatable = not isinstance(data.source, Iterator)
            if count == 0 or not repeatable:
                raise InputError(
                    f"{data.name} ended after {number} items, but the run needs more; return an "
                    "iterable that can be read again (a class with __iter__), or fewer --steps"
                )
            epoch, count = epoch + 1, 0
            iterator = _iterator(data, epoch)
            continue
        if number >= skip:
            yield item
        number, count = number + 1, count + 1


def _iterator(data: TaskData, epoch: int) -> Iterator[Any]:
    _seed(data.seed, epoch, _BATCH)
    with located(data.name):
        return iter(data.source)


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
    items = (data.item(i) for i in numbers) if numbers is not None else _iterator(data, 0)
    first, ended = 0, False
    while not ended:
        with preserved_generators():
            taken: list[Any] = []
            while len(taken) < batch and not ended:
                _seed(data.seed, 0, first + len(taken))
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


def describe(batch: Mapping[str, np.ndarray], *, samples: bool) -> str:
    """Names, shapes and dtypes of a batch, without its first axis where it is that of samples."""
    axes = slice(1, None) if samples else slice(None)
    return ", ".join(f"{n} {a.dtype} {a.shape[axes]}" for n, a in batch.items())
