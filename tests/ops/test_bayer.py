"""Bayer patterns against OpenCV, and Malvar's published windows in SciPy."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxsr import ops
from jaxsr.ops.bayer import PATTERNS
from tests.ops.dtypes import EVERY_DTYPE

CASES = 60


def mosaics(dtype, height=10, width=13):
    levels = np.random.default_rng(0).random((CASES, height, width, 1))
    if dtype in ("uint8", "uint16"):
        return (levels * np.iinfo(dtype).max).round().astype(dtype)
    return levels.astype(dtype)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_bilinear_is_opencvs_within_the_edge(pattern, dtype):
    images = mosaics(dtype)
    got = ops.demosaic(images, pattern=pattern, method="bilinear")
    code = getattr(cv2, f"COLOR_Bayer{pattern}2RGB")
    for result, image in zip(got, images, strict=True):
        want = cv2.cvtColor(image[..., 0], code)
        np.testing.assert_array_equal(result[1:-1, 1:-1], want[1:-1, 1:-1])


# Malvar, He & Cutler, ICASSP 2004, figure 2, in eighths.
GREEN = np.array(
    [[0, 0, -1, 0, 0], [0, 0, 2, 0, 0], [-1, 2, 4, 2, -1], [0, 0, 2, 0, 0], [0, 0, -1, 0, 0]]
)
SIDES = np.array(
    [[0, 0, 0.5, 0, 0], [0, -1, 0, -1, 0], [-1, 4, 5, 4, -1], [0, -1, 0, -1, 0], [0, 0, 0.5, 0, 0]]
)
OPPOSITE = np.array(
    [
        [0, 0, -1.5, 0, 0],
        [0, 2, 0, 2, 0],
        [-1.5, 0, 6, 0, -1.5],
        [0, 2, 0, 2, 0],
        [0, 0, -1.5, 0, 0],
    ]
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_malvar_is_its_published_windows(pattern, dtype):
    images = jnp.asarray(mosaics("float32" if dtype == "bfloat16" else dtype), dtype)
    got = ops.demosaic(images, pattern=pattern)
    assert got.dtype == jnp.dtype(dtype)
    rows, columns = np.mgrid[:10, :13]
    letters = np.array(list(pattern)).reshape(2, 2)[rows % 2, columns % 2]
    beside = np.array(list(pattern)).reshape(2, 2)[rows % 2, (columns + 1) % 2]
    most = np.iinfo(dtype).max if dtype in ("uint8", "uint16") else None
    rounding = {"float32": 1e-6, "bfloat16": 2**-7}.get(dtype, 0.5 + 1e-2)
    for result, image in zip(got, np.asarray(images, np.float64)[..., 0], strict=True):
        green, opposite, sides, over = (
            ndimage.correlate(image, window / 8, mode="mirror")
            for window in (GREEN, OPPOSITE, SIDES, SIDES.T)
        )
        planes = []
        for colour in "RGB":
            guess = np.where(beside == colour, sides, over)
            guess = np.where(letters == "G", guess, opposite)
            guess = green if colour == "G" else guess
            planes.append(np.where(letters == colour, image, guess))
        want = np.stack(planes, -1)
        want = want if most is None else np.clip(want, 0, most)
        np.testing.assert_allclose(np.asarray(result, np.float64), want, atol=rounding)


@pytest.mark.sample(2)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mosaic_keeps_the_filters_colours(pattern):
    image = np.stack([np.full((5, 7), level) for level in (10, 20, 30)], -1).astype(np.uint8)
    mosaic = ops.bayer_mosaic(image, pattern=pattern)
    levels = np.array([{"R": 10, "G": 20, "B": 30}[letter] for letter in pattern]).reshape(2, 2)
    np.testing.assert_array_equal(mosaic[..., 0], np.tile(levels, (3, 4))[:5, :7])
    for method in ("bilinear", "malvar"):
        flat = np.full((5, 7, 3), 90, np.uint8)
        back = ops.demosaic(ops.bayer_mosaic(flat, pattern=pattern), pattern=pattern, method=method)
        np.testing.assert_array_equal(back, flat)


@pytest.mark.slow
def test_layouts_and_gradients():
    images = np.random.default_rng(1).random((4, 6, 8, 3), np.float32)

    @partial(jax.jit, static_argnums=(1, 2))
    def both(images, axes=(-3, -2), channel=-1):
        mosaic = ops.bayer_mosaic(images, axes=axes, channel=channel)
        return ops.demosaic(mosaic, axes=axes, channel=channel)

    planes = both(np.moveaxis(images, -1, 1), (-2, -1), 1)
    np.testing.assert_allclose(jnp.moveaxis(planes, 1, -1), both(images), atol=1e-6)
    np.testing.assert_allclose(jax.vmap(both)(images), both(images), atol=1e-6)
    # Linear: the gradient times the picture is the value.
    value, slope = jax.value_and_grad(lambda x: (both(x) * images).sum())(jnp.asarray(images))
    np.testing.assert_allclose(jnp.vdot(slope, images), value, rtol=1e-4)


IMAGE = np.zeros((2, 4, 5, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.bayer_mosaic, IMAGE[..., :1]), "must hold R, G and B"),
        (partial(ops.bayer_mosaic, IMAGE, pattern="RGBG"), "unknown pattern"),
        (partial(ops.demosaic, IMAGE), "a mosaic has one channel, got 3"),
        (partial(ops.demosaic, IMAGE[..., :1], method="ahd"), "unknown method"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
