"""Gradients of convolution weights as products of patches.

`choice.weight_by_patches` says where they are faster than oneDNN's.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from jaxsr.interop.cpu_kernels.onednn import Geometry

_BLOCK_BYTES = 3 << 20
"""Bytes of patches copied at a time: products of fewer rows are slow, more rows leave the cache."""


def weight_gradient(
    x: torch.Tensor, g: torch.Tensor, weight: torch.Tensor, geometry: Geometry
) -> None:
    """Writes the gradient of a convolution's weight into `weight`.

    Args:
      x: (N, C, *sides), the images.
      g: (N, O, *sides of the result), the gradient of the result.
      weight: (O, C, *kernel), written in place.
      geometry: of the convolution, with one group.
    """
    outputs, channels, *kernel = weight.shape
    x, g = x.movedim(1, -1), g.movedim(1, -1)
    if math.prod(kernel) == 1 and geometry.is_pointwise:  # patches are the pixels themselves
        pixels, gradients = x.reshape(-1, channels), g.reshape(-1, outputs)
        torch.mm(gradients.T, pixels, out=weight.view(outputs, channels))
    elif outputs < channels and geometry.has_unit_stride:
        # Patches of the array with fewer channels. Where an image is moved over its gradient, the
        # gradient moves the other way over the image.
        reach = [d * (k - 1) for d, k in zip(geometry.dilation, kernel, strict=True)]
        padding = [r - p for r, p in zip(reach, geometry.padding, strict=True)]
        product = _product(g, x, kernel, geometry, padding)
        weight.copy_(product.movedim(-2, 0).movedim(-1, 1).flip(*range(2, weight.ndim)))
    else:
        product = _product(x, g, kernel, geometry, geometry.padding)
        weight.copy_(product.movedim(-1, 0).movedim(-1, 1))


def _product(
    x: torch.Tensor,
    g: torch.Tensor,
    kernel: Sequence[int],
    geometry: Geometry,
    padding: Sequence[int],
) -> torch.Tensor:
    """Patches of `x` (N, *, C) times `g` (N, *, O), summed over pixels: (*kernel, C, O)."""
    channels, outputs = x.shape[-1], g.shape[-1]
    rows = channels * math.prod(kernel)
    product, buffer = x.new_zeros(rows, outputs), x.new_empty(0)
    for windows, gradients in _blocks(x, g, kernel, geometry, padding):
        if buffer.numel() < windows.numel():
            buffer = x.new_empty(windows.numel())
        patches = buffer[: windows.numel()].view(windows.shape).copy_(windows)
        product.addmm_(patches.view(-1, rows).T, gradients.reshape(-1, outputs))
    return product.view(*kernel, channels, outputs)


def _blocks(
    x: torch.Tensor,
    g: torch.Tensor,
    kernel: Sequence[int],
    geometry: Geometry,
    padding: Sequence[int],
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Windows of images, a view (n, *sides, *kernel, C), and their partners, (n, *sides, O).

    Whole images together, or parts of one image along its first side.
    """
    sides, channels = g.shape[1:-1], x.shape[-1]
    pixels = _BLOCK_BYTES // 4 // (channels * math.prod(kernel))
    images = max(1, pixels // math.prod(sides))
    length = max(1, pixels // math.prod(sides[1:])) if images == 1 else sides[0]
    pads = [p for each in reversed(padding) for p in (each, each)]
    for i in range(0, len(x), images):
        padded = torch.nn.functional.pad(x[i : i + images], (0, 0, *pads))
        of_image, *of_sides, of_channel = padded.stride()
        windows = padded.as_strided(
            (len(padded), *sides, *kernel, channels),
            (
                of_image, *(s * each for s, each in zip(geometry.stride, of_sides, strict=True)),
                *(d * each for d, each in zip(geometry.dilation, of_sides, strict=True)),
                of_channel,
            ),
        )  # fmt: skip
        for j in range(0, sides[0], length):
            yield windows[:, j : j + length], g[i : i + images, j : j + length]
