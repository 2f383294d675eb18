"""The position in the data is the step: hosts, threads and restarts must not show in batches."""

import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxsr.data.photos import open_photos
from jaxsr.data.prefetch import (
    BatchStream,
    ReadAgainError,
    filling_paused,
    generators_may_move,
)
from tests.data.photo_batches import train_batches


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i, size in enumerate(
        [(40, 50), (64, 32), (90, 70), (33, 70), (32, 32), (48, 48), (50, 40)]
    ):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return open_photos(folder, crop=32)


def _take(photos, count, **options: Any):
    defaults: dict[str, Any] = {"global_batch": 8, "crop": 32, "seed": 5}
    with train_batches(photos, **defaults | options) as stream:
        return list(islice(stream, count))


def _assert_equal(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.fixture(scope="module")
def reference(photos):
    return _take(photos, 12, threads=1, prefetch=1)


def test_shapes_and_sample_numbers(reference):
    for step, batch in enumerate(reference):
        assert batch["image"].shape == (8, 32, 32, 3) and batch["image"].dtype == np.uint8
        assert batch["sample"].dtype == np.int32
        assert batch["sample"].tolist() == list(range(8 * step, 8 * step + 8))


def test_images_are_the_windows_of_the_photos(photos, reference):
    for batch, places in zip(reference, _take(photos, 12, form="window"), strict=True):
        np.testing.assert_array_equal(batch["sample"], places["sample"])
        for image, (photo, top, left) in zip(batch["image"], places["window"], strict=True):
            want = photos.read(photo)[top : top + 32, left : left + 32]
            np.testing.assert_array_equal(image, want)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_together_have_the_global_batch(photos, reference, hosts):
    parts = [_take(photos, 12, host=host, hosts=hosts) for host in range(hosts)]
    joined = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        for step in zip(*parts, strict=True)
    ]
    _assert_equal(joined, reference)


@pytest.mark.parametrize("start", [1, 5, 11])
def test_restart_at_any_step_twice(photos, reference, start):
    for _ in range(2):
        _assert_equal(_take(photos, 12 - start, start_step=start), reference[start:])


@pytest.mark.parametrize("threads", [1, 2, 7, 16])
@pytest.mark.parametrize("prefetch", [1, 9])
def test_threads_and_prefetch_do_not_show(photos, reference, threads, prefetch):
    _assert_equal(_take(photos, 12, threads=threads, prefetch=prefetch), reference)


def test_the_cache_does_not_show(photos, reference, tmp_path):
    folder = photos.paths[0].parent
    for cache_bytes in (0, 10_000):
        cold = open_photos(folder, crop=32, cache_bytes=cache_bytes)
        assert cold.cache.held_bytes <= cache_bytes
        _assert_equal(_take(cold, 12), reference)
    _assert_equal(_take(open_photos(folder, crop=32, check="header"), 12), reference)
    disk = open_photos(folder, crop=32, cache_bytes=10_000, scratch_folder=tmp_path)
    _assert_equal(_take(disk, 12), reference)


@pytest.mark.parametrize("crops_per_photo", [1, 4])
def test_an_epoch_smaller_than_the_batch_wraps(photos, crops_per_photo):
    batches = _take(photos, 7, form="window", global_batch=40, crops_per_photo=crops_per_photo)
    photo = np.concatenate([batch["window"][:, 0] for batch in batches])
    epoch = 7 * crops_per_photo
    for start in range(0, len(photo) - epoch + 1, epoch):
        counts = np.bincount(photo[start : start + epoch], minlength=7)
        assert counts.tolist() == [crops_per_photo] * 7


def test_a_file_that_disappears_is_named_and_stops_the_threads(photos, tmp_path):
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "a.png")
    mine = open_photos(tmp_path, crop=32, cache_bytes=0)
    stream = train_batches(mine, global_batch=2, crop=32, seed=0, prefetch=1)
    next(stream)
    (tmp_path / "a.png").unlink()
    with pytest.raises(RuntimeError, match=r"a\.png was readable .* no such file .*resume"):
        for _ in range(5):
            next(stream)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_threads_end_with_the_block(photos):
    _take(photos, 3, threads=4)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_no_thread_fills_while_filling_is_paused():
    filled = threading.Event()

    class Samples:
        def begin(self, first, count):
            return {"x": np.zeros(count)}, lambda rows: filled.set()

    with BatchStream(Samples(), global_batch=2) as stream:
        with filling_paused():
            taking = threading.Thread(target=next, args=(stream,))
            taking.start()
            assert not filled.wait(0.2)
        assert filled.wait(60)
        taking.join()


def test_a_batch_that_may_have_drawn_is_filled_again_once_no_other_block_may():
    attempts: list[str] = []
    began = threading.Event()

    class Samples:
        def begin(self, first, count):
            return {"x": np.zeros(count)}, self.fill

        def fill(self, rows):
            attempts.append(where)
            began.set()
            if where == "in a step":
                raise ReadAgainError

    where = "in a step"
    with BatchStream(Samples(), global_batch=2, prefetch=0, threads=1) as stream:
        with generators_may_move():
            taking = threading.Thread(target=next, args=(stream,))
            taking.start()
            assert began.wait(60)
            with filling_paused():  # as a trace within the step does
                pass
            where = "after it"
        taking.join(60)
        assert attempts == ["in a step", "after it"]
        where = "in a step"
        with pytest.raises(ReadAgainError):
            next(stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 9, "hosts": 2}, "global_batch=9 cannot be split over hosts=2"),
        ({"global_batch": 0}, "positive multiple"),
        ({"host": 2, "hosts": 2}, "host=2, hosts=2"),
        ({"start_step": -1}, "start_step must be 0 or more"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"prefetch": -1}, "prefetch must be 0 or more"),
        ({"crop": 33}, "least side 32 px, got 33"),
        ({"form": "jpeg"}, "form must be"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_arguments_are_checked_before_the_first_batch(photos, options: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        train_batches(photos, **dict[str, Any](global_batch=8, crop=32, seed=0) | options)


def test_sample_numbers_end_loudly(photos):
    with (
        train_batches(
            photos, global_batch=2**20, crop=32, seed=0, start_step=2**11, form="window"
        ) as stream,
        pytest.raises(ValueError, match="32-bit sample numbers"),
    ):
        next(stream)
