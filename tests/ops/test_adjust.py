"""Adjustments of colours against Pillow bit for bit, and against scikit-image."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from skimage import color

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

CASES = 60
FACTORS = np.random.default_rng(3).uniform(-0.2, 2.5, CASES).astype(np.float32)
FACTORS[:4] = 0, 1, 0.5, 2


def pictures(dtype="uint8", channels=3):
    levels = np.random.default_rng(0).integers(0, 256, (CASES, 5, 7, channels))
    scale = {"uint8": 1, "uint16": 257}.get(dtype, 1 / 255)
    return jnp.asarray(levels * scale, dtype)


ENHANCERS = {
    "adjust_brightness": ImageEnhance.Brightness,
    "adjust_contrast": ImageEnhance.Contrast,
    "adjust_saturation": ImageEnhance.Color,
    "adjust_sharpness": ImageEnhance.Sharpness,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ENHANCERS)
def test_uint8_is_pillows(name, channels):
    images = pictures(channels=channels)
    got = jax.jit(getattr(ops, name))(images, FACTORS)
    for result, image, factor in zip(got, np.asarray(images), FACTORS.tolist(), strict=True):
        pil = Image.fromarray(image[..., 0] if channels == 1 else image)
        want = np.asarray(ENHANCERS[name](pil).enhance(factor))
        np.testing.assert_array_equal(result, want.reshape(image.shape))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint16"])
@pytest.mark.parametrize("name", ENHANCERS)
def test_other_dtypes_are_uint8_on_a_finer_scale(name, dtype):
    """Pillow rounds the grey to a level and cuts the result off."""
    images, peak = pictures(dtype), 65535 if dtype == "uint16" else 1
    got = getattr(ops, name)(images, FACTORS)
    assert got.dtype == images.dtype
    levels = getattr(ops, name)(pictures(), FACTORS)
    scaled = np.clip(np.asarray(got.astype(jnp.float32)) / peak, 0, 1) * 255
    atol = {"bfloat16": 4.0}.get(dtype, 2.01)
    np.testing.assert_allclose(scaled, np.asarray(levels, float), atol=atol)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_hue_matches_scikit_image(dtype):
    images = pictures(dtype)
    peak = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    got = ops.adjust_hue(images, FACTORS)
    hsv = color.rgb2hsv(np.asarray(images.astype(jnp.float32), np.float64) / peak)
    hsv[..., 0] = (hsv[..., 0] + FACTORS[:, None, None].astype(np.float64)) % 1
    want = color.hsv2rgb(hsv) * peak
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5)
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=rounding + 5e-6 * peak)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_gamma(dtype):
    images = pictures(dtype)
    peak = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    gamma = np.abs(FACTORS)
    got = ops.adjust_gamma(images, gamma)
    exact = np.asarray(images.astype(jnp.float32), np.float64) / peak
    want = exact ** gamma[:, None, None, None].astype(np.float64) * peak
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5)
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=rounding + 2e-6 * peak)


def test_levels_are_pillows():
    images = pictures()
    thresholds = np.random.default_rng(1).integers(0, 257, CASES)
    bits = np.random.default_rng(2).integers(1, 9, CASES)
    results = ops.solarize(images, thresholds), ops.posterize(images, bits), ops.invert(images)
    for k, image in enumerate(np.asarray(images)):
        pil = Image.fromarray(image)
        references = (
            ImageOps.solarize(pil, int(thresholds[k])),
            ImageOps.posterize(pil, int(bits[k])),
            ImageOps.invert(pil),
        )
        for result, reference in zip(results, references, strict=True):
            np.testing.assert_array_equal(result[k], reference)


def test_posterized_floats_are_the_levels_of_their_bits():
    """A ramp of 256 levels keeps its k first bits: Pillow's levels, as shares of 2^k."""
    ramp = np.arange(256, dtype=np.float32).reshape(1, 256, 1)
    picture = Image.fromarray(ramp[..., 0].astype(np.uint8))
    for bits in (1, 3, 8):
        levels = np.asarray(ImageOps.posterize(picture, bits))
        got = ops.posterize((ramp + 0.5) / 256, bits)
        np.testing.assert_array_equal(got[..., 0], levels / np.float32(256))


def test_planes_and_traced_factors():
    images = pictures("float32")
    planes = jnp.moveaxis(images, -1, 1)
    for name in (*ENHANCERS, "adjust_hue"):
        function = getattr(ops, name)
        options = {} if name in ("adjust_brightness", "adjust_sharpness") else {"channel": -3}
        got = jax.jit(partial(function, axes=(-2, -1), **options))(planes, FACTORS)
        want = jax.jit(jax.vmap(function))(images, FACTORS)
        np.testing.assert_allclose(jnp.moveaxis(got, 1, -1), want, atol=1e-6)


@pytest.mark.parametrize("name", ENHANCERS)
def test_gradients_at_black_and_grey_are_the_differences_of_the_linear_function(name):
    adjust = partial(getattr(ops, name), factor=2.5)
    black, move = jnp.zeros((5, 7, 3)), jnp.asarray(pictures("float32")[0])
    change = jax.jvp(adjust, (black,), (move,))[1]
    np.testing.assert_allclose(change, adjust(move) - adjust(black), atol=1e-6)


def test_gradient_of_the_factor():
    image = pictures("float32")[0]
    slope = jax.grad(lambda f: ops.adjust_brightness(image, f).sum())(1.3)
    np.testing.assert_allclose(slope, image.sum(), rtol=1e-5)


IMAGE = np.zeros((2, 4, 5, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.adjust_brightness, IMAGE, "a"), TypeError, "factor must hold numbers"),
        (
            partial(ops.adjust_brightness, IMAGE, np.ones(3)),
            ValueError,
            "no value for each image",
        ),
        (partial(ops.adjust_contrast, IMAGE[..., :2], 1.0), ValueError, "must hold R, G and B"),
        (partial(ops.adjust_hue, IMAGE[..., :1], 1.0), ValueError, "must hold R, G and B"),
        (partial(ops.posterize, IMAGE, np.ones(2, np.float32)), TypeError, "bits must hold"),
        (partial(ops.posterize, IMAGE.astype(np.uint8), np.ones(2)), TypeError, "bits must hold"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_more_bits_than_a_level_has_leave_it():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    np.testing.assert_array_equal(ops.posterize(levels, 9), levels)
    floats = np.float32(0.7) * np.ones((1, 1, 1), np.float32)
    np.testing.assert_array_equal(ops.posterize(floats, 40), floats)


@pytest.mark.parametrize("adjust", [ops.adjust_brightness, ops.adjust_gamma, ops.adjust_hue])
def test_a_picture_has_no_factor_for_each_row(adjust):
    with pytest.raises(ValueError, match="no value for each image"):
        adjust(np.ones((8, 8, 3), np.uint8), np.ones(8))
