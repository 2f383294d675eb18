"""Drawn infrared scenes."""

import numpy as np
from scipy import ndimage

from jaxsr.data.host_cache import PixelCache
from jaxsr.data.scenes import open_scenes, scene
from jaxsr.metrics.components import components


def test_scenes_are_the_same_everywhere_and_apart_from_each_other():
    image, mask = scene(3, 5, side=64)
    again, _ = scene(3, 5, side=64)
    np.testing.assert_array_equal(image, again)
    assert image.shape == (64, 64, 3) and mask.shape == (64, 64) and set(np.unique(mask)) <= {0, 1}
    assert not np.array_equal(image, scene(3, 6, side=64)[0])
    assert not np.array_equal(image, scene(4, 5, side=64)[0])
    train, validation = open_scenes(4, side=64), open_scenes(4, side=64, split="validation")
    assert not any(
        np.array_equal(train.read(a)[0], validation.read(b)[0]) for a in range(4) for b in range(4)
    )


def test_scenes_have_targets_of_few_pixels_to_hundreds_and_none():
    areas, brighter, without = [], [], 0
    for number in range(150):
        image, mask = scene(0, number, side=96)
        targets = components(mask)
        without += len(targets) == 0
        areas += targets.areas.tolist()
        if len(targets):  # brighter than its surroundings, or it could not be found
            around = ndimage.binary_dilation(mask, iterations=4) & (mask == 0)
            brighter.append(image[mask > 0].mean() - image[around].mean())
    assert min(brighter) > 0
    assert 8 <= without <= 22  # 10 % of 150, by 3 standard deviations; few targets fall outside
    assert min(areas) <= 2 and 100 <= max(areas) <= 500  # some may touch
    assert 8 < np.median(areas) < 40


def test_scenes_are_kept_within_a_bound():
    whole, cache = open_scenes(6, side=64, seed=3), PixelCache(3 * 2 * 64 * 64)
    bounded = open_scenes(6, side=64, seed=3, cache=cache)
    assert cache.held_bytes == cache.limit_bytes
    for number in range(6):
        for one, other in zip(whole.read(number), bounded.read(number), strict=True):
            np.testing.assert_array_equal(one, other)
