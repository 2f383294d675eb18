"""Losses between images: means over all their elements, in the inputs' dtype.

Images are (B, C, H, W). Intensities are those of the caller; SSIM and MS-SSIM expect 0…1.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from jaxsr.errors import InputError

_CHARBONNIER_EPSILON = 1e-3  # Lai et al. 2017 (LapSRN), arXiv:1704.03915, section 3.3
_WINDOW, _SIGMA = 11, 1.5  # Wang et al. 2004, section III-B
_C1, _C2 = 0.01**2, 0.03**2
_MS_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # Wang et al. 2003, section 3.2
_MS_SIDE = (_WINDOW - 1) * 2 ** (len(_MS_WEIGHTS) - 1) + 1
_MS_FLOOR = 1e-6
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
    """1 − SSIM of images in 0…1: Gaussian window of 11 pixels, where it fits.

    `skimage.metrics.structural_similarity` with `gaussian_weights=True` and
    `use_sample_covariance=False` gives the same SSIM.

    Raises:
      ValueError: the shapes differ, or a side is below 11 pixels.
    """
    _check_side(_checked(image, target), "ssim", _WINDOW)
    luminance, contrast = _similarity(image, target)
    return 1 - (luminance * contrast).mean()


def ms_ssim(image: Tensor, target: Tensor) -> Tensor:
    """1 − MS-SSIM of images in 0…1 (Wang et al. 2003, section 3.1).

    Contrast and structure of five scales, each half the one before, and the luminance of the last,
    each to the power of its weight; a mean over channels and images. Sides that are odd repeat
    their last row or column, as in the authors' code.

    Raises:
      ValueError: the shapes differ, or a side is below 161 pixels: the last scale's window.
    """
    _check_side(_checked(image, target), "ms_ssim", _MS_SIDE)
    product = image.new_ones(image.shape[:2])
    for scale, weight in enumerate(_MS_WEIGHTS):
        luminance, contrast = _similarity(image, target)
        last = scale == len(_MS_WEIGHTS) - 1
        similarity = (luminance * contrast if last else contrast).mean((2, 3))
        # Negative ones have no real power, and the power's slope at 0 is infinite.
        product = product * similarity.clamp_min(_MS_FLOOR) ** weight
        if not last:
            image, target = _halved(image), _halved(target)
    return 1 - product.mean()


def focal_frequency(image: Tensor, target: Tensor) -> Tensor:
    """Focal frequency loss (Jiang et al. 2021, arXiv:2012.12821, equations 8 to 10), alpha 1.

    The squared distance of the images' spectra, each frequency weighted by its distance over the
    channel's largest: frequencies that are far off count most. The weights get no gradient.
    """
    difference = image - _checked(image, target)
    # FFTs have no 16-bit floats. The transform is linear: one of the difference is enough.
    precise = torch.promote_types(difference.dtype, torch.float32)
    spectrum = torch.fft.fft2(difference.to(precise), norm="ortho")
    distance = spectrum.real**2 + spectrum.imag**2
    with torch.no_grad():
        root = distance.sqrt()
        largest = root.amax((2, 3), keepdim=True)
        weight = root / torch.where(largest > 0, largest, 1)
    return (weight * distance).mean().to(difference.dtype)


def _similarity(image: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """SSIM's luminance, and its contrast times structure, about each pixel."""
    u, v = image - _LEVEL, target - _LEVEL
    mean_u, mean_v, squares_u, squares_v, products = (
        _windowed(x) for x in (u, v, u * u, v * v, u * v)
    )
    variances = squares_u + squares_v - mean_u**2 - mean_v**2
    covariance = products - mean_u * mean_v
    mean_x, mean_y = mean_u + _LEVEL, mean_v + _LEVEL
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    return luminance, (2 * covariance + _C2) / (variances + _C2)


def _halved(x_BCHW: Tensor) -> Tensor:
    """Means of 2×2 pixels; an odd side's last pixel is its own neighbour."""
    height, width = x_BCHW.shape[2:]
    if height % 2 or width % 2:
        x_BCHW = F.pad(x_BCHW, (0, width % 2, 0, height % 2), mode="replicate")
    return F.avg_pool2d(x_BCHW, 2)


def _windowed(x_BCHW: Tensor) -> Tensor:
    """The Gaussian mean about each pixel whose window lies inside."""
    places = range(-(_WINDOW // 2), _WINDOW // 2 + 1)
    weights = [math.exp(-0.5 * (place / _SIGMA) ** 2) for place in places]
    taps = x_BCHW.new_tensor([weight / sum(weights) for weight in weights])
    channels = x_BCHW.shape[1]
    down = taps.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1)
    x_BCHW = F.conv2d(x_BCHW, down, groups=channels)
    return F.conv2d(x_BCHW, down.transpose(2, 3), groups=channels)


def _check_side(image: Tensor, name: str, least: int) -> None:
    if min(image.shape[2:]) < least:
        raise InputError(
            f"the {name} loss needs images of at least {least}×{least} px, got "
            f"{image.shape[2]}×{image.shape[3]}; use a larger crop"
        )


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
    "ms_ssim": ms_ssim,
    "focal_frequency": focal_frequency,
}
"""The losses by the name that options give them."""
