import threading

import numpy as np
import pytest

from jaxsr.data.memory import PixelCache, free_memory_bytes


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
        if (kept := cache.get(key)) is not None:
            assert all(mine[key] is kept for mine in seen)


def test_negative_bound():
    with pytest.raises(ValueError, match="cache_bytes must be 0"):
        PixelCache(-1)


def test_free_memory_is_between_a_megabyte_and_a_petabyte():
    assert 2**20 < free_memory_bytes() < 2**50
    assert PixelCache().limit_bytes < free_memory_bytes()
