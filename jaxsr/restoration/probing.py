"""Which input pixels a network's output depends on, found by changing them.

For networks that `jaxsr.restoration.coverage` cannot follow. A NaN in one block of pixels taints
every output pixel that reads it, zero weights included; a second run, with that block merely
changed, catches operations that stop a NaN (`where`). A network that spreads a NaN over everything,
as masked attention does, is taken to depend on the whole image.

Images are strips, long along one axis: their cost grows with the distance and not with its
square.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


def picture(channels: int, height: int, width: int) -> Tensor:
    """An image of noise in [0, 1], the same each time, (1, channels, height, width)."""
    generator = torch.Generator().manual_seed(height * 65537 + width)
    return torch.rand((1, channels, height, width), generator=generator)


def strip(channels: int, length: int, width: int, axis: int) -> Tensor:
    """`picture` of a length along `axis` (2 or 3) and a width along the other."""
    return picture(channels, *((length, width) if axis == 2 else (width, length)))


def probe_margin(
    network: nn.Module, *, channels: int, scale: int, length: int, width: int, block: int, axis: int
) -> int | None:
    """How far the influence of the first and the last block of rows goes beyond them.

    Args:
      network: takes (1, `channels`, height, width).
      channels: of the image.
      scale: of the network.
      length: of the strip along `axis`.
      width: of the strip along the other axis.
      block: rows that are changed at each end.
      axis: 2 or 3.

    Returns:
      Input pixels; None where the influence reaches the other end.
    """
    clean = strip(channels, length, width, axis)
    reference = network(clean)
    reach = 0
    for start in (0, length - block):
        changed = clean.clone()
        changed.narrow(axis, start, block).mul_(-1).add_(1.5)
        tainted = clean.clone()
        tainted.narrow(axis, start, block).fill_(math.nan)
        touched = (network(changed) != reference) | network(tainted).isnan()
        hit = touched.any(5 - axis).any(1)[0].nonzero().flatten() // scale
        if len(hit):
            reach = max(reach, start - int(hit[0]), int(hit[-1]) - (start + block - 1))
    return None if reach >= length - 2 * block else reach


def is_periodic(
    network: nn.Module,
    *,
    channels: int,
    scale: int,
    period: int,
    margin: int,
    unit: int,
    width: int,
    axis: int,
    tolerance: float,
) -> bool:
    """Whether shifting the input by `period` shifts the output by `scale` times as much.

    Args:
      network, channels, scale, width, axis: as in `probe_margin`.
      period: of the shift, in input pixels.
      margin: pixels next to the ends of the strip that do not count.
      unit: lengths of strips are multiples of it.
      tolerance: of the difference, relative to the largest value.
    """
    inner = margin + period
    length = math.ceil((2 * inner + 2 * period + 16) / unit) * unit
    image = strip(channels, length + period, width, axis)
    first = network(image.narrow(axis, 0, length))
    second = network(image.narrow(axis, period, length))
    count = (length - 2 * inner - period) * scale
    one = first.narrow(axis, (inner + period) * scale, count)
    other = second.narrow(axis, inner * scale, count)
    return bool((one - other).abs().max() <= tolerance * max(float(one.abs().max()), 1e-6))


def first_global(network: nn.Module, *, channels: int, side: int) -> str | None:
    """The first submodule that spreads one pixel over the whole image, by class and name."""
    names = {module: name for name, module in network.named_modules()}
    spreading: list[str] = []

    def note(module: nn.Module, inputs: tuple, output: object) -> None:
        leaf = next(module.children(), None) is None
        if leaf and not spreading and isinstance(output, Tensor) and output.ndim == 4:
            before = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
            spread = bool(output.isnan().any(1).all())
            if spread and (before is None or not bool(before.isnan().any(1).all())):
                spreading.append(f"{names.get(module)!r} ({type(module).__name__})")

    marked = picture(channels, side, side)
    marked[..., 0, 0] = math.nan
    with register_module_forward_hook(note):
        network(marked)
    return spreading[0] if spreading else None
