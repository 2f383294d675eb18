import threading

import numpy as np
import pytest

from jaxsr.data.host_cache import PixelCache
from jaxsr.interop.out_of_memory import free_memory_bytes


def test_the_bound_holds_and_what_is_kept_stays():
    cache = PixelCache(100)
    first = cache.keep("a", np.zeros(60, np.uint8))
    assert cache.get("a") is first and not first.flags.writeable
    over = cache.keep("b", np.ones(60, np.uint8))
    assert over.sum() == 60 and cache.get("b") is None and cache.held_bytes == 60
    cache.keep("c", np.zeros(40, np.uint8))
    assert cache.held_bytes == 100 and cache.get("a") is first


def test_threads_agree_on_one_array_and_never_pass_the_bound():
    cache = PixelCache(50 * 100)
    seen = [[] for _ in range(8)]

    def work(mine):
        for key in range(100):
            mine.append(cache.keep(key, np.full(100, key, np.uint8)))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.held_bytes == 50 * 100
    for key in range(100):
        assert all((mine[key] == key).all() for mine in seen)
        if (cached := cache.get(key)) is not None:
            assert all(mine[key] is cached for mine in seen)


def test_beyond_the_bound_arrays_lie_in_a_nameless_file(tmp_path):
    arrays = [
        np.random.default_rng(k).integers(0, 256, (50 + k, 70, 3), dtype=np.uint8)
        for k in range(20)
    ]
    cache = PixelCache(2 * arrays[2].nbytes, scratch_folder=tmp_path)
    for key, array in enumerate(arrays):
        np.testing.assert_array_equal(cache.keep(key, array.copy()), array)
    assert cache.held_bytes <= cache.limit_bytes
    for key, array in enumerate(arrays):
        cached = cache.get(key)
        assert cached is not None and not cached.flags.writeable
        np.testing.assert_array_equal(cached, array)
    assert list(tmp_path.iterdir()) == []


def test_many_arrays_share_few_file_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxsr.data.host_cache._SEGMENT_BYTES", 2**16)
    cache = PixelCache(0, scratch_folder=tmp_path)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, size, dtype=np.uint8) for size in (10_000, 70_000, 65_536, 1)]
    for round_ in range(300):
        for key, array in enumerate(arrays):
            cache.keep((round_, key), array.copy())
    for round_ in range(300):
        for key, array in enumerate(arrays):
            np.testing.assert_array_equal(cache.get((round_, key)), array)


def test_a_full_disk_is_said_once_and_costs_only_speed(tmp_path, monkeypatch, caplog):
    cache = PixelCache(0, scratch_folder=tmp_path)
    cache.keep("before", np.arange(9, dtype=np.uint8))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    for key in range(3):
        assert cache.keep(key, np.full(9, key, np.uint8)).tolist() == [key] * 9
        assert cache.get(key) is None
    assert len(caplog.messages) == 1 and "No space left" in caplog.text
    np.testing.assert_array_equal(cache.get("before"), np.arange(9))


def test_a_scratch_folder_that_cannot_be_used(tmp_path):
    with pytest.raises(ValueError, match=r"cannot keep photos in .*gone: .*local disk"):
        PixelCache(0, scratch_folder=tmp_path / "gone")


def test_negative_bound():
    with pytest.raises(ValueError, match="cache_bytes must be 0"):
        PixelCache(-1)


def test_free_memory_is_between_a_megabyte_and_a_petabyte():
    assert 2**20 < free_memory_bytes() < 2**50
    assert PixelCache().limit_bytes < free_memory_bytes()


@pytest.mark.parametrize("array", [np.array(3), np.zeros((0, 2), np.float32)])
def test_numbers_and_empty_arrays_keep_their_shapes_on_disk(array, tmp_path):
    kept = PixelCache(0, scratch_folder=tmp_path).keep("label", array.copy())
    assert kept.shape == array.shape and np.array_equal(kept, array)
