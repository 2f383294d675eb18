"""The network's demands on the canvas on which its images lie.

A network that pads with zeros, pools globally and enlarges with corners aligned sees how large its
input is. `WHOLE` says that every image fills the canvas. `Extents` says that each has an extent
of its own in the top left, and has all of these respect it, so that images of many sizes share
one shape (one batch, one compiled program) and each gets the answer that it would get alone.

Beyond an extent features are 0 wherever a convolution could see them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# B batch, D features


class Whole:
    """Images that fill the canvas: torch's own operations."""

    def coarser(self) -> "Whole":
        """The canvas after pooling by 2."""
        return self

    def cut(self, x_BDHW: Tensor) -> Tensor:
        """The features, 0 beyond each image."""
        return x_BDHW

    def mean(self, x_BDHW: Tensor) -> Tensor:
        """The mean of each feature over its image, (B, D, 1, 1), of the result of `cut`."""
        return x_BDHW.mean(dim=(2, 3), keepdim=True)

    def most(self, x_BDHW: Tensor) -> Tensor:
        """The maximum of each feature over its image, (B, D, 1, 1)."""
        return x_BDHW.amax(dim=(2, 3), keepdim=True)

    def enlarge(self, x_BDHW: Tensor, factor: int) -> Tensor:
        """Bilinear with the images' corners aligned; `x` lies on this canvas, the result does
        on one `factor` times as large, 0 beyond each image there."""
        if factor == 1:
            return x_BDHW
        return F.interpolate(x_BDHW, scale_factor=factor, mode="bilinear", align_corners=True)


WHOLE = Whole()


class Extents(Whole):
    """Images of several sizes on one canvas."""

    def __init__(self, size_B2: Tensor, height: int, width: int) -> None:
        """Args:
        size_B2: height and width of each image, integers.
        height, width: of the canvas.
        """
        self.size_B2, self.height, self.width = size_B2, height, width
        rows = torch.arange(height, device=size_B2.device) < size_B2[:, :1]
        columns = torch.arange(width, device=size_B2.device) < size_B2[:, 1:]
        self._inside_B1HW = rows[:, None, :, None] & columns[:, None, None, :]

    def coarser(self) -> "Extents":
        return Extents(self.size_B2 // 2, self.height // 2, self.width // 2)

    def cut(self, x_BDHW: Tensor) -> Tensor:
        return x_BDHW.masked_fill(~self._inside_B1HW, 0)

    def mean(self, x_BDHW: Tensor) -> Tensor:
        pixels = self.size_B2.prod(dim=1).to(x_BDHW.dtype)
        return x_BDHW.sum(dim=(2, 3), keepdim=True) / pixels[:, None, None, None]

    def most(self, x_BDHW: Tensor) -> Tensor:
        outside = x_BDHW.masked_fill(~self._inside_B1HW, float("-inf"))
        return outside.amax(dim=(2, 3), keepdim=True)

    def enlarge(self, x_BDHW: Tensor, factor: int) -> Tensor:
        if factor == 1:
            return x_BDHW
        for axis in (0, 1):
            x_BDHW = _stretch(x_BDHW, self.size_B2[:, axis], factor, dim=2 + axis)
        return x_BDHW


def _stretch(x_BDHW: Tensor, extent_B: Tensor, factor: int, *, dim: int) -> Tensor:
    """One axis `factor` times as long: pixel o reads o · (extent − 1) / (factor · extent − 1).

    That is at most a pixel before o / factor, whose own pixel and two neighbours are all that can
    have weight: three shifted copies in place of a gather with indices of each image's own.
    """
    length = x_BDHW.shape[dim]
    extent_B11 = extent_B[:, None, None]
    own_N1 = torch.arange(length, device=x_BDHW.device)[:, None]
    output_NF = factor * own_N1 + torch.arange(factor, device=x_BDHW.device)
    step_B11 = (extent_B11 - 1).float() / (factor * extent_B11 - 1).float()
    place_BNF = output_NF.float() * step_B11
    total = None
    for shift in (-1, 0, 1):
        weight_BNF = F.relu(1 - (place_BNF - (own_N1 + shift).float()).abs())
        weight_BNF = weight_BNF.masked_fill(output_NF >= factor * extent_B11, 0).to(x_BDHW.dtype)
        # Pixel k + shift in place k, 0 beyond the edge.
        if dim == 2:
            neighbour = F.pad(x_BDHW, (0, 0, -shift, shift)).unsqueeze(3)
            term = weight_BNF[:, None, :, :, None] * neighbour
        else:
            neighbour = F.pad(x_BDHW, (-shift, shift)).unsqueeze(4)
            term = weight_BNF[:, None, None] * neighbour
        total = term if total is None else total + term
    assert total is not None
    return total.flatten(dim, dim + 1)
