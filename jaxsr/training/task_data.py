"""A user's data: items by number, or in their own order, as arrays under names.

Items by number have `__len__` and `__getitem__`: torch's `Dataset`, Grain's sources, a Hugging Face
table, a list. A mapping of arrays is a table of items. A function of the step number returns the
global batch. An object with `begin` (`jaxsr.data.prefetch.Samples`) makes the arrays of samples by
their numbers in the run, which threads fill ahead of the step. An iterable of items (torch's
`IterableDataset`, a generator) is read forward only: a resumed run reads and drops the items that
it was trained on.

Before an item is read, the global random generators of `random`, NumPy and torch are seeded from
the run's seed, the epoch and the item's index. So the draws of a dataset depend on nothing else.
Items that are `fixed` draw nothing: several threads read them, and they may stay in memory or on
the device. `task_batches` decides which items a batch has.

Batches have the values that torch's `DataLoader` would give, in NumPy: float32, integers, bool.
Torch's int64 becomes int32 on the way to the device, and int64 again in the loss.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch

from jaxsr.data.host_cache import PixelCache
from jaxsr.data.prefetch import Fill, HostBatch, Samples
from jaxsr.errors import InputError, one_line
from jaxsr.models.user_files import place_of
from jaxsr.training.config import CacheOptions
from jaxsr.training.generators import (
    preserved_generators,
    read_without_draws,
    seed_generators,
)
from jaxsr.training.item_arrays import to_array
from jaxsr.training.user_code import located

Collate = Callable[[list], Any]
Kind = Literal["items", "steps", "samples", "stream"]

_END = object()
_BATCH = 2**32 - 1
"""Replaces an item's index where a whole batch is seeded."""


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A user's data of any kind."""

    source: Any
    """The value that the task's method returned."""
    name: str
    """Name of the method, for errors: `Denoising.train_data`."""
    kind: Kind
    length: int | None
    """Items of an epoch; None if unknown."""
    item_names: Sequence[str] = ("x", "y")
    """Names of an item's parts if it is a tuple."""
    collate: Collate | None = None
    """Joins a list of items into a batch. Default: fields are stacked."""
    seed: int = 0
    threads: int = 0
    """Threads that read items ahead of the step, and draw nothing from the process's generators. 0:
    items are read between steps, with all generators seeded."""
    cache: PixelCache | None = None
    """With `threads`: where items stay after they are read."""
    resident: bool = False
    """With `threads`: all items are on the device, and batches have their numbers."""

    @classmethod
    def open(cls, source: Any, *, name: str, **options: Any) -> Self:
        """Recognises the kind of the data.

        Args:
          source: see the module's docstring.
          name: name for errors.
          **options: further fields.

        Raises:
          InputError: the kind is unknown, or the data is empty.
        """
        if isinstance(source, torch.utils.data.DataLoader):
            raise InputError(
                f"{name} returned a DataLoader; return its dataset: --batch, --workers, --shuffle "
                "and --seed are options of the run"
            )
        if isinstance(source, Mapping):
            source = _Table(source, name)
        if isinstance(source, Samples) and not isinstance(source, type):
            length = len(source) if isinstance(source, Sized) else None
            return cls(source=source, name=name, kind="samples", length=length, **options)
        by_number = not isinstance(source, torch.utils.data.IterableDataset)
        sized = hasattr(source, "__len__") and hasattr(source, "__getitem__") and by_number
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
        """Reads one item as the data returns it, with all generators seeded.

        Raises:
          InputError: the data cannot return it.
        """
        with located(f"{self.name}: item {index}"):
            if not self.threads:
                seed_generators(self.seed, epoch, index)
            try:
                # Grain's datasets shuffle again and repeat when the number is beyond their length.
                many = type(self.source).__module__.startswith("grain.")
                beyond = epoch * (self.length or 0) if many else 0
                return self._read_source(lambda: self.source[index + beyond])
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

    def batch(self, items: list, numbers: Sequence[int], stream: int) -> HostBatch:
        """Makes a batch of these items.

        Args:
          items: at least one, as the data returned them.
          numbers: their numbers, for errors.
          stream: seed of the random generators before `collate`.

        Raises:
          InputError: the items do not match, or contain something that cannot be an array.
        """
        if self.collate is not None:
            if not self.threads:
                seed_generators(self.seed, stream, _BATCH)
            with located(f"{self.name}: collate"):
                batch = self._read_source(functools.partial(self.collate, items))
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
        """Returns an item's parts as arrays, by name."""
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
        """Returns a batch of one item, or a function's first batch, as an example of all others."""
        with preserved_generators():
            if self.kind == "steps":
                return self.of_step(0)
            if self.kind == "samples":
                batch, fill = self.source.begin(0, 1)
                if fill is not None:
                    fill(np.arange(1))
                return batch
            if self.kind == "items":
                return self.batch([self.item(0)], [0], 0)
            if iter(self.source) is self.source:
                return {}  # inspecting it would consume an item
            return self.batch([next(self.endless_items(0))], [0], 0)

    @functools.cached_property
    def form(self) -> HostBatch:
        """Returns the first item's arrays, (1, …): all `fixed` items have the same form."""
        return self.first()

    def kept(self, cache: str, config: CacheOptions) -> Self:
        """Returns the same items, kept once they are read.

        Args:
          cache: `auto`, `device` or `host`.
          config: says how much may be kept.

        Raises:
          InputError: the items differ in form, or must go on the device and do not fit.
        """
        if self.kind != "items" or self.collate is not None:
            raise InputError(
                f"cache={cache} is for items by number that fit one another, which {self.name} "
                "does not have; use --cache off"
            )
        data = self.threaded(f"cache={cache}")
        if cache != "host" and data.fits_device(config.resident_gb, required=cache == "device"):
            return replace(data, resident=True)
        cached = PixelCache(config.cache_bytes, scratch_folder=config.scratch)
        return replace(data, cache=cached)

    def threaded(self, option: str) -> Self:
        """Returns the same data, read by a thread ahead of the step.

        Args:
          option: the option that asks for it, for errors.

        Raises:
          InputError: the data have no position by number, or draw from the process's generators,
            which the thread would share with the step.
        """
        if self.kind not in ("items", "steps"):
            raise InputError(
                f"{option} is for items by number and functions of the step, which {self.name} "
                "does not return; leave it out"
            )
        data = replace(self, threads=1)
        with located(self.name), preserved_generators():
            data.of_step(0) if self.kind == "steps" else data.item(0)
        return data

    def _read_source(self, read: Callable[[], Any]) -> Any:
        return read_without_draws(read, self.name) if self.threads else read()

    def fits_device(self, resident_gb: float, *, required: bool = False) -> bool:
        """Whether all items fit in so many GiB, by the size of the first one.

        Raises:
          InputError: they must fit, and do not.
        """
        needed = (self.length or 0) * sum(a.nbytes for a in self.form.values()) / 2**30
        if required and needed > resident_gb:
            raise InputError(
                f"cache=device needs {needed:.2f} GiB for {self.name}, more than "
                f"resident_gb={resident_gb}; raise --resident-gb, or use --cache host"
            )
        return needed <= resident_gb

    def fixed(self, numbers: np.ndarray) -> tuple[HostBatch, Fill]:
        """Returns arrays for items, and a function that fills rows of them.

        Any thread may call the function.

        Args:
          numbers: index and epoch of each, int (n, 2). Items that a cache keeps are those of the
            first epoch.
        """
        shapes = {n: ((len(numbers), *a.shape[1:]), a.dtype) for n, a in self.form.items()}
        batch = {name: np.empty(*shape) for name, shape in shapes.items()}

        def fill(rows: np.ndarray) -> None:
            for row in rows:
                for name, array in self._read(*numbers[row].tolist()).items():
                    batch[name][row] = array

        return batch, fill

    def _read(self, index: int, epoch: int) -> HostBatch:
        """Reads an item's arrays, from memory or else from the source."""
        cache = self.cache
        if cache is not None:
            kept = {name: cache.get((index, name)) for name in self.form}
            if all(array is not None for array in kept.values()):
                return kept  # type: ignore[return-value]
        fields = self.fields(self.item(index, 0 if cache is not None else epoch), index)
        self._check_alike({n: a[0] for n, a in self.form.items()}, fields, 0, index)
        if cache is not None:
            fields = {n: cache.keep((index, n), np.array(a)) for n, a in fields.items()}
        return fields

    def columns(self) -> HostBatch:
        """Returns all items as arrays, with the items along the first axis."""
        assert self.length is not None
        indices = np.arange(self.length)
        batch, fill = self.fixed(np.stack([indices, np.zeros_like(indices)], axis=1))
        parts = np.array_split(np.arange(self.length), min(self.length, 8 * self.threads))
        with ThreadPoolExecutor(self.threads, "resident-items") as pool:
            list(pool.map(fill, parts))
        return batch

    def of_step(self, step: int) -> HostBatch:
        """Returns the global batch of a step from a function of the step number."""
        with located(f"{self.name} for step {step}"):
            if not self.threads:
                seed_generators(self.seed, step, _BATCH)
            try:
                batch = self._read_source(lambda: self.source(step))
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

    def endless_items(self, skip: int) -> Iterator[Any]:
        """Yields items of an iterable without end: at its end it starts again, if it can.

        Args:
          skip: number of first items to read and drop.

        Raises:
          InputError: the iterable ends, and can be read only once.
        """
        number, epoch, count = 0, 0, 0
        iterator = self.iterator(epoch)
        while True:
            seed_generators(self.seed, epoch, count)
            with located(f"{self.name}: item {number}"):
                item = next(iterator, _END)
            if item is _END:
                repeatable = not isinstance(self.source, Iterator)
                if count == 0 or not repeatable:
                    raise InputError(
                        f"{self.name} ended after {number} items, but the run needs more; return "
                        "an iterable that can be read again (a class with __iter__), or fewer "
                        "--steps"
                    )
                epoch, count = epoch + 1, 0
                iterator = self.iterator(epoch)
                continue
            if number >= skip:
                yield item
            number, count = number + 1, count + 1

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Iterates over an iterable's items, from its start to its end."""
        seed_generators(self.seed, epoch, _BATCH)
        with located(self.name):
            return iter(self.source)


