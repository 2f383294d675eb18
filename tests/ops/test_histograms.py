"""Equalising and stretching against Pillow bit for bit, CLAHE against OpenCV."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageOps

from jaxsr import ops
from jaxsr.ops import _levels

pytestmark = pytest.mark.usefixtures("xla_kernels")

CASES = 64
SHAPES = [(37, 40), (9, 5), (1, 1)]


def levels(shape, dtype=np.uint8):
    """Grey pictures of different ranges, some of one level, most of them dark."""
    rng = np.random.default_rng(0)
    low = rng.integers(0, 255, (CASES, 1, 1))
    span = rng.integers(0, 256, (CASES, 1, 1))
    span[:4] = 0
    drawn = np.minimum(low + rng.random((CASES, *shape)) ** 2 * span, 255).astype(np.uint8)
    return drawn if dtype == np.uint8 else drawn * np.uint16(257)


def pillows(function, images):
    return np.stack([np.asarray(function(Image.fromarray(image))) for image in images])


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_uint8_is_pillows(shape):
    images = levels(shape)
    got = ops.equalize(images, axes=(-2, -1))
    np.testing.assert_array_equal(got, pillows(ImageOps.equalize, images))
    for cutoff in (0, 2, (1, 30), 60, 100):
        got = ops.autocontrast(images, cutoff, axes=(-2, -1))
        want = pillows(partial(ImageOps.autocontrast, cutoff=cutoff), images)
        np.testing.assert_array_equal(got, want, err_msg=str(cutoff))


def test_autocontrast_is_pillows_for_every_fifth_range():
    low, high = (limits[::5] for limits in np.triu_indices(256))
    images = np.clip(np.arange(256), low[:, None], high[:, None]).astype(np.uint8)[:, None]
    want = pillows(ImageOps.autocontrast, images)
    np.testing.assert_array_equal(ops.autocontrast(images, axes=(-2, -1)), want)


def test_colours_are_stretched_channel_by_channel():
    images = np.random.default_rng(1).integers(20, 200, (3, 30, 31, 3), np.uint8)
    for function in ("equalize", "autocontrast"):
        got = getattr(ops, function)(images)
        np.testing.assert_array_equal(got, pillows(getattr(ImageOps, function), images))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint16"])
def test_other_dtypes_are_equalised_in_256_levels(dtype):
    images = levels((37, 40))
    scale = np.uint16(257) if dtype == "uint16" else 1 / 255
    # bfloat16 holds fewer than 256 grays below white, so the grays are those it holds.
    scaled = jnp.asarray(images * scale, dtype)
    grays = np.floor(np.clip(scaled.astype(jnp.float32), 0, 1) * np.float32(255.999))
    grays = images if dtype == "uint16" else grays.astype(np.uint8)
    got = ops.equalize(scaled, axes=(-2, -1))
    want = jnp.asarray(pillows(ImageOps.equalize, grays) * scale, dtype)
    assert got.dtype == want.dtype
    exact = np.asarray(want.astype(jnp.float32))
    np.testing.assert_allclose(got.astype(jnp.float32), exact, rtol=0, atol=1e-7)


def test_autocontrast_of_uint16_and_floats():
    images = np.random.default_rng(0).integers(300, 65000, (CASES, 6, 7, 1), np.uint16)
    flat = images.reshape(CASES, 1, 1, 42).astype(object)
    low, high = flat.min(-1, keepdims=True), flat.max(-1, keepdims=True)
    want = (images.astype(object) - low) * 65535 // (high - low)
    np.testing.assert_array_equal(ops.autocontrast(images), want.astype(np.uint16))
    unit = images / np.float32(65535)
    want = ((images - low) / (high - low)).astype(float)
    np.testing.assert_allclose(ops.autocontrast(unit), want, atol=3e-7)
    short = ops.autocontrast(jnp.asarray(unit, jnp.bfloat16))
    assert short.dtype == jnp.bfloat16
    np.testing.assert_allclose(short.astype(jnp.float32), want, atol=2**-7)
    slope = jax.grad(lambda x: ops.autocontrast(x)[0, 2, 3, 0])(unit)
    span = np.ptp(unit[0])
    np.testing.assert_allclose(slope[0, 2, 3, 0], 1 / span, rtol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        ((32, 64), (4, 2)),
        pytest.param((33, 47), (2, 3), marks=pytest.mark.slow),
        ((5, 3), (2, 4)),
        pytest.param((1, 1), (2, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_clahe_is_opencvs(shape, tiles, dtype):
    images = levels(shape, dtype)
    limits = np.random.default_rng(2).choice([0, 0.5, 2.0, 3.25, 40.0], CASES)
    got = ops.clahe(images, limits, tiles=tiles, axes=(-2, -1))
    assert got.dtype == images.dtype
    want = [
        cv2.createCLAHE(limit, tiles[::-1]).apply(image)
        for limit, image in zip(limits.tolist(), images, strict=True)
    ]
    difference = np.abs(np.asarray(got).astype(int) - np.stack(want))
    assert difference.max() <= 1
    # Powers of two leave no ties to float32's errors.
    assert (difference > 0).mean() <= (0 if shape == (32, 64) else 2e-3)


@pytest.mark.slow
def test_clahe_of_floats_and_its_limit_as_a_number():
    images = levels((32, 64))
    want = np.asarray(ops.clahe(images, 2.0, tiles=4, axes=(-2, -1)))
    for dtype, atol in ((jnp.float32, 0.501 / 255), (jnp.bfloat16, 1 / 50)):
        unit = jnp.asarray(images / 255, dtype).at[0, 0, 0].set(jnp.nan)
        got = ops.clahe(unit, 2.0, tiles=4, axes=(-2, -1))
        assert got.dtype == dtype and jnp.isnan(got).sum() == 1
        if dtype == jnp.float32:
            np.testing.assert_allclose(got[1:], want[1:] / 255, atol=atol)
    traced = jax.jit(lambda x, c: ops.clahe(x, c, tiles=4, axes=(-2, -1)))(images, 2.0)
    np.testing.assert_array_equal(traced, want)


def test_one_limit_for_each_picture_of_a_batch_of_colours():
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 24, 3), np.uint8)
    limits = np.array([0.0, 1.5, 4.0], np.float32)
    got = ops.clahe(images, limits, tiles=4)
    for k, limit in enumerate(limits.tolist()):
        np.testing.assert_array_equal(got[k], ops.clahe(images[k], limit, tiles=4))


def test_the_forms_of_accelerators_count_and_look_up_alike(monkeypatch):
    monkeypatch.setattr(_levels, "platform_dependent", lambda *x, cpu, default: default(*x))
    drawn = levels((9, 5)).reshape(CASES, -1).astype(np.int32)
    want = [np.bincount(row, minlength=256) for row in drawn]
    np.testing.assert_array_equal(_levels.histogram(jnp.asarray(drawn), 256), want)
    table = np.random.default_rng(3).integers(0, 256, (CASES, 256)).astype(np.int32)
    got = _levels.look_up(jnp.asarray(table), jnp.asarray(drawn))
    np.testing.assert_array_equal(got, np.take_along_axis(table, drawn, 1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.autocontrast, cutoff=-1), ValueError, "cutoff must be a finite number of at"),
        (partial(ops.autocontrast, cutoff=True), TypeError, "cutoff must be a Python number"),
        (partial(ops.clahe, clip_limit=-1.0), ValueError, "clip_limit must be a finite number of"),
        (partial(ops.clahe, clip_limit="a"), TypeError, "clip_limit must hold numbers"),
        (partial(ops.clahe, clip_limit=np.ones(3)), ValueError, "no value for each image"),
        (partial(ops.clahe, tiles=0), ValueError, "tiles must be at least 1"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(np.zeros((2, 4, 5, 3), np.uint8))
