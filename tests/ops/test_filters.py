"""Windows against SciPy."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

pytestmark = pytest.mark.usefixtures("xla_kernels")

BORDERS = {
    "reflect101": "mirror",
    "symmetric": "reflect",
    "edge": "nearest",
    "constant": "constant",
    "wrap": "wrap",
}
REFERENCES = {
    "box_filter": ndimage.uniform_filter,
    "median_filter": ndimage.median_filter,
    "dilate": ndimage.grey_dilation,
    "erode": ndimage.grey_erosion,
    "opening": ndimage.grey_opening,
    "closing": ndimage.grey_closing,
    "morphological_gradient": ndimage.morphological_gradient,
}
CASES = 60


@pytest.mark.sample(7)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize(
    ("shape", "size", "borders"),
    [
        ((CASES, 7, 9, 1), (3, 5), ("reflect101", "symmetric", "edge")),
        ((CASES, 7, 9, 1), (1, 7), ("constant", "wrap")),
        ((CASES, 1, 1, 2), (3, 1), ("edge",)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", REFERENCES)
def test_against_scipy(name, shape, size, borders, dtype):
    values = np.random.default_rng(0).random(shape)
    peak = np.iinfo(dtype).max if dtype.startswith("uint") else 1
    images = jnp.asarray(values * peak, dtype)
    exact = np.asarray(images.astype(jnp.float32), np.float64)
    for border in borders:
        got = getattr(ops, name)(images, size, border=border)
        assert got.dtype == images.dtype
        want = REFERENCES[name](exact, size=(1, *size, 1), mode=BORDERS[border])
        if name == "box_filter":
            rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5)
            np.testing.assert_allclose(got.astype(jnp.float32), want, atol=rounding + 1e-6 * peak)
        else:
            np.testing.assert_array_equal(got, jnp.asarray(want, dtype), err_msg=border)


@pytest.mark.parametrize("name", ["box_filter", "median_filter", "dilate", "erode"])
def test_a_nan_stays_within_the_windows(name):
    image = np.random.default_rng(0).random((9, 11, 1), np.float32)
    image[4, 5] = np.nan
    got = np.isnan(getattr(ops, name)(image, (3, 5)))[..., 0]
    reached = np.zeros((9, 11), bool)
    reached[3:6, 3:8] = True
    np.testing.assert_array_equal(got, reached)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.box_filter, size=4), ValueError, "size must be odd, got 4"),
        (partial(ops.erode, size=(3, 0)), ValueError, "at least 1"),
        (partial(ops.dilate, size=3, border="mirror"), ValueError, "unknown border"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(np.zeros((4, 4, 1), np.float32))
