from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxsr.data.photos import open_photos, open_training_photos
from jaxsr.data.validation import validation_pairs


@pytest.fixture(scope="module")
def photos():
    return open_training_photos(None, None, crop=96)[1]


def _picture(image):
    """[-1, 1], (1, c, h, w) to uint8 (h, w, c); fails unless the values are whole levels."""
    levels = (image[0].transpose(1, 2, 0).astype(np.float64) + 1) * 127.5
    assert np.abs(levels - np.rint(levels)).max() < 1e-4
    return np.rint(levels).astype(np.uint8)


@pytest.mark.sample(1)
@pytest.mark.parametrize("scale", [3, 4])
def test_whole_photos_cut_to_a_multiple(photos, scale):
    pairs = list(validation_pairs(photos, scale))
    assert [pair.name for pair in pairs] == list(photos.names)
    for index, pair in enumerate(pairs):
        height, width = photos.sizes[index] // scale * scale
        assert pair.high.shape == (1, 3, height, width)
        assert pair.low.shape == (1, 3, height // scale, width // scale)
        assert pair.high.dtype == pair.low.dtype == np.float32
        np.testing.assert_array_equal(_picture(pair.high), photos.read(index)[:height, :width])


def test_low_is_bicubic_with_antialiasing(photos):
    pair = next(validation_pairs(photos, 4))
    low, high = _picture(pair.low), _picture(pair.high)
    size = low.shape[1], low.shape[0]
    want = np.asarray(Image.fromarray(high).resize(size, Image.Resampling.BICUBIC)).astype(int)
    # Pillow's kernel is MATLAB's; only what lies beyond the border differs, two pixels deep, and
    # the rounding between the two passes, by a level.
    assert np.abs(low - want)[2:-2, 2:-2].max() <= 1


def test_every_call_gives_the_same(photos):
    for one, two in zip(validation_pairs(photos, 4), validation_pairs(photos, 4), strict=True):
        np.testing.assert_array_equal(one.low, two.low)


def test_restoration_pairs_are_luma_of_one_size_with_less_detail(photos):
    for index, pair in enumerate(validation_pairs(photos.subset([0]), 1, channels=1)):
        assert pair.low.shape == pair.high.shape and pair.low.shape[1] == 1
        low, high = _picture(pair.low)[..., 0], _picture(pair.high)[..., 0]
        height, width = high.shape
        want = np.asarray(Image.fromarray(photos.read(index)).convert("L"))[:height, :width]
        assert np.abs(high.astype(int) - want).max() <= 1  # Pillow rounds the weights to 16 bits
        detail = [np.abs(np.diff(image.astype(int), 2)).mean() for image in (low, high)]
        assert detail[0] < 0.7 * detail[1]


def test_large_photos_are_cut_about_the_middle(photos):
    pair = next(validation_pairs(photos, 4, longest_px=203))
    height, width = photos.sizes[0]
    top, left = (height - 200) // 2, (width - 200) // 2
    want = photos.read(0)[top : top + 200, left : left + 200]
    np.testing.assert_array_equal(_picture(pair.high), want)


@pytest.mark.parametrize(
    ("scale", "options", "message"),
    [
        (0, {}, "at least 1, got 0"),
        (1, {"detail_factor": 0}, "got 1 and 0"),
        (4, {"longest_px": 3}, "longest_px must be at least scale=4, got 3"),
    ],
)
def test_arguments_are_checked(photos, scale, options: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        next(validation_pairs(photos, scale, **options))


def test_a_photo_below_the_scale_is_named(tmp_path):
    Image.fromarray(np.zeros((2, 9, 3), np.uint8)).save(tmp_path / "flat.png")
    with pytest.raises(ValueError, match=r"flat\.png .*too few for scale=4"):
        next(validation_pairs(open_photos(tmp_path, crop=1), 4))
