"""Motion blur against SciPy: means of shifted pictures."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxsr import ops
from jaxsr.xla_calls.calls import SWITCH
from tests.ops.dtypes import EVERY_DTYPE

CASES, SIZE = 24, 9


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_motion_blur_is_the_mean_of_shifts(dtype):
    rng = np.random.default_rng(0)
    most = np.iinfo(dtype).max if dtype in ("uint8", "uint16") else 1
    images = rng.random((CASES, 12, 15, 1)) * most
    images = jnp.asarray(images.round() if most > 1 else images, dtype)
    length = rng.uniform(0, 7, CASES).astype(np.float32)
    degrees = rng.uniform(0, 360, CASES).astype(np.float32)
    got = ops.motion_blur(images, length, degrees, size=SIZE)
    assert got.dtype == images.dtype
    places = (np.arange(4 * SIZE) + 0.5) / (4 * SIZE) - 0.5
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5)
    for k, image in enumerate(np.asarray(images, np.float64)[..., 0]):
        angle = np.deg2rad(float(degrees[k]))
        shifts = [(t * np.sin(angle), -t * np.cos(angle)) for t in places * float(length[k])]
        moved = [ndimage.shift(image, shift, order=1, mode="mirror") for shift in shifts]
        np.testing.assert_allclose(
            np.asarray(got[k, ..., 0], np.float64), np.mean(moved, 0), atol=rounding + 3e-6 * most
        )


IMAGE = np.zeros((2, 8, 9, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.motion_blur, IMAGE, np.ones(2), 0), TypeError, "size must say"),
        (partial(ops.motion_blur, IMAGE, 3, 0, size=4), ValueError, "odd integer from 1, got 4"),
        (partial(ops.motion_blur, IMAGE, np.ones(3), 0, size=3), ValueError, "no value for each"),
        (partial(ops.motion_blur, IMAGE, 3, 0, border="zeros"), ValueError, "unknown border"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("switch", ["native", "xla"])
def test_a_nan_reaches_what_reads_it(switch, monkeypatch):
    monkeypatch.setenv(SWITCH, switch)
    image = np.zeros((15, 15, 1), np.float32)
    image[7, 7] = 1
    blur = partial(ops.motion_blur, length=7.0, degrees=0.0)
    read = np.asarray(blur(image)) != 0
    image[7, 7] = np.nan
    np.testing.assert_array_equal(np.isnan(blur(image)), read)
