"""Losses between pictures: means over all their elements, in the inputs' dtype.

Pictures are (B, C, H, W). Intensities are those of the caller; SSIM expects 0…1.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from jaxsr.errors import InputError

_CHARBONNIER_EPSILON = 1e-3  # Lai et al. 2017 (LapSRN), arXiv:1704.03915, section 3.3
_WINDOW, _SIGMA = 11, 1.5  # Wang et al. 2004, section III-B
_C1, _C2 = 0.01**2, 0.03**2
_LEVEL = 0.5
"""Taken off before squaring: variances stay, and float32's E[x²] - E[x]² keeps its digits."""


def l1(image: Tensor, target: Tensor) -> Tensor:
    """Mean absolute difference."""
    return F.l1_loss(image, _checked(image, target))


def smooth_l1(image: Tensor, target: Tensor) -> Tensor:
    """Quadratic where the difference is below 1, absolute beyond."""
    return F.smooth_l1_loss(image, _checked(image, target))


def mse(image: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference."""
    return F.mse_loss(image, _checked(image, target))


def charbonnier(image: Tensor, target: Tensor) -> Tensor:
    """Mean of √(difference² + 1e-6): an absolute difference that is smooth at 0."""
    return torch.sqrt((image - _checked(image, target)) ** 2 + _CHARBONNIER_EPSILON**2).mean()


def ssim(image: Tensor, target: Tensor) -> Tensor:
    """1 − SSIM of pictures in 0…1: Gaussian window of 11 pixels, where it fits.

    `skimage.metrics.structural_similarity` with `gaussian_weights=True` and
    `use_sample_covariance=False` gives the same SSIM.

    Raises:
      ValueError: the shapes differ, or a side is below 11 pixels.
    """
    _checked(image, target)
    if min(image.shape[2:]) < _WINDOW:
        raise InputError(
            f"the ssim loss needs images of at least {_WINDOW}×{_WINDOW} px, got "
            f"{image.shape[2]}×{image.shape[3]}; use a larger crop"
        )
    u, v = image - _LEVEL, target - _LEVEL
    mean_u, mean_v, squares_u, squares_v, products = (
        _windowed(x) for x in (u, v, u * u, v * v, u * v)
    )
    variances = squares_u + squares_v - mean_u**2 - mean_v**2
    covariance = products - mean_u * mean_v
    mean_x, mean_y = mean_u + _LEVEL, mean_v + _LEVEL
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    return 1 - (luminance * (2 * covariance + _C2) / (variances + _C2)).mean()


def _windowed(x_BCHW: Tensor) -> Tensor:
    """The Gaussian mean about each pixel whose window lies inside."""
    places = range(-(_WINDOW // 2), _WINDOW // 2 + 1)
    weights = [math.exp(-0.5 * (place / _SIGMA) ** 2) for place in places]
    taps = x_BCHW.new_tensor([weight / sum(weights) for weight in weights])
    channels = x_BCHW.shape[1]
    down = taps.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1)
    x_BCHW = F.conv2d(x_BCHW, down, groups=channels)
    return F.conv2d(x_BCHW, down.transpose(2, 3), groups=channels)


def _checked(image: Tensor, target: Tensor) -> Tensor:
    """The target, which torch would broadcast where its shape differs.

    Raises:
      ValueError: it does.
    """
    if image.shape != target.shape:
        raise InputError(
            f"the output is {tuple(image.shape)} and the truth {tuple(target.shape)}; the high "
            "images must be exactly `scale` times the low ones, with the same channels"
        )
    return target


PICTURE_LOSSES = {
    "l1": l1,
    "smooth_l1": smooth_l1,
    "mse": mse,
    "charbonnier": charbonnier,
    "ssim": ssim,
}
"""The losses by the name that options give them."""
