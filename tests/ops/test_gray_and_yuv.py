"""Gray and YUV against Pillow, OpenCV and scikit-image; white balance and `standardise`."""

import math
from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import color

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

pytestmark = pytest.mark.usefixtures("xla_kernels")

CASES = 64
PEAKS = {"uint8": 255, "uint16": 65535}


def pictures(dtype="uint8", shape=(CASES, 5, 7, 3)):
    peak = PEAKS.get(dtype, 1)
    drawn = np.random.default_rng(0).random(shape) * peak
    return jnp.asarray(np.rint(drawn) if peak > 1 else drawn, dtype)


def exactly(images):
    return np.asarray(images.astype(jnp.float32), np.float64)


def as_rows(images):
    """OpenCV and Pillow take one picture."""
    return np.asarray(images).reshape(-1, *images.shape[2:])


def test_gray_of_integers():
    images = as_rows(pictures())
    pillow = np.asarray(Image.fromarray(images).convert("L"))
    np.testing.assert_array_equal(ops.rgb_to_gray(images)[..., 0], pillow)
    for dtype in ("uint8", "uint16"):
        images = as_rows(pictures(dtype))
        got = ops.rgb_to_gray(images, convention="opencv")[..., 0]
        np.testing.assert_array_equal(got, cv2.cvtColor(images, cv2.COLOR_RGB2GRAY))


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_gray_by_weights(dtype):
    images = pictures(dtype)
    peak = PEAKS.get(dtype, 1)
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5) + 5e-7 * peak
    want = color.rgb2gray(exactly(images))
    got = ops.rgb_to_gray(images, convention="scikit-image")
    assert got.dtype == images.dtype and got.shape == (*images.shape[:-1], 1)
    np.testing.assert_allclose(exactly(got)[..., 0], want, atol=rounding)
    mean = jax.jit(ops.rgb_to_gray)(images, weights=np.full(3, 1 / 3))
    np.testing.assert_allclose(exactly(mean)[..., 0], exactly(images).mean(-1), atol=rounding)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_yuv_of_integers_is_opencvs(dtype):
    images = as_rows(pictures(dtype))
    want = cv2.cvtColor(images, cv2.COLOR_RGB2YUV)
    np.testing.assert_array_equal(ops.rgb_to_yuv(images), want)
    np.testing.assert_array_equal(ops.yuv_to_rgb(images), cv2.cvtColor(images, cv2.COLOR_YUV2RGB))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_yuv_of_floats_is_scikit_images(dtype):
    images = pictures(dtype)
    atol = 3e-7 if dtype == "float32" else 2**-8
    got = ops.rgb_to_yuv(images)
    assert got.dtype == images.dtype
    np.testing.assert_allclose(exactly(got), color.rgb2yuv(exactly(images)), atol=atol)
    back = exactly(ops.yuv_to_rgb(got))
    np.testing.assert_allclose(back, color.yuv2rgb(exactly(got)), atol=10 * atol)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_white_balance_makes_one_colour_grey(dtype):
    images = pictures(dtype, (CASES, 5, 7, 3))
    peak = PEAKS.get(dtype, 1)
    whites = np.random.default_rng(1).uniform(0.5, 1, (CASES, 3)).astype(np.float32)
    got = ops.white_balance(images, whites)
    assert got.dtype == images.dtype
    want = exactly(images) * (whites.mean(-1, keepdims=True) / whites)[:, None, None]
    want = want.clip(0, peak) if peak > 1 else want
    rounding = {"float32": 1e-6, "bfloat16": 2**-7}.get(dtype, 0.5 + 1e-6 * peak)
    np.testing.assert_allclose(exactly(got), want, atol=rounding)
    planes = ops.white_balance(jnp.moveaxis(images, -1, 1), whites, axes=(-2, -1), channel=1)
    np.testing.assert_array_equal(jnp.moveaxis(planes, 1, -1), got)


def test_white_balance_by_an_estimate():
    images = pictures("float32") * jnp.asarray([1.0, 0.5, 0.7])
    grey_world = exactly(ops.white_balance(images)).mean((1, 2))
    np.testing.assert_allclose(
        grey_world, grey_world.mean(-1, keepdims=True) + 0 * grey_world, atol=1e-6
    )
    np.testing.assert_allclose(grey_world.mean(-1), exactly(images).mean((1, 2, 3)), rtol=1e-6)
    patch = exactly(ops.white_balance(images, norm=math.inf)).max((1, 2))
    np.testing.assert_allclose(patch, patch[:, :1] + 0 * patch, rtol=1e-6)
    shades = exactly(ops.white_balance(images, norm=6))
    norms = (shades**6).mean((1, 2))
    np.testing.assert_allclose(norms, norms[:, :1] + 0 * norms, rtol=1e-5)
    black = ops.white_balance(images.at[..., 1].set(0))
    assert np.isfinite(black).all() and not black[..., 1].any()


@pytest.mark.parametrize("norm", [1.5, 6])
def test_gradient_of_an_estimate_without_a_channel_is_torchs(norm):
    images = pictures("float32").at[..., 2].set(0)
    slope = jax.grad(lambda x: jnp.square(ops.white_balance(x, norm=norm)[..., :2]).sum())(images)
    x = torch.tensor(exactly(images)[..., :2], requires_grad=True)
    white = x.pow(norm).mean((1, 2), keepdim=True).pow(1 / norm)
    (x * white.sum(-1, keepdim=True) / 3 / white).square().sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(slope[..., :2], x.grad, rtol=1e-4, atol=1e-5)
    assert not np.asarray(slope[..., 2]).any()


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_standardise_is_torchs_arithmetic(dtype):
    images = pictures(dtype)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    unit = torch.from_numpy(exactly(images) / PEAKS.get(dtype, 1))
    want = (unit - torch.tensor(mean).double()) / torch.tensor(std).double()
    got = jax.jit(ops.standardise)(images, np.array(mean), np.array(std))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=2e-6)
    planes = ops.standardise(jnp.moveaxis(images, -1, 1), mean, std, channel=1, dtype="bfloat16")
    np.testing.assert_allclose(exactly(jnp.moveaxis(planes, 1, -1)), want, atol=1e-2)


IMAGE = np.zeros((2, 4, 5, 3), np.float32)
UNKNOWN: Any = {"convention": "bt2020"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.rgb_to_gray, IMAGE, weights=(1, 2)), ValueError, "weights must have the sh"),
        (partial(ops.rgb_to_gray, IMAGE, weights=np.ones((2, 3))), ValueError, "three numbers"),
        (partial(ops.rgb_to_gray, IMAGE, **UNKNOWN), ValueError, "choose one of pillow"),
        (partial(ops.rgb_to_yuv, IMAGE[..., :1]), ValueError, "must hold R, G and B"),
        (partial(ops.white_balance, IMAGE, np.ones((3, 3))), ValueError, "no colour for each"),
        (partial(ops.white_balance, IMAGE, norm=0.5), ValueError, "norm must be a number from 1"),
        (partial(ops.white_balance, IMAGE[..., :2]), ValueError, "must hold R, G and B"),
        (partial(ops.standardise, IMAGE, (1, 2), 1), ValueError, "mean must be one number or 3"),
        (partial(ops.standardise, IMAGE, "a", 1), TypeError, "mean must hold numbers"),
        (partial(ops.standardise, IMAGE, 0, 1, dtype="uint8"), TypeError, "needs a floating"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
