"""YCbCr against scikit-image (MATLAB's range), Pillow (JFIF) and OpenCV (full-range luma)."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from skimage import color

from jaxsr.ops.colour import rgb_to_y, rgb_to_ycbcr, ycbcr_to_rgb

SHAPES = [(1, 7, 9, 3), (2, 32, 17, 3), (5, 3)]


def draw(shape, dtype: type = np.float32):
    rng = np.random.default_rng(0)
    return (
        rng.integers(0, 256, shape, np.uint8)
        if dtype == np.uint8
        else rng.random(shape).astype(dtype)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_matlab_float_matches_skimage(shape):
    image = draw(shape)
    got = jax.jit(partial(rgb_to_ycbcr, convention="matlab"))(image)
    want = color.rgb2ycbcr(image.astype(np.float64)) / 255
    np.testing.assert_allclose(got, want, atol=3e-7)  # three float32 products below 1
    np.testing.assert_allclose(rgb_to_y(image), want[..., :1], atol=3e-7)


def test_matlab_uint8_is_bit_equal_on_a_lattice_of_every_eighth_colour():
    levels = np.r_[0:256:8, 255].astype(np.uint8)
    image = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1)
    # Half-up rounding of scikit-image's float64, which adds the same published coefficients.
    want = np.floor(color.rgb2ycbcr(image) + 0.5 + 1e-9).astype(np.uint8)
    np.testing.assert_array_equal(rgb_to_ycbcr(image), want)
    np.testing.assert_array_equal(rgb_to_y(image), want[..., :1])


def test_matlab_uint8_inverse_is_bit_equal_to_skimage_away_from_ties():
    image = np.asarray(rgb_to_ycbcr(draw((64, 64, 3), np.uint8)))
    exact = 255 * color.ycbcr2rgb(image.astype(np.float64))
    clear = np.abs(exact - np.floor(exact) - 0.5) > 1e-3  # float32 sums of values up to 255
    want = np.clip(np.floor(exact + 0.5), 0, 255)
    got = np.asarray(ycbcr_to_rgb(image)).astype(int)
    assert np.array_equal(got[clear], want[clear])
    assert np.abs(got - want).max() <= 1


def test_full_range_matches_pillow_within_one_level():
    image = draw((97, 101, 3), np.uint8)
    want = np.asarray(Image.fromarray(image).convert("YCbCr")).astype(int)
    got = np.asarray(rgb_to_ycbcr(image, convention="full")).astype(int)
    # Pillow adds rounded 6-bit tables; ours is the correctly rounded sum.
    assert np.abs(got - want).max() <= 1
    back = np.asarray(Image.fromarray(want.astype(np.uint8), "YCbCr").convert("RGB")).astype(int)
    mine = np.asarray(ycbcr_to_rgb(want.astype(np.uint8), convention="full")).astype(int)
    assert np.abs(mine - back).max() <= 1


def test_full_range_luma_matches_opencv():
    image = draw((33, 31, 3))
    want = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    got = rgb_to_y(image, convention="full")[..., 0]
    np.testing.assert_allclose(got, want, atol=3e-7)
    levels = draw((64, 64, 3), np.uint8)
    off = np.asarray(rgb_to_y(levels, convention="full"))[..., 0].astype(int)
    off = off - cv2.cvtColor(levels, cv2.COLOR_RGB2GRAY).astype(int)
    assert np.abs(off).max() <= 1  # OpenCV rounds its coefficients to 15 bits


@pytest.mark.parametrize("convention", ["matlab", "full"])
@pytest.mark.parametrize("channel", [1, -1])
def test_round_trip_and_layout(convention, channel):
    image = np.moveaxis(draw((2, 5, 7, 3)), -1, channel)
    there = rgb_to_ycbcr(image, convention=convention, channel=channel)
    np.testing.assert_array_equal(
        jnp.moveaxis(there, channel, -1),
        rgb_to_ycbcr(np.moveaxis(image, channel, -1), convention=convention),
    )
    back = ycbcr_to_rgb(there, convention=convention, channel=channel)
    np.testing.assert_allclose(back, image, atol=1e-6)


def test_bfloat16_is_the_rounded_float32_result():
    image = jnp.asarray(draw((3, 4, 3)), jnp.bfloat16)
    want = rgb_to_y(image.astype(jnp.float32)).astype(jnp.bfloat16)
    got = rgb_to_y(image)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_gradient_is_the_published_coefficients():
    slope = jax.grad(lambda x: rgb_to_y(x).sum())(jnp.zeros((2, 2, 3)))
    np.testing.assert_allclose(slope[0, 0], np.array([65.481, 128.553, 24.966]) / 255, rtol=1e-6)


def test_vmap_equals_batch():
    image = draw((4, 5, 6, 3), np.uint8)
    np.testing.assert_array_equal(jax.vmap(rgb_to_ycbcr)(image), rgb_to_ycbcr(image))


@pytest.mark.parametrize(
    ("image", "options", "error", "message"),
    [
        (np.zeros((2, 2, 4)), {}, ValueError, "must hold R, G and B"),
        (np.zeros((2, 2, 3)), {"convention": "bt709"}, ValueError, "choose one of matlab, full"),
        (np.zeros((2, 2, 3)), {"channel": 5}, ValueError, "outside an array of 3 axes"),
        (np.zeros((2, 2, 3), bool), {}, TypeError, "got bool"),
        (np.zeros((2, 2, 3), np.complex64), {}, TypeError, "got complex64"),
        (np.zeros((2, 2, 3), np.int32), {}, TypeError, "got int32"),
        ([[0.0, 0.0, 0.0]], {}, TypeError, "got list"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(image, options, error, message):
    for function in (rgb_to_y, rgb_to_ycbcr, ycbcr_to_rgb):
        with pytest.raises(error, match=message):
            function(image, **options)
