"""Networks, a discriminator and losses as a user might write them, right and wrong."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.inner = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        return x + self.inner(self.first(x))


class Enlarger(nn.Module):
    def __init__(self, width=4, depth=2, scale=4, channels=3, norm=False):
        super().__init__()
        self.scale = scale
        self.head = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.body = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.tail = nn.Conv2d(width, channels * scale**2, 3, padding=1)

    def forward(self, x):
        detail = F.pixel_shuffle(self.tail(self.body(self.norm(self.head(x)))), self.scale)
        return detail + F.interpolate(x, scale_factor=self.scale, mode="nearest")


class NeedsWidth(Enlarger):
    def __init__(self, width):
        super().__init__(width)


class Half(Enlarger):
    """Takes sides that are multiples of two alone."""

    def forward(self, x):
        return F.interpolate(F.avg_pool2d(super().forward(x), 2), scale_factor=2)


class Pair(Enlarger):
    def forward(self, x):
        return {"picture": super().forward(x), "other": x}


class Conditioned(Enlarger):
    def forward(self, x, noise_level):
        return super().forward(x) * noise_level


CALLS = {"loss": 0}


def counting(prediction, target):
    CALLS["loss"] += 1
    return CALLS["loss"] * F.l1_loss(prediction, target)


ENLARGER = Enlarger()


def compiled():
    network = Enlarger()
    network.body = torch.compile(network.body)
    return network


class Wrapped(Enlarger):
    """Returns its picture as libraries do, in a dictionary."""

    def forward(self, x):
        return {"picture": super().forward(x), "loss": None}


@dataclass
class Answer:
    picture: torch.Tensor
    loss: torch.Tensor | None = None


class WrappedInDataclass(Enlarger):
    """Returns its picture as an attribute."""

    def forward(self, x):
        return Answer(super().forward(x))


class Text(Enlarger):
    def forward(self, x):
        return "an image"


class Conditional(Enlarger):
    """Depends on values, which a compiled program cannot."""

    def forward(self, x):
        out = super().forward(x)
        if out.mean() > 1e9:
            return -out
        return out


class Noisy(Enlarger):
    """Draws in evaluation, too."""

    def forward(self, x):
        return super().forward(x + 0.01 * torch.randn_like(x))


class Apart(Enlarger):
    """Gives nothing that gradients go through."""

    def forward(self, x):
        return super().forward(x).detach()


class UNet(nn.Module):
    def __init__(self, channels=3, width=4, supervise=False, classes=1):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width))
        self.deep = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.out, self.coarse = nn.Conv2d(2 * width, classes, 1), nn.Conv2d(width, classes, 1)
        self.supervise = supervise

    def forward(self, x):
        fine = torch.relu(self.down(x))
        deep = self.deep(F.max_pool2d(fine, 2))
        logits = self.out(torch.cat([fine, F.interpolate(deep, scale_factor=2)], 1))
        return [logits, self.coarse(deep)] if self.supervise else logits


class Discriminator(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class NamedLogits(Discriminator):
    def forward(self, x):
        return {"logits": self.layers(x), "features": None}


class LogitsOfTwoScales(Discriminator):
    def forward(self, x):
        return [self.layers(x), self.layers(x[..., ::2, ::2])]


def edges(prediction, target):
    """L1 between horizontal differences."""
    return (prediction.diff(dim=-1) - target.diff(dim=-1)).abs().mean()


def per_pixel(prediction, target):
    return (prediction - target).abs()


def detached(prediction, target):
    return (prediction - target).detach().abs().mean()


def not_a_number(prediction, target):
    return (prediction - target).abs().mean() * float("nan")


not_callable = 3
