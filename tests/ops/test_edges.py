"""Sobel, Laplace and Canny against OpenCV and SciPy."""

from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage
from skimage import data

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

pytestmark = pytest.mark.usefixtures("xla_kernels")

CASES = 60
FLAT: dict[str, Any] = {"axes": (-2, -1)}


def photos(dtype="uint8", shape=(33, 37)):
    """Windows of a photo, from flat to textured, and one of noise."""
    photo = data.chelsea()[..., 1]
    rng = np.random.default_rng(0)
    tops = rng.integers(0, photo.shape[0] - shape[0], CASES)
    lefts = rng.integers(0, photo.shape[1] - shape[1], CASES)
    cut = [photo[y : y + shape[0], x : x + shape[1]] for y, x in zip(tops, lefts, strict=True)]
    cut[0] = rng.integers(0, 256, shape, np.uint8)
    return jnp.asarray(np.stack(cut) * {"uint8": 1.0, "uint16": 257.0}.get(dtype, 1 / 255), dtype)


ORDERS = {3: (0, 1), 5: (1, 1), 7: (2, 0)}


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_derivatives_are_opencvs(size, dtype):
    images = photos(dtype)
    exact = np.asarray(images.astype(jnp.float32), np.float64)
    results = {"laplacian": ops.laplacian(images, kernel_size=size, **FLAT)}
    references = {"laplacian": [cv2.Laplacian(x, cv2.CV_64F, ksize=size) for x in exact]}
    if size > 1:
        down, along = ORDERS[size]
        results["sobel"] = ops.sobel(images, (down, along), kernel_size=size, **FLAT)
        references["sobel"] = [cv2.Sobel(x, cv2.CV_64F, along, down, ksize=size) for x in exact]
    for name, got in results.items():
        assert got.dtype == ("bfloat16" if dtype == "bfloat16" else "float32")
        want = np.stack(references[name])
        rtol = {"uint8": 0, "bfloat16": 2**-8}.get(dtype, 1e-6)
        atol = rtol * np.abs(want).max()
        np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=0, atol=atol, err_msg=name)


def test_laplacian_is_scipys_at_every_border():
    image = np.asarray(photos("float32")[:4], np.float64)
    modes = {"reflect101": "mirror", "symmetric": "reflect", "edge": "nearest", "wrap": "wrap"}
    for border, mode in modes.items():
        want = np.stack([ndimage.laplace(x, mode=mode) for x in image])
        got = ops.laplacian(image.astype(np.float32), border=border, **FLAT)
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("shape", "size", "euclidean"),
    [((33, 37), 3, False), ((33, 37), 5, True), ((1, 1), 3, True), ((2, 9), 5, False)],
)
def test_canny_is_opencvs(shape, size, euclidean):
    images = np.asarray(photos(shape=shape))
    rng = np.random.default_rng(1)
    low, high = rng.uniform(0, 250, (2, CASES)).astype(np.float32) * (1 if size == 3 else 12)
    got = jax.jit(partial(ops.canny, kernel_size=size, euclidean=euclidean, **FLAT))(
        images, low, high
    )
    want = [
        cv2.Canny(x, *limits, apertureSize=size, L2gradient=euclidean)
        for x, *limits in zip(images, low.tolist(), high.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(got, np.stack(want) > 0)
    assert shape != (33, 37) or 0.05 < got.mean() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_canny_of_other_dtypes_is_that_of_levels(dtype):
    images = photos(dtype)
    scale = {"uint16": 257}.get(dtype, 1 / 255)
    got = ops.canny(images, 60.5 * scale, 120.5 * scale, **FLAT)
    levels = np.asarray(photos())
    want = np.stack([cv2.Canny(x, 60, 120) for x in levels]) > 0
    assert got.dtype == bool
    # Ties of integers come out of float quotients by 255 either way.
    assert (np.asarray(got) != want).mean() < (1e-4 if dtype == "uint16" else 0.01)


def test_canny_follows_lines_through_many_turns():
    spiral = np.zeros((41, 41), np.uint8)
    for ring in range(2, 20, 4):
        spiral[ring : 41 - ring, ring : 41 - ring] = 25 * (ring // 4 % 2)
    spiral[1:3, 1:3] = 255
    want = cv2.Canny(spiral, 50, 400) > 0
    np.testing.assert_array_equal(ops.canny(spiral, 50, 400, axes=(0, 1)), want)


@pytest.mark.slow
def test_canny_in_layouts_and_batches():
    images = jnp.stack([photos(shape=(11, 13))[:6]] * 2, -1)
    want = jax.jit(partial(ops.canny, low=50, high=100))(images)
    planes = jax.jit(partial(ops.canny, low=50, high=100, **FLAT))(jnp.moveaxis(images, -1, 1))
    np.testing.assert_array_equal(jnp.moveaxis(planes, 1, -1), want)
    one = partial(ops.canny, low=50, high=100)
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(images), want)
    assert ops.canny(images[:0], 1, 2).shape == (0, *want.shape[1:])


IMAGE = np.zeros((2, 4, 5, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.sobel, IMAGE, (0, 1), kernel_size=4), ValueError, "must be one of (3, 5, 7)"),
        (partial(ops.sobel, IMAGE, (0, 3)), ValueError, "whole numbers from 0 to 2"),
        (partial(ops.sobel, IMAGE, (1, -1)), ValueError, "two whole numbers"),
        (partial(ops.laplacian, IMAGE, kernel_size=2), ValueError, "must be one of (1, 3, 5, 7)"),
        (partial(ops.canny, IMAGE, 1, 2, kernel_size=7), ValueError, "must be one of (3, 5)"),
        (partial(ops.canny, IMAGE, "a", 2), TypeError, "low must hold numbers"),
        (partial(ops.canny, IMAGE, 1, np.ones(3)), ValueError, "no value for each image"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
