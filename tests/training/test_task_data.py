"""Batches of users' data: by step number, for any number of hosts and workers, reproducibly."""

import itertools
import random
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from jaxsr.errors import InputError
from jaxsr.training.item_arrays import to_array
from jaxsr.training.task_batches import step_batches, validation_batches
from jaxsr.training.task_data import TaskData


class Noisy(Dataset):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict:
        drawn = [torch.rand(()).item(), np.random.rand(), random.random()]
        return {"index": index, "noise": np.array(drawn)}


OFFSET = 0


class Shifted(Dataset):
    """Reads a global, which another process has as it is imported."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict:
        return {"index": index + OFFSET}


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(5):
            yield {"index": index, "noise": torch.rand(2)}


def open_data(source, **options):
    return TaskData.open(source, name="MyTask.train_data", **options)


def take(data, count, *, start=0, **options):
    options = {"batch": 4, **options}
    with step_batches(data, start_step=start, **options) as batches:
        return list(itertools.islice(batches, count))


def assert_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("source", [Noisy(), Stream()], ids=["items", "stream"])
def test_hosts_and_restarts_see_the_same(source):
    data = open_data(source, seed=3)
    batches = take(data, 6)
    assert_equal(take(data, 3, start=3), batches[3:])
    halves = [take(data, 6, host=host, hosts=2) for host in range(2)]
    joined = [
        {name: np.concatenate([one[name], two[name]]) for name in one}
        for one, two in zip(*halves, strict=True)
    ]
    assert_equal(joined, batches)


def test_epochs_are_fresh_permutations_with_fresh_noise():
    batches = take(open_data(Noisy()), 5, batch=10)
    orders = [batch["index"].tolist() for batch in batches]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    noise = np.concatenate([batch["noise"] for batch in batches])
    assert len(np.unique(noise)) == noise.size
    assert take(open_data(Noisy()), 1, batch=10, shuffle=False)[0]["index"].tolist() == list(
        range(10)
    )


def test_the_process_keeps_its_own_random_numbers():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(()), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    take(open_data(Noisy()), 2)
    take(open_data(Stream()), 2)
    assert (torch.rand(()), np.random.rand(), random.random()) == expected


def test_workers_make_the_same_batches():
    pytest.importorskip("grain", reason="the extra data is not installed")
    data = open_data(Noisy(), seed=5)
    assert_equal(take(data, 5, start=2, workers=2), take(data, 5, start=2))


class Failing(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise OSError(f"cannot read {index}.png")


def test_a_negative_length_is_refused():
    class Negative(Noisy):
        def __len__(self):
            return self.least - 1

        least = 0

    with pytest.raises(InputError, match=r"data without a length \(__len__\(\) should return >= 0"):
        open_data(Negative())


def test_an_iterator_that_ends_within_an_item_is_named():
    class Ends(Dataset):
        def __init__(self):
            self.lines = iter([1, 2])

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return next(self.lines)

    with pytest.raises(
        InputError, match=r"item \d raised StopIteration \(test_ta.*has ended; make"
    ):
        take(open_data(Ends()), 1)


def test_exit_within_an_item_is_an_error():
    class Leaving(Failing):
        def __getitem__(self, index):
            raise SystemExit

    with pytest.raises(InputError, match=r"item \d failed: SystemExit: SystemExit \(test_ta"):
        take(open_data(Leaving()), 1)


@pytest.mark.slow
def test_an_error_in_a_worker_is_one_line():
    pytest.importorskip("grain", reason="the extra data is not installed")
    with pytest.raises(InputError, match=r"item \d failed: OSError: cannot read \d.png \(test_ta"):
        take(open_data(Failing()), 1, workers=1)


def test_data_that_read_other_values_in_workers_say_so(caplog):
    pytest.importorskip("grain", reason="the extra data is not installed")
    take(open_data(Noisy()), 2, workers=1)
    assert not caplog.records
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.training.test_task_data.OFFSET", 5)  # as train_data would
        take(open_data(Shifted()), 2, workers=1)
    (line,) = caplog.messages
    assert "first batch of a worker differs from that of this process" in line


def test_what_cannot_be_sent_to_workers_says_so():
    pytest.importorskip("grain", reason="the extra data is not installed")
    data = open_data([1, 2, 3, 4])
    data.source.append(threading.Lock())
    with pytest.raises(InputError, match="cannot be sent to worker processes"):
        take(data, 1, workers=1)
    with pytest.raises(InputError, match="--workers 1 needs data with a length"):
        take(open_data(Stream()), 1, workers=1)


def test_without_grain_workers_are_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "grain", None)
    with pytest.raises(InputError, match=r"--workers 2 needs Grain .*; pip install"):
        take(open_data(Noisy()), 1, workers=2)


def test_grains_own_datasets():
    grain = pytest.importorskip("grain", reason="the extra data is not installed")
    source = grain.MapDataset.source(list(range(6))).seed(1)
    drawn = source.random_map(lambda value, rng: {"v": value, "noise": rng.random()})
    first, second = take(open_data(drawn), 2, batch=6)
    assert sorted(first["v"].tolist()) == sorted(second["v"].tolist()) == list(range(6))
    assert len(np.unique([first["noise"], second["noise"]])) == 12  # another epoch, other noise
    ahead = take(open_data(drawn, threads=2), 2, batch=6)
    assert_equal(ahead, [first, second])
    with pytest.raises(InputError, match="leave repeat"):
        open_data(source.repeat())


def test_hugging_face_tables():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    table = datasets.Dataset.from_dict(
        {"ids": [[1, 2], [3, 4], [5, 6], [7, 8]], "label": [0, 1] * 2}
    )
    batch = take(open_data(table), 1, shuffle=False)[0]
    np.testing.assert_array_equal(batch["ids"], [[1, 2], [3, 4], [5, 6], [7, 8]])
    assert batch["label"].dtype == np.int32
    with pytest.raises(InputError, match="choose one split"):
        open_data(datasets.DatasetDict({"train": table}))
    text = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"]})
    with pytest.raises(InputError, match=r"item 0: 'text' is .*, not numbers"):
        take(open_data(text), 1, shuffle=False)


def test_functions_of_the_step():
    def batch_of(step):
        return {"x": np.full((4, 2), step), "noise": torch.rand(4)}

    data = open_data(batch_of)
    batches = take(data, 3, start=5)
    assert batches[0]["x"].tolist() == [[5, 5]] * 4
    second = take(data, 3, start=5, host=1, hosts=2)
    assert_equal(second, [{n: a[2:] for n, a in batch.items()} for batch in batches])
    with pytest.raises(InputError, match=r"gave 'x' of shape \(4, 2\), not 8 rows"):
        take(data, 1, batch=8)
    with pytest.raises(InputError, match="gave a list; a function of the step number returns"):
        take(open_data(lambda step: [1]), 1)
    ends = iter([{"x": np.zeros((4, 2))}])
    with pytest.raises(
        InputError, match=r"ended before step 1, but the run needs more; .* --steps"
    ):
        take(open_data(lambda step: next(ends)), 2)
    with pytest.raises(
        InputError, match=r"for step 1 gave a NoneType; .* for every step of --steps"
    ):
        take(open_data(lambda step: None if step else {"x": np.zeros((4, 2))}), 2)


Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)), ["x", "y"]),
        ([Pair(np.zeros(2), 1)] * 4, ["image", "label"]),
        ({"a": np.zeros((4, 2)), "b": torch.ones(4)}, ["a", "b"]),
        (np.zeros((4, 5)), ["x"]),
    ],
)
def test_names(source, names):
    batch = take(open_data(source), 1)[0]
    assert list(batch) == names
    assert all(len(array) == 4 for array in batch.values())


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1, np.int32, ()),
        (1.5, np.float32, ()),
        (True, np.bool_, ()),
        (np.zeros(2, np.float16), np.float32, (2,)),
        (torch.zeros(2, dtype=torch.bfloat16), np.float32, (2,)),
        (torch.zeros(2, dtype=torch.float64, requires_grad=True), np.float32, (2,)),
        (np.zeros(2, np.uint16), np.int32, (2,)),
        (np.zeros(2, np.uint8), np.uint8, (2,)),
        ([[1, 2]], np.int32, (1, 2)),
        (Image.new("RGB", (5, 4)), np.uint8, (3, 4, 5)),
        (Image.new("L", (5, 4)), np.uint8, (1, 4, 5)),
    ],
)
def test_values_become_arrays(value, dtype, shape):
    array = to_array(value, "it")
    assert (array.dtype, array.shape) == (dtype, shape)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "it is <U4, not numbers"),
        (None, "it is NoneType, not numbers"),
        ([[1], [2, 3]], "it is list, not numbers"),
        (np.zeros(2, np.complex64), "it is complex64, not numbers"),
        (np.array([1.0, np.nan]), "it holds NaN"),
        (2**40, "it holds integers beyond 32 bits"),
    ],
)
def test_values_that_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        to_array(value, "it")


class Short(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return [1.0, 2.0, 3.0][index]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (DataLoader(Noisy()), "returned a DataLoader; return its dataset"),
        (None, "returned None; return a torch Dataset"),
        (Noisy, "returned <class .*; return a torch Dataset"),
        (5, "returned a int; return a torch Dataset"),
        ([], "returned data without an item"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "arrays of different lengths: 'a' 3, 'b' 4"),
        (Short(), "says that it has 8 items, but ends before item 3"),
        (
            [{"x": np.zeros(3)}] * 3 + [{"x": np.zeros(4)}],
            r"item 3 has 'x' of shape \(4,\) .*item 0",
        ),
        ([{"x": 1}] * 3 + [{"z": 1}], "item 3 has z, item 0 has x"),
        ([{"x": 1}] * 3 + [{"x": 1.5}], r"item 3 has 'x' of shape \(\) float32, item 0 .* int32"),
        ([(1, 2, 3)] * 4, "item 0 has 3 parts, but item_names has 2"),
        ([{}] * 4, "item 0 is empty"),
        ([{"x": np.nan}] * 4, "item 0: 'x' holds NaN"),
        ([{"x": 1e200}] * 4, "item 0: 'x' holds numbers beyond 3.4e38"),
        ((item for item in [1.0, 2.0]), "ended after 2 items, but the run needs more"),
        (iter([]), "ended after 0 items"),
    ],
)
def test_data_that_is_refused(source, message):
    with pytest.raises(InputError, match=message):
        take(open_data(source), 1, shuffle=False)


def test_collate():
    def pad(items):
        longest = max(map(len, items))
        return {"tokens": np.stack([np.pad(item, (0, longest - len(item))) for item in items])}

    ragged = [np.ones(n, int) for n in (1, 3, 2, 4)]
    assert take(open_data(ragged, collate=pad), 1)[0]["tokens"].shape == (4, 4)
    for wrong, message in (
        (lambda items: None, "collate must return a dictionary"),
        (lambda items: {"x": np.ones(2)}, r"gave 'x' of shape \(2,\), not 4 rows"),
        (lambda items: items[9], r"collate failed: IndexError.*\(test_task_data.py:\d+\)"),
    ):
        with pytest.raises(InputError, match=message):
            take(open_data(ragged, collate=wrong), 1)


@pytest.mark.parametrize("source", [Noisy(), Stream()], ids=["items", "stream"])
def test_validation_sees_every_item_once_and_the_same_each_time(source):
    data = open_data(source)
    batches = list(validation_batches(data, 4))
    indices = np.concatenate([batch["index"] for batch in batches]).tolist()
    assert indices == list(range(len(indices)))
    assert {len(batch["index"]) for batch in batches} == {4, len(indices) % 4}
    assert_equal(list(validation_batches(data, 4)), batches)


def test_validation_data_that_cannot_be_read_again():
    for source in (iter([1.0]), lambda step: {}):
        with pytest.raises(InputError, match="must be readable from its start"):
            next(validation_batches(open_data(source), 4))
    with pytest.raises(InputError, match="gave no item to validate on"):
        next(validation_batches(open_data(type("E", (), {"__iter__": lambda self: iter(())})()), 4))
