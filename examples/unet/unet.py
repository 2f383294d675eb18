"""A U-Net for small infrared targets, with a logit map at each resolution while it trains.

docs/own-network.md has the command that trains it, and what it reached.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# B batch, C channels


class Residual(nn.Module):
    """Two normalised 3×3 convolutions, added to the input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
        )
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return F.relu(self.layers(x_BCHW) + self.short(x_BCHW))


class UNet(nn.Module):
    """Takes sides that are multiples of 16."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128, 128), channels: int = 1) -> None:
        super().__init__()
        self.down = nn.ModuleList(Residual(i, o) for i, o in pairwise((channels, *widths)))
        levels = [*pairwise(widths)][::-1]
        self.up = nn.ModuleList(Residual(fine + coarse, fine) for fine, coarse in levels)
        self.heads = nn.ModuleList(nn.Conv2d(fine, 1, 1) for fine, _ in levels)

    def forward(self, image_BCHW: Tensor) -> Tensor | list[Tensor]:
        """Logits (B, 1, H, W); in training a list of maps, the finest first."""
        x, skips = image_BCHW, []
        for level, stage in enumerate(self.down):
            x = stage(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        maps, x = [], skips.pop()
        for stage, head in zip(self.up, self.heads, strict=True):
            enlarged = F.interpolate(x, scale_factor=2, mode="bilinear")
            x = stage(torch.cat([skips.pop(), enlarged], dim=1))
            maps.append(head(x))
        return maps[::-1] if self.training else maps[-1]
