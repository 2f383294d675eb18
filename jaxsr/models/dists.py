"""DISTS, structure and texture similarity (Ding et al. 2020, arXiv:2004.07728).

Images are NCHW in [0, 1], RGB or gray; 0 is equal, larger is more different. The tests compare with
the authors' package `DISTS_pytorch`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.models.trunks import IMAGENET_MEAN, IMAGENET_STD, VGG16, as_rgb, check_equal_shapes

_HANNING = (0.5, 1.0, 0.5)  # section III-A: a Hanning window of 5 without its zeros
_FLOOR = 1e-12
_C1 = _C2 = 1e-6  # equations 4 and 5


class L2Pool(nn.Module):
    """The root of a weighted mean of squares, at half the resolution, without aliasing."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        taps = x_BCHW.new_tensor(_HANNING) / sum(_HANNING)
        channels = x_BCHW.shape[1]
        window = torch.outer(taps, taps).expand(channels, 1, -1, -1)
        means = F.conv2d(x_BCHW**2, window, stride=2, padding=1, groups=channels)
        return (means + _FLOOR).sqrt()


class DISTS(nn.Module):
    """The distance itself, with random weights until some are loaded (`load_dists` does both)."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = VGG16()
        for index, layer in enumerate(self.net.features):
            if isinstance(layer, nn.MaxPool2d):
                self.net.features[index] = L2Pool()
        self.widths = (3, *self.net.widths)
        self.alpha = nn.Parameter(torch.full((sum(self.widths),), 0.1))
        self.beta = nn.Parameter(torch.full((sum(self.widths),), 0.1))
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).reshape(1, 3, 1, 1), False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).reshape(1, 3, 1, 1), False)
        self.eval().requires_grad_(False)

    def forward(self, image_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
        """Distances, shape (B,), of two batches of images.

        Raises:
          ValueError: the shapes differ, or the images are too small for the network.
        """
        check_equal_shapes(image_BCHW, target_BCHW, "DISTS")
        similarity = []
        for x, y in zip(self._features(image_BCHW), self._features(target_BCHW), strict=True):
            mean_x, mean_y = x.mean((2, 3)), y.mean((2, 3))
            u, v = x - mean_x[..., None, None], y - mean_y[..., None, None]
            variances = (u**2).mean((2, 3)) + (v**2).mean((2, 3))
            texture = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
            structure = (2 * (u * v).mean((2, 3)) + _C2) / (variances + _C2)
            similarity.append((texture, structure))
        texture, structure = (torch.cat(parts, 1) for parts in zip(*similarity, strict=True))
        weighted = self.alpha * texture + self.beta * structure
        return 1 - weighted.sum(1) / (self.alpha.sum() + self.beta.sum())

    def _features(self, image_BCHW: Tensor) -> list[Tensor]:
        rgb = as_rgb(image_BCHW)
        return [rgb, *self.net((rgb - self.mean) / self.std)]
