from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from jaxsr.data.sampler import CropOrder

SIZES = np.array([[40, 50], [64, 32], [100, 100], [33, 70], [32, 32]], np.int32)


@pytest.mark.parametrize("crops_per_photo", [1, 3])
def test_every_epoch_holds_each_photo_equally_often_in_a_fresh_order(crops_per_photo):
    order = CropOrder(SIZES, 32, seed=1, crops_per_photo=crops_per_photo)
    n = order.epoch_length
    assert n == 5 * crops_per_photo
    epochs = order.windows(0, 20 * n)[:, 0].reshape(20, n)
    for epoch in epochs:
        assert np.bincount(epoch, minlength=5).tolist() == [crops_per_photo] * 5
    assert len({tuple(epoch) for epoch in epochs}) > 10


@pytest.mark.parametrize("cuts", [[7], [1, 2, 3, 4], [5, 10], [49]])
def test_any_partition_gives_the_same_samples(cuts):
    order = CropOrder(SIZES, 32, seed=9, crops_per_photo=2)
    order_once = order.windows(13, 50)
    edges = [0, *cuts, 50]
    parts = [order.windows(13 + a, b - a) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), order_once)


def test_windows_lie_inside_and_reach_every_place():
    windows = CropOrder(SIZES, 32, seed=0).windows(0, 20_000)
    for photo, (height, width) in enumerate(SIZES):
        top, left = windows[windows[:, 0] == photo, 1:].T
        assert top.min() == 0 and top.max() == height - 32
        assert left.min() == 0 and left.max() == width - 32


def test_corners_are_uniform_and_independent():
    windows = CropOrder(np.array([[41, 51]]), 32, seed=3).windows(10**6, 40_000)
    counts = np.histogram2d(windows[:, 1], windows[:, 2], bins=(10, 20))[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4  # fixed seed: the test is deterministic
    assert abs(np.corrcoef(windows[:-1, 1], windows[1:, 1])[0, 1]) < 0.02  # 4 deviations


def test_seeds_differ():
    a, b = (CropOrder(SIZES, 32, seed=s).windows(0, 100) for s in (0, 1))
    assert (a != b).any(axis=1).mean() > 0.8


def test_the_largest_numbers():
    order, neighbour = (CropOrder(np.array([[2**15, 2**15]]), 1, 2**64 - k) for k in (1, 2))
    windows = order.windows(2**31 - 8, 8)
    assert (windows >= 0).all() and (windows[:, 1:] < 2**15).all()
    assert (windows[:, 1:] != neighbour.windows(2**31 - 8, 8)[:, 1:]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": SIZES[:0]}, "at least one photo"),
        ({"crop": 33}, "least side 32 px, got 33"),
        ({"crop": 0}, "got 0"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"crops_per_photo": 0}, "crops_per_photo"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        CropOrder(**dict[str, Any](sizes=SIZES, crop=32, seed=0) | options)
