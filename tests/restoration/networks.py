"""Small networks with random weights: each is a user's own as far as jaxsr can tell."""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Small(nn.Module):
    """Three convolutions and a pixel shuffle: reads four pixels to each side (bicubic two)."""

    def __init__(self, scale: int = 2, channels: int = 3, width: int = 8) -> None:
        super().__init__()
        self.scale = scale
        self.first = nn.Conv2d(channels, width, 5, padding=2)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, channels * scale**2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        y = F.pixel_shuffle(self.last(y), self.scale)
        if self.scale > 1:
            x = F.interpolate(x, scale_factor=self.scale, mode="bicubic")
        return x + 0.2 * y


class Named(Small):
    """Returns its picture in a dictionary, a smaller one and features beside it in a list."""

    def __init__(self, listed: bool = False) -> None:
        super().__init__()
        self.listed = listed

    def forward(self, x: Tensor) -> dict[str, Tensor | None] | list[Tensor]:
        picture = super().forward(x)
        return [x, x.mean(1), picture] if self.listed else {"picture": picture, "loss": None}


class Branching(Small):
    """Branches on a value, which JAX refuses."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return 1 - y if float(x.mean()) > 0 else y


class Strided(nn.Module):
    """An encoder and decoder: exact only for tiles that start on multiples of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 4, stride=4)
        self.inner = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=4)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.near(x))
        return self.out(y + self.up(torch.relu(self.inner(torch.relu(self.down(y))))))


class Attentive(nn.Module):
    """Weighs its channels by their means over the whole picture, with no telling layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y * y.mean((2, 3), keepdim=True)


class Gated(nn.Module):
    """Takes its result from a comparison, which swallows a NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.conv(x) > 0, x, x * 0.5)


class Dilated(nn.Module):
    """Reads 112 pixels to each side, with holes."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=d, dilation=d) for d in (16, 32, 64))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.leaky_relu(conv(x))
        return x


class Positional(nn.Module):
    """Brightens to the right."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + torch.linspace(0, 1, x.shape[-1], device=x.device)


class Placed(Small):
    """Adds a learned table at each position, zero at first as most are."""

    def __init__(self) -> None:
        super().__init__(scale=1)
        self.table = nn.Parameter(torch.zeros(3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.arange(side) % 8 for side in x.shape[2:])
        return super().forward(x) + self.table[:, rows[:, None], columns]


class Leaving(Small):
    """Ends the program, as research code does where a file is missing."""

    def forward(self, x: Tensor) -> Tensor:
        sys.exit(0)
