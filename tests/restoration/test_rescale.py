"""Images resized in bands of rows, against Pillow's resize along one axis after the other."""

import numpy as np
import pytest
from PIL import Image

from jaxsr.restoration.rescale import RowRescaler


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.685, 0.9, 1.0, 1.1, 1.37, 2.0])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_bands_have_the_rows_of_the_whole(factor, dtype):
    peak = np.iinfo(dtype).max
    image = np.random.default_rng(0).integers(0, peak + 1, (211, 97, 3), dtype)
    target = (round(211 * factor), round(97 * factor))

    def pushed(height):
        rescaler = RowRescaler(image.shape[:2], target)
        return np.concatenate([rescaler.push(image[k : k + height]) for k in range(0, 211, height)])

    whole = pushed(211)
    assert whole.shape == (*target, 3) and whole.dtype == dtype
    for height in (1, 17, 64, 128):
        np.testing.assert_array_equal(pushed(height), whole)
    exact = dtype == np.uint8  # Pillow resizes 16 bits as float32
    for channel in range(3):
        plane = Image.fromarray(image[..., channel].astype(np.uint8 if exact else np.float32))
        wide = plane.resize((target[1], 211), Image.Resampling.BICUBIC)
        want = wide.resize(target[::-1], Image.Resampling.BICUBIC)
        want = np.asarray(want).clip(0, peak)
        np.testing.assert_allclose(whole[..., channel], want, rtol=0, atol=0 if exact else 1.1)
