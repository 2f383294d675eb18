"""At least sixty random pictures for functions whose own tests have few: odd sizes, one pixel."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from skimage.util import random_noise

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

CASES = 60


def pictures(shape, dtype="float32", seed=0):
    peak = np.iinfo(dtype).max if dtype.startswith("uint") else 1
    return jnp.asarray(np.random.default_rng(seed).random((CASES, *shape)) * peak, dtype)


def in_float64(x):
    return np.asarray(x.astype(jnp.float32), np.float64)


@pytest.mark.parametrize("size", [(1, 1), (7, 5)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_psnr_is_scikit_images(dtype, size):
    images, references = pictures((*size, 3), dtype), pictures((*size, 3), dtype, seed=1)
    white = 255 if dtype == "uint8" else 1
    pairs = zip(in_float64(references), in_float64(images), strict=True)
    want = [peak_signal_noise_ratio(*pair, data_range=white) for pair in pairs]
    np.testing.assert_allclose(ops.psnr(images, references, data_range=white), want, atol=1e-4)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_ssim_is_scikit_images(dtype):
    images, references = pictures((11, 14, 3), dtype), pictures((11, 14, 3), dtype, seed=1)
    white = 255 if dtype == "uint8" else 1
    want = [
        structural_similarity(
            *pair, data_range=white, channel_axis=-1, gaussian_weights=True,
            use_sample_covariance=False,
        )
        for pair in zip(in_float64(references), in_float64(images), strict=True)
    ]  # fmt: skip
    np.testing.assert_allclose(ops.ssim(images, references, data_range=white), want, atol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [(1, 1), (5, 7)])
@pytest.mark.parametrize("pattern", ["RGGB", "BGGR", "GRBG", "GBRG"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_mosaics_hold_the_patterns_pixels(dtype, pattern, size):
    images = pictures((*size, 3), dtype)
    mosaic = np.asarray(ops.bayer_mosaic(images, pattern=pattern)[..., 0])
    for place, letter in enumerate(pattern):
        rows, columns = slice(place // 2, None, 2), slice(place % 2, None, 2)
        channel = np.asarray(images[..., "RGB".index(letter)])
        np.testing.assert_array_equal(mosaic[:, rows, columns], channel[:, rows, columns])


@pytest.mark.parametrize("size", [(1, 1), (5, 7)])
def test_normalise_and_its_inverse_are_torchs_arithmetic(size):
    images = pictures((*size, 3), "uint8")
    want = torch.from_numpy(np.array(images)).double().div(127.5).sub(1)
    unit = ops.normalise(images)
    np.testing.assert_allclose(unit, want, atol=2e-7)
    np.testing.assert_array_equal(ops.denormalise(unit), images)
    reals = pictures((*size, 3)) * 3 - 1.5
    levels = torch.from_numpy(np.array(reals)).double().add(1).mul(127.5).round().clamp(0, 255)
    apart = np.abs(np.asarray(ops.denormalise(reals), int) - levels.numpy())
    assert apart.max() <= 1 and apart.mean() < 1e-2


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_masks_pasted_back_are_opencvs(dtype):
    frames, patches = pictures((9, 12, 3), dtype), pictures((4, 5, 3), dtype, seed=1)
    masks = jnp.ones((CASES, 9, 12, 1), jnp.float32)
    got = ops.mask_paste(frames, patches, masks, (2, 1, 10, 8))
    want = np.stack([cv2.resize(np.asarray(x, np.float32), (8, 7)) for x in patches])
    rounding = 0.5 if dtype == "uint8" else 0
    np.testing.assert_allclose(in_float64(got)[:, 1:8, 2:10], want, atol=rounding + 1e-3)
    outside = np.array(got)
    outside[:, 1:8, 2:10] = np.array(frames)[:, 1:8, 2:10]
    np.testing.assert_array_equal(outside, frames)


@pytest.mark.slow
def test_noise_has_scikit_images_deviation():
    grey = jnp.full((CASES, 31, 33, 1), 0.5, jnp.float32)
    ours = {
        "gaussian": ops.gaussian_noise(jax.random.key(0), grey, 0.05),
        "s&p": ops.salt_and_pepper(jax.random.key(1), grey, 0.1),
        "poisson": ops.poisson_noise(jax.random.key(2), grey, 256.0),
    }
    noisy = partial(random_noise, np.asarray(grey, np.float64), rng=0)
    deviations = {
        "gaussian": noisy("gaussian", var=0.05**2).std(),
        "s&p": noisy("s&p", amount=0.1).std(),
        "poisson": np.sqrt(0.5 / 256),  # of 128 photons, as parts of 256
    }
    for mode, deviation in deviations.items():
        each = np.asarray(ours[mode]).std(axis=(1, 2, 3))
        np.testing.assert_allclose(each.mean(), deviation, rtol=0.03, err_msg=mode)
        assert each.std() < 0.1 * each.mean(), mode
