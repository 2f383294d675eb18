"""MSHNet: a U-shaped network with a head at each of its four finer resolutions.

Images are NCHW, normalised as they were in training; outputs are logits, positive on a target.
Written from the description in "Infrared Small Target Detection with Scale and Location
Sensitivity" (CVPR 2024, arXiv:2403.19366), under the parameter names of the published checkpoints.
At the default configuration it has 4,065,513 parameters and 6.0 GMAC for a 256×256 image.

Departure: global maxima are `amax`, which shares the gradient among equal values; adaptive max
pooling gives it to the first of them and is not available under torchax. Values are the same.
"""

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.mshnet.canvas import WHOLE, Extents, Whole
from jaxsr.models.mshnet.config import MSHNetConfig

# B batch, C image channels, D features

Heads = Literal["final", "all", "warmup"]


class ChannelAttention(nn.Module):
    """A weight in (0, 1) for each channel, from its global mean and maximum."""

    def __init__(self, features: int, *, ratio: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(features, features // ratio, 1, bias=False)
        self.fc2 = nn.Conv2d(features // ratio, features, 1, bias=False)

    def forward(self, x_BDHW: Tensor, canvas: Whole = WHOLE) -> Tensor:
        mean_BD11 = self._mlp(canvas.mean(x_BDHW))
        most_BD11 = self._mlp(canvas.most(x_BDHW))
        return torch.sigmoid(mean_BD11 + most_BD11)

    def _mlp(self, x_BD11: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x_BD11)))


class SpatialAttention(nn.Module):
    """A weight in (0, 1) for each pixel, from the mean and maximum over its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x_BDHW: Tensor) -> Tensor:
        mean_B1HW = x_BDHW.mean(dim=1, keepdim=True)
        most_B1HW = x_BDHW.amax(dim=1, keepdim=True)
        return torch.sigmoid(self.conv1(torch.cat([mean_B1HW, most_B1HW], dim=1)))


class AttentionResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions, weighted by channel and by pixel, added to the input."""

    def __init__(self, inputs: int, outputs: int, *, ratio: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.ca = ChannelAttention(outputs, ratio=ratio)
        self.sa = SpatialAttention()
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))

    def forward(self, x_BDHW: Tensor, canvas: Whole = WHOLE) -> Tensor:
        y_BDHW = canvas.cut(F.relu(self.bn1(self.conv1(x_BDHW))))
        y_BDHW = canvas.cut(self.bn2(self.conv2(y_BDHW)))
        y_BDHW = self.ca(y_BDHW, canvas) * y_BDHW
        y_BDHW = self.sa(y_BDHW) * y_BDHW
        return canvas.cut(F.relu(y_BDHW + self.shortcut(x_BDHW)))


class MSHNet(nn.Module):
    """Marks small targets; see `forward` for its results."""

    def __init__(self, config: MSHNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or MSHNetConfig()
        widths, scales = config.widths, config.scales

        def stage(inputs: int, level: int) -> nn.Sequential:
            sizes = [inputs] + [widths[level]] * config.blocks[level]
            return nn.Sequential(
                *(
                    AttentionResidualBlock(before, after, ratio=config.attention_ratio)
                    for before, after in pairwise(sizes)
                )
            )

        self.conv_init = nn.Conv2d(config.channels, widths[0], 1)
        for level in range(scales):
            self.add_module(f"encoder_{level}", stage(widths[max(level - 1, 0)], level))
        self.middle_layer = stage(widths[scales - 1], scales)
        for level in reversed(range(scales)):
            self.add_module(f"decoder_{level}", stage(widths[level] + widths[level + 1], level))
        for level in range(scales):
            self.add_module(f"output_{level}", nn.Conv2d(widths[level], 1, 1))
        self.final = nn.Conv2d(scales, 1, 3, padding=1)

    def forward(
        self, image_BCHW: Tensor, heads: Heads = "final", size_B2: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Logits of (B, C, H, W) images whose sides are multiples of `config.multiple`.

        Args:
          image_BCHW: the normalised images.
          heads: "final" for the trained network's answer, (B, 1, H, W); "all" for a tuple of it and
            each head's, from full size (B, 1, H, W) down to (B, 1, H/8, W/8); "warmup" for the
            finest head's alone, (B, 1, H, W), which the first epochs train.
          size_B2: height and width of each image, where they are of several sizes: each in the top
            left of its canvas, and computed as though it were alone. They too must be such
            multiples. Results beyond these sizes are meaningless. For evaluation only.

        Raises:
          ValueError: other channels, sides that are not such multiples, an unknown `heads`, or
            sizes in training.
        """
        self._check(image_BCHW, heads, size_B2)
        scales = self.config.scales
        canvases = [WHOLE if size_B2 is None else Extents(size_B2, *image_BCHW.shape[2:])]
        for _ in range(scales):
            canvases.append(canvases[-1].coarser())
        x = canvases[0].cut(self.conv_init(image_BCHW))
        skips: list[Tensor] = []
        for level in range(scales):
            x = x if level == 0 else F.max_pool2d(x, 2)
            x = self._stage(f"encoder_{level}", x, canvases[level])
            skips.append(x)
        x = self._stage("middle_layer", F.max_pool2d(x, 2), canvases[scales])
        outputs: list[Tensor] = []
        for level in reversed(range(scales)):
            joined = torch.cat([skips[level], canvases[level + 1].enlarge(x, 2)], dim=1)
            x = self._stage(f"decoder_{level}", joined, canvases[level])
            if heads != "warmup" or level == 0:
                outputs.insert(0, self.get_submodule(f"output_{level}")(x))
        if heads == "warmup":
            return outputs[0]
        sized = [canvases[k].enlarge(output, 2**k) for k, output in enumerate(outputs)]
        final = self.final(torch.cat([canvases[0].cut(head) for head in sized], dim=1))
        return final if heads == "final" else (final, *outputs)

    def _stage(self, name: str, x_BDHW: Tensor, canvas: Whole) -> Tensor:
        stage = self.get_submodule(name)
        if canvas is WHOLE:
            return stage(x_BDHW)
        for block in stage.children():
            x_BDHW = block(x_BDHW, canvas)
        return x_BDHW

    def _check(self, image_BCHW: Tensor, heads: str, size_B2: Tensor | None) -> None:
        channels, multiple = self.config.channels, self.config.multiple
        if image_BCHW.ndim != 4 or image_BCHW.shape[1] != channels:
            raise InputError(
                f"MSHNet takes (batch, {channels}, height, width), got {tuple(image_BCHW.shape)}; "
                "repeat a gray image into three channels"
            )
        if any(side % multiple for side in image_BCHW.shape[2:]):
            raise InputError(
                f"MSHNet takes sides that are multiples of {multiple}, got "
                f"{tuple(image_BCHW.shape[2:])}; pad the image and cut the output"
            )
        if heads not in ("final", "all", "warmup"):
            raise InputError(f"heads must be 'final', 'all' or 'warmup', got {heads!r}")
        if size_B2 is not None and self.training:
            raise InputError(
                "images of several sizes on one canvas are for evaluation; in training "
                "BatchNorm would count what lies beyond them, so cut or pad them to one size"
            )
