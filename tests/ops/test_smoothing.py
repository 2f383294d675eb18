"""Bilateral filter, guided filter and sharpening against OpenCV, kornia and scikit-image."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from kornia.filters import guided_blur
from scipy import ndimage
from skimage import data, filters

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

pytestmark = pytest.mark.usefixtures("xla_kernels")

CASES = 60
PEAKS = {"uint8": 255, "uint16": 65535}


def photos(dtype="float32", shape=(13, 15)):
    photo = data.chelsea()
    rng = np.random.default_rng(0)
    tops = rng.integers(0, photo.shape[0] - shape[0], CASES)
    lefts = rng.integers(0, photo.shape[1] - shape[1], CASES)
    cut = np.stack(
        [photo[y : y + shape[0], x : x + shape[1]] for y, x in zip(tops, lefts, strict=True)]
    )
    return jnp.asarray(cut * {"uint8": 1.0, "uint16": 257.0}.get(dtype, 1 / 255), dtype)


def exactly(images):
    return np.asarray(images.astype(jnp.float32), np.float64)


def rounding(dtype, error):
    peak = PEAKS.get(dtype, 1)
    return {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5) + error * peak


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(13, 15), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_bilateral_is_opencvs(dtype, shape):
    images = np.asarray(photos(dtype, shape))
    rng = np.random.default_rng(1)
    color = rng.uniform(0.05, 0.5, CASES).astype(np.float32) * PEAKS.get(dtype, 1)
    space = rng.uniform(0.5, 3, CASES).astype(np.float32)
    got = jax.jit(partial(ops.bilateral_filter, size=7))(images, color, space)
    want = [
        cv2.bilateralFilter(image, 7, *sigmas)
        for image, *sigmas in zip(images, color.tolist(), space.tolist(), strict=True)
    ]
    difference = np.abs(exactly(got) - np.stack(want))
    # OpenCV tabulates exponentials of floats.
    assert difference.max() <= (1 if dtype == "uint8" else 1e-5)
    assert dtype != "uint8" or (difference > 0).mean() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "uint16"])
def test_bilateral_of_other_dtypes(dtype):
    images, peak = photos(dtype), PEAKS.get(dtype, 1)
    got = ops.bilateral_filter(images, 0.1 * peak, 2.0)
    assert got.dtype == images.dtype
    want = [cv2.bilateralFilter(x.astype(np.float32), 7, 0.1, 2.0) for x in exactly(images) / peak]
    np.testing.assert_allclose(exactly(got), np.stack(want) * peak, atol=rounding(dtype, 1e-5))
    alone = ops.bilateral_filter(images, 0.1 * peak, 2.0, channel=None)
    grey = ops.bilateral_filter(images[..., 1:2], 0.1 * peak, 2.0)
    np.testing.assert_array_equal(alone[..., 1:2], grey)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guides", "dtype"), [(1, "bfloat16"), (1, "uint8"), (3, "float32"), (3, "uint16")]
)
def test_guided_is_kornias(guides, dtype):
    images = photos(dtype)
    guide, image = images[..., :guides], images[..., ::-1]
    got = ops.guided_filter(image, guide, 5, 0.01)
    assert got.dtype == images.dtype
    peak = PEAKS.get(dtype, 1)
    tensors = [torch.from_numpy(exactly(x) / peak).movedim(-1, 1) for x in (guide, image)]
    want = guided_blur(tensors[0], tensors[1], 5, 0.01).movedim(1, -1) * peak
    want = want.clip(0, peak) if peak > 1 else want
    np.testing.assert_allclose(exactly(got), want, atol=rounding(dtype, 2e-6))


@pytest.mark.slow
def test_guided_by_itself_with_an_eps_for_each_picture():
    image = photos()[:4, ..., :1]
    eps = np.geomspace(1e-4, 1, 4).astype(np.float32)
    guided = jax.jit(lambda x, e: ops.guided_filter(x, x, 3, e))
    got = guided(image, eps)
    single = jax.jit(jax.vmap(guided))(image, eps)
    np.testing.assert_allclose(got, single, atol=1e-6)
    spread = jax.jit(jax.value_and_grad(lambda e: guided(image, e).var()))
    change = spread(0.011)[0] - spread(0.009)[0]
    np.testing.assert_allclose(spread(0.01)[1], change / 0.002, rtol=2e-2)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_unsharp_mask_is_scikit_images(dtype):
    images, peak = photos(dtype), PEAKS.get(dtype, 1)
    amounts = np.linspace(-0.5, 2, CASES).astype(np.float32)
    got = ops.unsharp_mask(images, 1.3, amounts)
    assert got.dtype == images.dtype
    want = [
        np.stack([filters.unsharp_mask(plane, 1.3, amount) for plane in np.moveaxis(x, -1, 0)], -1)
        for x, amount in zip(exactly(images) / peak, amounts.tolist(), strict=True)
    ]
    # scikit-image clips floats.
    np.testing.assert_allclose(
        exactly(got).clip(0, peak), np.stack(want) * peak, atol=rounding(dtype, 2e-6)
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", EVERY_DTYPE[:3])
def test_traced_sigmas_are_scipys(dtype):
    images = photos(dtype)
    vertical = np.random.default_rng(1).uniform(0.2, 4, CASES).astype(np.float32)
    horizontal = np.full(CASES, 0.8, np.float32)
    blur = jax.jit(partial(ops.gaussian_blur, kernel_size=(9, 7), border="symmetric"))
    got = blur(images, sigma=(vertical, horizontal))
    assert got.dtype == images.dtype
    want = [
        ndimage.gaussian_filter(x, (sigma, 0.8), radius=(4, 3), axes=(0, 1), mode="reflect")
        for x, sigma in zip(exactly(images), vertical.tolist(), strict=True)
    ]
    np.testing.assert_allclose(exactly(got), np.stack(want), atol=rounding(dtype, 1e-6))


@pytest.mark.slow
def test_traced_sigma_in_other_layouts_and_its_gradient():
    images = photos()
    sigma = np.linspace(0, 2, CASES).astype(np.float32)
    blur = partial(ops.gaussian_blur, kernel_size=5)
    got = blur(images, sigma=sigma)
    np.testing.assert_array_equal(np.asarray(got)[0], images[0])  # sigma 0
    planes = blur(jnp.moveaxis(images, -1, 1), sigma=sigma, axes=(-2, -1))
    np.testing.assert_allclose(jnp.moveaxis(planes, 1, -1), got, atol=1e-6)
    mapped = jax.vmap(lambda x, s: blur(x, sigma=s))(images, sigma)
    np.testing.assert_allclose(mapped, got, atol=1e-6)
    np.testing.assert_allclose(got[30], blur(images[30], sigma=sigma[30].item()), atol=1e-6)
    spread = jax.value_and_grad(lambda s: jnp.square(blur(images, sigma=s)).mean())
    change = spread(jnp.asarray(1.01))[0] - spread(jnp.asarray(0.99))[0]
    np.testing.assert_allclose(spread(jnp.asarray(1.0))[1], change / 0.02, rtol=2e-2)
    assert blur(images[:0], sigma=sigma[:0]).shape == (0, *images.shape[1:])


def test_a_nan_stays_within_the_windows():
    image = photos()[0].at[6, 7].set(jnp.nan)
    reached = np.zeros((13, 15), bool)
    reached[4:9, 5:10] = True
    for call in (
        partial(ops.bilateral_filter, sigma_color=0.1, sigma_space=1.0, size=5),
        partial(ops.gaussian_blur, sigma=jnp.asarray(1.0), kernel_size=5),
        partial(ops.unsharp_mask, sigma=jnp.asarray(1.0), kernel_size=5),
    ):
        got = np.asarray(jnp.isnan(call(image)).any(-1))
        assert got[6, 7] and not (got & ~reached).any()


IMAGE = np.zeros((2, 6, 5, 3), np.float32)
SIGMA = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.bilateral_filter, IMAGE, 0.1, SIGMA), TypeError, "needs size"),
        (partial(ops.bilateral_filter, IMAGE, 0.1, 1.0, size=4), ValueError, "size must be an odd"),
        (partial(ops.bilateral_filter, IMAGE, 0.1, 0.0), ValueError, "sigma_space must be"),
        (partial(ops.bilateral_filter, IMAGE, 1, 1, channel=1), ValueError, "also one of axes"),
        (partial(ops.guided_filter, IMAGE, IMAGE[..., :2], 3, 1), ValueError, "does not fit"),
        (partial(ops.guided_filter, IMAGE, IMAGE[0], 3, 1), ValueError, "does not fit"),
        (partial(ops.guided_filter, IMAGE, IMAGE, 2, 1), ValueError, "size must be an odd"),
        (partial(ops.unsharp_mask, IMAGE, 1.0, "a"), TypeError, "amount must hold numbers"),
        (partial(ops.gaussian_blur, IMAGE, sigma=SIGMA), ValueError, "needs kernel_size"),
        (partial(ops.gaussian_blur, IMAGE, sigma=SIGMA, kernel_size=4), ValueError, "must be odd"),
        (
            partial(ops.gaussian_blur, IMAGE, sigma=np.ones(3), kernel_size=3),
            ValueError,
            "no value for each image",
        ),
        (
            partial(
                ops.gaussian_blur,
                IMAGE.astype(np.uint8),
                sigma=SIGMA,
                kernel_size=3,
                convention="opencv",
            ),
            ValueError,
            "needs sigma as a number",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_infinite_pixel_has_no_weight_beside_finite_ones():
    image = np.zeros((9, 9, 1), np.float32)
    image[4, 4] = np.inf
    smooth = np.asarray(ops.bilateral_filter(image, 0.1, 2.0))
    assert np.count_nonzero(smooth) == 1 and not np.isfinite(smooth[4, 4])
