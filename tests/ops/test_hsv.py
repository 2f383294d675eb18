"""Hue, saturation and value or lightness against scikit-image, colorsys and OpenCV."""

import colorsys
from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from skimage import color

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

pytestmark = pytest.mark.usefixtures("xla_kernels")

CASES = 64
PEAKS = {"uint8": 255, "uint16": 65535}
FORWARD, BACK = ("rgb_to_hsv", "rgb_to_hls"), ("hsv_to_rgb", "hls_to_rgb")
REFERENCES = {
    "rgb_to_hsv": color.rgb2hsv,
    "hsv_to_rgb": color.hsv2rgb,
    "rgb_to_hls": np.vectorize(colorsys.rgb_to_hls, signature="(),(),()->(),(),()"),
    "hls_to_rgb": np.vectorize(colorsys.hls_to_rgb, signature="(),(),()->(),(),()"),
}


def pictures(dtype="float32", shape=(CASES, 3, 5, 3)):
    """Random colours, with greys, primaries and black among them."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, shape)
    levels[:8] = levels[:8, ..., :1]
    levels[8:16] = rng.integers(0, 2, levels[8:16].shape) * 255
    return jnp.asarray(levels * {"uint8": 1, "uint16": 257}.get(dtype, 1 / 255), dtype)


def reference(name, exact):
    if "hls" not in name:
        return REFERENCES[name](exact)
    return np.stack(REFERENCES[name](*np.moveaxis(exact, -1, 0)), -1)


def apart(got, want, name):
    """Differences on 0…1; hues 0 and 1 are one hue."""
    difference = np.abs(got - want)
    if name in FORWARD:
        hue = difference[..., 0]
        difference[..., 0] = np.minimum(hue, 1 - hue)
    return difference.max(initial=0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("name", REFERENCES)
def test_against_scikit_image_and_colorsys(name, dtype):
    images, peak = pictures(dtype), PEAKS.get(dtype, 1)
    got = getattr(ops, name)(images)
    assert got.dtype == images.dtype
    want = reference(name, np.asarray(images.astype(jnp.float32), np.float64) / peak)
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5 / peak)
    result = np.asarray(got.astype(jnp.float32), np.float64) / peak
    assert apart(result, want, name) < rounding + 3e-6


@pytest.mark.parametrize("shape", [(CASES, 1, 1, 3), (7, 3)])
def test_other_shapes_and_the_way_back(shape):
    images = pictures(shape=shape)
    for there, back in zip(FORWARD, BACK, strict=True):
        np.testing.assert_allclose(
            getattr(ops, back)(getattr(ops, there)(images)), images, atol=1e-6
        )


LATTICE = np.r_[0:256:5].astype(np.uint8)
COLOURS = np.stack(np.meshgrid(LATTICE, LATTICE, LATTICE, indexing="ij"), -1).reshape(52, -1, 3)


@pytest.mark.parametrize(
    ("name", "code", "atol"),
    [
        ("rgb_to_hsv", cv2.COLOR_RGB2HSV, 0),
        ("hls_to_rgb", cv2.COLOR_HLS2RGB, 0),
        ("rgb_to_hls", cv2.COLOR_RGB2HLS, 1),
        ("hsv_to_rgb", cv2.COLOR_HSV2RGB, 1),
    ],
)
def test_opencvs_levels(name, code, atol):
    colours = COLOURS if name in FORWARD else COLOURS[:36]
    got = np.asarray(getattr(ops, name)(colours, convention="opencv")).astype(int)
    difference = np.abs(got - cv2.cvtColor(colours, code))
    if name in FORWARD:
        difference[..., 0] = np.minimum(difference[..., 0], 180 - difference[..., 0])
    assert difference.max() <= atol
    assert (difference > 0).mean() < 0.03  # ties, of which the lattice has more than most pictures


def test_opencvs_floats():
    images = np.asarray(pictures(shape=(CASES, 15, 3)))
    for name, code in (("rgb_to_hsv", cv2.COLOR_RGB2HSV), ("rgb_to_hls", cv2.COLOR_RGB2HLS)):
        got = getattr(ops, name)(images, convention="opencv")
        want = cv2.cvtColor(images, code)
        np.testing.assert_allclose(
            got[..., 0], want[..., 0], atol=5e-4
        )  # degrees; its divisors are 1e-7 more
        np.testing.assert_allclose(got[..., 1:], want[..., 1:], atol=2e-6)
        back = getattr(ops, f"{name[-3:]}_to_rgb")(got, convention="opencv")
        np.testing.assert_allclose(back, images, atol=2e-6)


@pytest.mark.slow
def test_a_nan_stays_in_its_pixel_and_grey_has_a_gradient():
    image = np.full((3, 3), 0.5, np.float32)
    image[1, 2] = np.nan
    for name in FORWARD:
        function = getattr(ops, name)
        np.testing.assert_array_equal(jnp.isnan(function(image)).any(-1), [False, True, False])
        slope = jax.jacobian(function)(image[0])
        assert np.isfinite(slope).all()
        colour = jnp.asarray([0.2, 0.7, 0.4])
        step = jnp.asarray([1e-3, -2e-3, 5e-4])
        change = (function(colour + step) - function(colour - step)) / 2
        np.testing.assert_allclose(jax.jacobian(function)(colour) @ step, change, atol=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(
    ("image", "options", "error", "message"),
    [
        (np.zeros((2, 2, 4)), {}, ValueError, "must hold R, G and B"),
        (np.zeros((2, 3)), {"convention": "hex"}, ValueError, "choose one of scikit-image, opencv"),
        (np.zeros((2, 3), np.uint16), {"convention": "opencv"}, TypeError, "no hue of uint16"),
        (np.zeros((2, 3), np.int32), {}, TypeError, "got int32"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(name, image, options, error, message):
    with pytest.raises(error, match=message):
        partial(getattr(ops, name), **options)(image)