_ACCEPTED = (
    "return a torch Dataset, a Grain source, a Hugging Face table, a dictionary of arrays, an "
    "iterable of items, or a function of the step number"
)


class _Table:
    """Arrays of one length as items."""

    def __init__(self, columns: Mapping, name: str) -> None:
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

    def __getitem__(self, index: int) -> dict:
        return {name: values[index] for name, values in self._columns.items()}


def _length(source: Any, name: str) -> int:
    try:
        length = len(source)
    except (TypeError, ValueError, NotImplementedError) as error:  # a ValueError: below 0
        raise InputError(f"{name} returned data without a length ({one_line(error)})") from error
    if length == 0:
        option = "--val" if name.endswith("validation_data") else "--data"
        raise InputError(f"{name} returned data without an item; check {option}")
    if length >= 2**40:
        raise InputError(f"{name} returned data that repeats itself; leave repeat() out")
    return length


def _form(array: np.ndarray) -> str:
    return f"shape {array.shape} {array.dtype}"


def describe(batch: Mapping[str, np.ndarray], *, samples: bool) -> str:
    """Lists names, shapes and dtypes of a batch, without its first axis if that is the samples'."""
    axes = slice(1, None) if samples else slice(None)
    return ", ".join(f"{n} {a.dtype} {a.shape[axes]}" for n, a in batch.items())
