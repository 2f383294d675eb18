"""LPIPS, a learned perceptual distance (Zhang et al. 2018, arXiv:1801.03924), version 0.1.

Images are NCHW in [-1, 1], RGB or gray; 0 is equal, larger is more different. Figures compare only
within one network; papers mostly report AlexNet's. The tests hold it against both `lpips` (torch)
and `lpips_jax` (Flax).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.trunks import VGG16, AlexNet, as_rgb, check_equal_shapes

# B batch, C channels, D features, H W height and width

Network = Literal["alexnet", "vgg16"]

# ImageNet's mean and standard deviation, converted from [0, 1] to [-1, 1]; rounded as in the
# reference.
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)


class LPIPS(nn.Module):
    """The distance itself, with random weights until some are loaded (`load_lpips` does both)."""

    shift: Tensor
    scale: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        if network not in ("alexnet", "vgg16"):
            raise InputError(f"network must be alexnet or vgg16, got {network!r}")
        self.net = AlexNet() if network == "alexnet" else VGG16()
        self.heads = nn.ModuleList(nn.Conv2d(width, 1, 1, bias=False) for width in self.net.widths)
        self.register_buffer("shift", torch.tensor(SHIFT).reshape(1, 3, 1, 1), False)
        self.register_buffer("scale", torch.tensor(SCALE).reshape(1, 3, 1, 1), False)
        self.eval().requires_grad_(False)

    def forward(self, image_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
        """Distances, shape (B,), of two batches of images.

        Raises:
          ValueError: the shapes differ, or the images are too small for the network.
        """
        check_equal_shapes(image_BCHW, target_BCHW, "LPIPS")
        total = image_BCHW.new_zeros(image_BCHW.shape[0])
        pairs = zip(self._features(image_BCHW), self._features(target_BCHW), strict=True)
        for head, (image_BDHW, target_BDHW) in zip(self.heads, pairs, strict=True):
            difference = unit_length(image_BDHW) - unit_length(target_BDHW)
            total = total + head(difference**2).mean(dim=(1, 2, 3))
        return total

    def _features(self, image_BCHW: Tensor) -> list[Tensor]:
        return self.net((as_rgb(image_BCHW) - self.shift) / self.scale)


def unit_length(x_BDHW: Tensor) -> Tensor:
    """Features divided by their length over D, plus 1e-10 as in the reference."""
    squares_B1HW = (x_BDHW**2).sum(dim=1, keepdim=True)
    # The floor gives sqrt a finite gradient where every feature is 0; the value there stays 0.
    return x_BDHW / (squares_B1HW.clamp_min(1e-20).sqrt() + 1e-10)
