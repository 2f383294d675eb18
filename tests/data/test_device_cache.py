from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsr.data.device_cache import _shelves, resident_bytes, resident_photos
from jaxsr.data.host_cache import PixelCache
from jaxsr.data.photos import Photos, open_training_photos
from tests.data.photo_batches import train_batches


@pytest.fixture(scope="module")
def photos():
    return open_training_photos(None, None, crop=96)[0]


def test_crops_are_those_of_the_streamed_batches(photos):
    resident = resident_photos(photos)
    options: dict[str, Any] = {"global_batch": 32, "crop": 96, "seed": 3}
    with (
        train_batches(photos, **options) as images,
        train_batches(photos, form="window", **options) as windows,
    ):
        cut = jax.jit(lambda resident, window: resident.crops(window, 96))
        for _ in range(4):
            window, image = next(windows)["window"], next(images)["image"]
            np.testing.assert_array_equal(cut(resident, window), image.transpose(0, 3, 1, 2))
        with jax.enable_x64(True):
            np.testing.assert_array_equal(cut(resident, window), image.transpose(0, 3, 1, 2))


def test_the_size_is_known_before_anything_is_read(photos):
    size = resident_bytes(photos)
    assert resident_photos(photos).canvas.nbytes == size
    gone = Photos(
        source="nowhere",
        names=photos.names,
        sizes=photos.sizes,
        paths=tuple(path.with_name("gone.png") for path in photos.paths),
        cache=PixelCache(0),
    )
    assert resident_bytes(gone) == size
    with pytest.raises(RuntimeError, match=r"gone\.png was readable"):
        resident_photos(gone)


def test_little_of_the_canvas_is_wasted(photos):
    assert resident_bytes(photos) < 1.25 * photos.nbytes
    same = np.tile([[512, 768]], (100, 1))
    (rows, columns), _ = _shelves(same)
    assert rows * columns == 100 * 512 * 768


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=30))
def test_photos_do_not_overlap_on_the_canvas(sizes):
    shape, origin = _shelves(np.array(sizes, np.int32))
    covered = np.zeros(shape, int)
    for (top, left), (height, width) in zip(origin, sizes, strict=True):
        assert top + height <= shape[0] and left + width <= shape[1]
        covered[top : top + height, left : left + width] += 1
    assert covered.max() == 1 and covered.sum() == sum(h * w for h, w in sizes)
