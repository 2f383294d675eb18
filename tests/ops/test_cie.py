"""The CIE's colours against scikit-image, and OpenCV's uint8."""

from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from skimage.color import colorconv as color

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

CASES = 64
PEAKS = {"uint8": 255, "uint16": 65535}
# The greatest error: of float32's 1e-7, and of the reference's range.
FORWARD = {
    "rgb_to_xyz": (color.rgb2xyz, 1e-6),
    "rgb_to_lab": (color.rgb2lab, 2e-4),
    "rgb_to_luv": (color.rgb2luv, 4e-4),
}
BACK = {
    "xyz_to_rgb": (color.xyz2rgb, color.rgb2xyz),
    "lab_to_rgb": (color.lab2rgb, color.rgb2lab),
    "luv_to_rgb": (color.luv2rgb, color.rgb2luv),
}


def pictures(dtype="float32", shape=(CASES, 3, 5, 3)):
    levels = np.random.default_rng(0).integers(0, 256, shape)
    levels[:8] = levels[:8, ..., :1]
    levels[8:16] = np.random.default_rng(1).integers(0, 2, levels[8:16].shape) * 255
    return jnp.asarray(levels * {"uint8": 1, "uint16": 257}.get(dtype, 1 / 255), dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("name", FORWARD)
def test_there(name, dtype):
    images = pictures(dtype)
    reference, atol = FORWARD[name]
    want = reference(np.asarray(images.astype(jnp.float32), np.float64) / PEAKS.get(dtype, 1))
    got = getattr(ops, name)(images)
    assert got.dtype == ("bfloat16" if dtype == "bfloat16" else "float32")
    rtol = 2**-8 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=rtol, atol=atol)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", BACK)
def test_back(name):
    back, there = BACK[name]
    colours = there(np.asarray(pictures(), np.float64)).astype(np.float32)
    want = back(colours.astype(np.float64))
    got = getattr(ops, name)(colours)
    np.testing.assert_allclose(got, want, atol=3e-5)  # the curve is steep at black
    np.testing.assert_allclose(got, pictures(), atol=2e-3 if "xyz" in name else 3e-5)
    single = getattr(ops, name)(jnp.asarray(colours[:2], jnp.bfloat16))
    assert single.dtype == jnp.bfloat16


def test_light_is_scikit_images():
    """Its XYZ of greys is white times their light."""
    grey = np.linspace(0, 1, 256)
    want = color.rgb2xyz(np.repeat(grey[:, None], 3, 1))[:, 1]
    # The rows of its matrix of luminance sum to 1.
    np.testing.assert_allclose(ops.srgb_to_linear(grey.astype(np.float32)), want, atol=6e-7)
    levels = np.arange(256, dtype=np.uint8)
    np.testing.assert_allclose(ops.srgb_to_linear(levels), want, atol=6e-7)
    np.testing.assert_allclose(ops.linear_to_srgb(want.astype(np.float32)), grey, atol=3e-7)


def test_opencvs_levels():
    lattice = np.r_[0:256:5].astype(np.uint8)
    colours = np.stack(np.meshgrid(lattice, lattice, lattice, indexing="ij"), -1).reshape(52, -1, 3)
    got = ops.rgb_to_lab(colours, convention="opencv")
    np.testing.assert_array_equal(got, cv2.cvtColor(colours, cv2.COLOR_RGB2Lab))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [*FORWARD, *BACK])
def test_gradients_and_nan(name):
    function = jax.jit(getattr(ops, name))
    colour = jnp.asarray([0.2, 0.7, 0.4]) * (1 if name.startswith(("rgb", "xyz")) else 50)
    step = colour * jnp.asarray([1e-3, -2e-3, 5e-4])
    change = (function(colour + step) - function(colour - step)) / 2
    slope = jax.jit(jax.jacobian(function))
    # Differences of float32 values of about 50.
    np.testing.assert_allclose(slope(colour) @ step, change, rtol=1e-2, atol=2e-5)
    assert np.isfinite(slope(jnp.zeros(3))).all()
    pair = jnp.stack([colour, colour.at[1].set(jnp.nan)])
    np.testing.assert_array_equal(jnp.isnan(function(pair)).any(-1), [False, True])


UNKNOWN: Any = {"convention": "hunter"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.rgb_to_lab, np.zeros((2, 4))), ValueError, "must hold R, G and B"),
        (partial(ops.rgb_to_lab, np.zeros(3), **UNKNOWN), ValueError, "choose one of"),
        (partial(ops.rgb_to_lab, np.zeros(3), convention="opencv"), TypeError, "uint8 here"),
        (partial(ops.lab_to_rgb, np.zeros(3, np.uint8)), TypeError, "give its own scale"),
        (partial(ops.luv_to_rgb, np.zeros(3, np.uint16)), TypeError, "give its own scale"),
        (partial(ops.srgb_to_linear, np.zeros(3, bool)), TypeError, "got bool"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
