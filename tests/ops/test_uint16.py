"""uint16 in `resize`, `gaussian_blur` and luma: OpenCV's bits, or a float64 reference rounded."""

import cv2
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from skimage import color

from jaxsr import ops

OFF = 0.5 + 0.02  # a half, and float32's rounding of 65535 in a few sums


def levels(*shape):
    return np.random.default_rng(0).integers(0, 65536, shape).astype(np.uint16)


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [(7, 30), (21, 9)], ids=str)
@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_resize_is_opencvs(method, size):
    flag = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR}[method]
    images = levels(8, 12, 17, 3)
    got = ops.resize(images, size, method=method, convention="opencv")
    for result, image in zip(got, images, strict=True):
        np.testing.assert_array_equal(result, cv2.resize(image, size[::-1], interpolation=flag))


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_resize_is_torchs_rounded(method):
    images = levels(8, 12, 17, 3)
    planes = torch.from_numpy(np.moveaxis(images, -1, 1).astype(np.float64))
    want = F.interpolate(planes, (7, 9), mode=method, antialias=True).clamp(0, 65535)
    got = ops.resize(images, (7, 9), method=method, antialias=True)
    assert got.dtype == jnp.uint16
    assert np.abs(np.asarray(got, float) - np.moveaxis(want.numpy(), 1, -1)).max() < OFF


def test_resize_is_pillows_rounded():
    image = levels(12, 17)
    want = Image.fromarray(image.astype(np.float32)).resize((9, 7), Image.Resampling.LANCZOS)
    got = ops.resize(image[..., None], (7, 9), method="lanczos", convention="pillow")
    want = np.clip(np.asarray(want, float), 0, 65535)
    assert np.abs(np.asarray(got, float)[..., 0] - want).max() < OFF


@pytest.mark.sample(2)
@pytest.mark.parametrize("border", ["reflect101", "edge"])
@pytest.mark.parametrize("sigma", [(0.8, 2.3), (3.0, 0.5)], ids=str)
def test_blur_is_opencvs(sigma, border):
    flag = {"reflect101": cv2.BORDER_REFLECT_101, "edge": cv2.BORDER_REPLICATE}[border]
    images = levels(8, 19, 23, 3)
    images[0] = 65535
    got = ops.gaussian_blur(images, sigma=sigma, convention="opencv", border=border)
    for result, image in zip(got, images, strict=True):
        want = cv2.GaussianBlur(image, (0, 0), sigma[1], sigmaY=sigma[0], borderType=flag)
        np.testing.assert_array_equal(result, want)


def test_blur_is_scipys_rounded():
    image = levels(19, 23, 1)
    want = ndimage.gaussian_filter(image[..., 0].astype(np.float64), 1.5, mode="mirror")
    got = ops.gaussian_blur(image, sigma=1.5)
    assert np.abs(np.asarray(got, float)[..., 0] - want).max() < OFF


def test_luma_is_scikit_images_rounded():
    """Its YCbCr is MATLAB's on the scale of 255; 65535 is 257 times as much."""
    image = levels(20, 20, 3)
    want = color.rgb2ycbcr(image.astype(np.float64) / 65535) * 257
    got = ops.rgb_to_ycbcr(image)
    assert got.dtype == jnp.uint16
    assert np.abs(np.asarray(got, float) - want).max() < OFF
    np.testing.assert_array_equal(ops.rgb_to_y(image)[..., 0], got[..., 0])
    # Chroma of strong colours is rounded, and inverse coefficients reach 2.1.
    back = np.asarray(ops.ycbcr_to_rgb(got), float)
    assert np.abs(back - image).max() <= 3
