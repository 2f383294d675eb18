"""The Fast-SRGAN generator, under the public checkpoint's parameter names.

Images are NCHW in [-1, 1]. Follows https://github.com/HasnainRaz/Fast-SRGAN (MIT); `bn1` and `bn2`
keep that code's names whatever normalisation they hold. Departures:

- The convolution before each pixel shuffle starts with equal weights for the four pixels that it
  makes of one (ICNR, Aitken et al. 2017, arXiv:1707.02937), so that training does not start from a
  checkerboard. It changes the initial weights only.
- `predict="residual"` has no tanh and starts as the bicubic enlargement, because the head's weights
  start at zero. Its output may leave [-1, 1] a little: clip where pixels are made of it.
- Convolutions whose output nothing normalises (`norm="none"`) have a bias.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.fast_srgan.config import FastSRGANConfig, Norm

# B batch, C image channels, D features, h w low resolution, H W high resolution


def norm_layer(norm: Norm, features: int) -> nn.Module:
    """Normalisation of `features` channels; `instance` has neither parameters nor statistics."""
    if norm == "instance":
        return nn.InstanceNorm2d(features)
    return nn.BatchNorm2d(features) if norm == "batch" else nn.Identity()


class ResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions with a PReLU between, added to the input."""

    def __init__(self, features: int, *, norm: Norm) -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(features, features, 3, padding=1, bias=bias)
        self.bn1 = norm_layer(norm, features)
        self.relu1 = nn.PReLU()
        self.conv2 = nn.Conv2d(features, features, 3, padding=1, bias=bias)
        self.bn2 = norm_layer(norm, features)

    def forward(self, x_BDhw: Tensor) -> Tensor:
        y_BDhw = self.relu1(self.bn1(self.conv1(x_BDhw)))
        return self.bn2(self.conv2(y_BDhw)) + x_BDhw


class MobileBlock(ResidualBlock):
    """A depthwise 3×3 and a 1×1 convolution in the places of the residual block's two."""

    def __init__(self, features: int, *, norm: Norm) -> None:
        super().__init__(features, norm=norm)
        bias = norm == "none"
        self.conv1 = nn.Conv2d(features, features, 3, padding=1, groups=features, bias=bias)
        self.conv2 = nn.Conv2d(features, features, 1, bias=bias)


class UpsamplingBlock(nn.Module):
    """Doubles both sides: 3×3 convolution to four times the channels, pixel shuffle, PReLU."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(features, 4 * features, 3, padding=1)
        self.phase_shift = nn.PixelShuffle(2)
        self.relu = nn.PReLU()
        # ICNR. PixelShuffle makes the four pixels of channel c from channels 4c to 4c + 3.
        for parameter in (self.conv.weight, self.conv.bias):
            assert parameter is not None
            parameter.data.copy_(parameter.data[::4].repeat_interleave(4, dim=0))

    def forward(self, x_BDhw: Tensor) -> Tensor:
        return self.relu(self.phase_shift(self.conv(x_BDhw)))


class Generator(nn.Module):
    """Enlarges, or at scale 1 restores, a batch of images."""

    def __init__(self, config: FastSRGANConfig) -> None:
        super().__init__()
        self.config = config
        width, channels = config.width, config.channels
        block = ResidualBlock if config.block == "residual" else MobileBlock
        self.neck = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.PReLU())
        self.stem = nn.Sequential(*(block(width, norm=config.norm) for _ in range(config.depth)))
        self.bottleneck = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=config.norm == "none"),
            norm_layer(config.norm, width),
        )
        doublings = config.scale.bit_length() - 1
        self.upsampling = nn.Sequential(*(UpsamplingBlock(width) for _ in range(doublings)))
        self.head = nn.Sequential(nn.Conv2d(width, channels, 3, padding=1))
        if config.predict == "image":
            self.head.append(nn.Tanh())
        else:
            for parameter in self.head.parameters():
                nn.init.zeros_(parameter)

    def forward(self, low_BChw: Tensor) -> Tensor:
        """The (B, C, scale·h, scale·w) images of (B, C, h, w) ones.

        Raises:
          ValueError: the input is not a batch of `config.channels` channels.
        """
        config = self.config
        if low_BChw.ndim != 4 or low_BChw.shape[1] != config.channels:
            raise InputError(
                f"the generator takes (batch, {config.channels}, height, width), got "
                f"{tuple(low_BChw.shape)}; build it with channels=1 for luma, 3 for RGB"
            )
        neck_BDhw = self.neck(low_BChw)
        x_BDhw = self.bottleneck(self.stem(neck_BDhw)) + neck_BDhw
        out_BCHW = self.head(self.upsampling(x_BDhw))
        if config.predict == "image":
            return out_BCHW
        return out_BCHW + enlarge(low_BChw, scale=config.scale)


def enlarge(low_BChw: Tensor, *, scale: int) -> Tensor:
    """Bicubic enlargement (torch's kernel, a = -0.75), the border pixels repeated."""
    if scale == 1:
        return low_BChw
    return F.interpolate(low_BChw, scale_factor=scale, mode="bicubic", align_corners=False)
