"""The Fast-SRGAN discriminator: one logit per patch, for either form of the family.

Images are NCHW in [-1, 1]. Parameter names follow https://github.com/HasnainRaz/Fast-SRGAN (MIT):
`neck.0`, `stem.K.conv`, and the 1×1 head as the stem's last member. The default has 4,684,033
parameters and one logit per 16×16 pixels. The restoration form has four strided convolutions of
64, 128, 256 and 512 features: the same patches at 1,586,305 parameters for luma.
"""

from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.fast_srgan.config import FastSRGANConfig, Norm
from jaxsr.models.fast_srgan.generator import norm_layer

# B batch, C image channels, D features


class DiscriminatorBlock(nn.Module):
    """3×3 convolution, normalisation, LeakyReLU(0.01)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=norm == "none")
        self.bn = norm_layer(norm, outputs)
        self.act = nn.LeakyReLU(0.01)

    def forward(self, x_BDHW: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x_BDHW)))


class Discriminator(nn.Module):
    """Tells real images from generated ones, patch by patch; positive logits mean real."""

    def __init__(self, config: FastSRGANConfig) -> None:
        super().__init__()
        self.config = config
        width = config.discriminator_width
        self.neck = nn.Sequential(
            nn.Conv2d(config.channels, width, 3, padding=1), nn.LeakyReLU(0.2)
        )
        layers: list[nn.Module] = []
        for features, stride in config.discriminator_blocks:
            norm = config.discriminator_norm
            layers.append(DiscriminatorBlock(width, features, stride=stride, norm=norm))
            width = features
        self.stem = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Logits (B, 1, ⌈H / stride⌉, ⌈W / stride⌉) of (B, C, H, W) images.

        Raises:
          ValueError: the images have other channels, or fewer than two patches along a side where
            the normalisation needs more than one value.
        """
        config, shape = self.config, tuple(image_BCHW.shape)
        if len(shape) != 4 or shape[1] != config.channels:
            raise InputError(
                f"the discriminator takes (batch, {config.channels}, height, width), got {shape}"
            )
        stride = config.discriminator_stride
        if config.discriminator_norm == "instance" and min(shape[2:]) <= stride:
            raise InputError(
                f"the discriminator's normalisation needs images above {stride}×{stride} px, got "
                f"{shape[2]}×{shape[3]}; use a larger crop or fewer discriminator_layers"
            )
        return self.stem(self.neck(image_BCHW))
