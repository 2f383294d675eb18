"""SPAN: super-resolution with parameter-free attention (Wan et al. 2024, arXiv:2311.12770).

Images are NCHW in [-1, 1]. Each block weighs its features by an odd function of themselves,
sigmoid(x) - 0.5, instead of a learned attention; nothing is normalised, so the receptive field is
finite and an image can be cut into tiles exactly. 426,288 parameters once merged. Departures:

- A convolution that is trained in factors always runs merged, even in training. The published code
  runs the factors one after the other in training and merged in evaluation, and the two disagree
  along the image's border, where the first factor's bias meets the padding.
- The network predicts the residual to the bicubic enlargement, and starts as that enlargement. Its
  output may leave [-1, 1] a little: clip where pixels are made of it.
- `block="residual"` puts EDSR's block (Lim et al. 2017, arXiv:1707.02921) in the place of SPAN's,
  whose products of small numbers pass little gradient at first: for runs of hours, not days.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.fast_srgan.generator import enlarge
from jaxsr.models.span.config import SpanConfig

# B batch, C image channels, D features, h w low resolution, H W high resolution


class FactoredConv(nn.Module):
    """A 3×3 convolution trained as a 1×1 plus a chain of 1×1, 3×3 and 1×1, merged when run."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int) -> None:
        super().__init__()
        self.sk = nn.Conv2d(inputs, outputs, 1)
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, inputs * expansion, 1),
            nn.Conv2d(inputs * expansion, outputs * expansion, 3),
            nn.Conv2d(outputs * expansion, outputs, 1),
        )

    def merged(self) -> tuple[Tensor, Tensor]:
        """Weight (outputs, inputs, 3, 3) and bias of the one convolution that all factors make."""
        (w1, b1), (w2, b2), (w3, b3), (skip, skip_bias) = map(_affine, (*self.conv, self.sk))
        w1, w3 = w1[:, :, 0, 0], w3[:, :, 0, 0]
        weight = torch.einsum("om,mnyx,ni->oiyx", w3, w2, w1) + F.pad(skip, (1, 1, 1, 1))
        return weight, w3 @ (w2.sum((2, 3)) @ b1 + b2) + b3 + skip_bias

    def forward(self, x_BDhw: Tensor) -> Tensor:
        weight, bias = self.merged()
        return F.conv2d(x_BDhw, weight, bias, padding=1)


def _affine(conv: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    return conv.weight, conv.bias


def convolution(inputs: int, outputs: int, *, expansion: int | None) -> nn.Module:
    """A 3×3 convolution that keeps the size, plain or trained in factors."""
    if expansion is None:
        return nn.Conv2d(inputs, outputs, 3, padding=1)
    return FactoredConv(inputs, outputs, expansion=expansion)


class AttentionBlock(nn.Module):
    """Three convolutions; their result weighs its own sum with the input."""

    def __init__(self, features: int, *, expansion: int | None) -> None:
        super().__init__()
        self.c1_r = convolution(features, features, expansion=expansion)
        self.c2_r = convolution(features, features, expansion=expansion)
        self.c3_r = convolution(features, features, expansion=expansion)

    def forward(self, x_BDhw: Tensor) -> tuple[Tensor, Tensor]:
        """The block's output and its first activation, which the network's end also reads."""
        # Activated: the published code's SiLU changes the returned tensor in place.
        first = F.silu(self.c1_r(x_BDhw))
        third = self.c3_r(F.silu(self.c2_r(first)))
        return (third + x_BDhw) * (torch.sigmoid(third) - 0.5), first


class SpanResidualBlock(nn.Module):
    """Two convolutions with a ReLU between them, added to the input."""

    def __init__(self, features: int, *, expansion: int | None) -> None:
        super().__init__()
        self.c1_r = convolution(features, features, expansion=expansion)
        self.c2_r = convolution(features, features, expansion=expansion)

    def forward(self, x_BDhw: Tensor) -> tuple[Tensor, Tensor]:
        """The block's output and its activation, which the network's end also reads."""
        first = F.relu(self.c1_r(x_BDhw))
        return x_BDhw + self.c2_r(first), first


BLOCKS = {"attention": AttentionBlock, "residual": SpanResidualBlock}


class Span(nn.Module):
    """Enlarges, or at scale 1 restores, a batch of images."""

    def __init__(self, config: SpanConfig) -> None:
        super().__init__()
        self.config = config
        width, expansion = config.width, config.expansion
        self.conv_1 = convolution(config.channels, width, expansion=expansion)
        self.blocks = nn.ModuleList(
            BLOCKS[config.block](width, expansion=expansion) for _ in range(config.depth)
        )
        self.conv_2 = convolution(width, width, expansion=expansion)
        self.conv_cat = nn.Conv2d(4 * width, width, 1)
        self.upsampler = nn.Sequential(
            nn.Conv2d(width, config.channels * config.scale**2, 3, padding=1),
            nn.PixelShuffle(config.scale),
        )
        for parameter in self.upsampler.parameters():
            nn.init.zeros_(parameter)

    def forward(self, low_BChw: Tensor) -> Tensor:
        """The (B, C, scale·h, scale·w) images of (B, C, h, w) ones.

        Raises:
          ValueError: the input is not a batch of `config.channels` channels.
        """
        config = self.config
        if low_BChw.ndim != 4 or low_BChw.shape[1] != config.channels:
            raise InputError(
                f"SPAN takes (batch, {config.channels}, height, width), got "
                f"{tuple(low_BChw.shape)}; build it with channels=1 for luma, 3 for RGB"
            )
        start = x = self.conv_1(low_BChw)
        outputs = []
        first = x
        for block in self.blocks:
            x, first = block(x)
            outputs.append(x)
        gathered = torch.cat((start, self.conv_2(x), outputs[0], first), dim=1)
        detail_BCHW = self.upsampler(self.conv_cat(gathered))
        return detail_BCHW + enlarge(low_BChw, scale=config.scale)


@torch.no_grad()
def merge(span: Span) -> Span:
    """The same network with plain convolutions: fewer parameters and nothing to merge per call."""
    merged = Span(dataclasses.replace(span.config, expansion=None)).to(
        next(span.parameters()).device
    )
    state = {}
    for name, module in span.named_modules():
        if isinstance(module, FactoredConv):
            state[f"{name}.weight"], state[f"{name}.bias"] = module.merged()
    unchanged = merged.state_dict().keys() - state.keys()
    merged.load_state_dict({**state, **{name: span.state_dict()[name] for name in unchanged}})
    return merged.train(span.training)
