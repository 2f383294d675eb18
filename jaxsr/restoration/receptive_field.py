"""What an output pixel of a network depends on, measured on the network itself.

A tile gives the whole picture's result where it holds every input pixel that an output pixel
depends on, and where it starts on a multiple of the network's internal stride. Both are measured,
so they hold for any module and not only for layers that some table knows:

- **Reach.** A NaN in one input pixel taints every output pixel that reads it, zero weights
  included. A second run, with that pixel merely changed, catches what stops a NaN (`where`).
- **Period.** Shifting the input by the period shifts the output by `scale` times as much.
- A network whose taint covers everything (InstanceNorm, global pooling, attention), or that no
  shift leaves alone (positional encodings), has no exact tiles; the submodule is named.

Networks are NCHW torch modules on the CPU, in evaluation mode.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from jaxsr.errors import InputError

_SIDES = (32, 64, 128, 256, 512)
"""Sides of the probes in pixels, tried until the influence of a corner ends inside."""
_PROBE = 64
"""Side that shifted pictures are a multiple of, as is every period that is looked for."""
_PERIODS = (1, 2, 4, 8, 16, 32, 64)
# Tiles of two sizes may be computed by two algorithms: sums of a deep network differ by this much.
_ROUNDING = 1e-4

_GLOBAL_LAYERS = (
    nn.InstanceNorm2d, nn.GroupNorm, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
    nn.MultiheadAttention,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a network's output hangs together with its input."""

    scale: int
    """Output pixels per input pixel, along each side."""
    margin: int | None
    """Input pixels that a tile needs beyond its own on every side; None: the whole picture."""
    period: int = 1
    """Tiles start at multiples of this."""
    cause: str = ""
    """Where there is no margin: what in the network makes it so."""
    activation: int = 0
    """Values of the largest intermediate tensor, per input pixel."""


def measure_reach(network: nn.Module, *, channels: int) -> Reach:
    """Probes a network with small random pictures; takes a few forward passes.

    Args:
      network: takes (batch, `channels`, height, width), in [0, 1] or any range near it.
      channels: of its input.

    Raises:
      ValueError: it does not turn pictures into pictures `scale` times as large.
    """
    with torch.no_grad(), _evaluating(network), torch.backends.nnpack.flags(enabled=False):
        scale, activation = _scale(network, channels)
        measured = partial(Reach, scale=scale, activation=activation)
        margin, period = None, None
        for side in _SIDES:
            if side < _widest_layer(network) or side % _least(network, channels):
                continue
            margin, everything = _margin(network, channels, side, scale, block=1)
            if margin is None and everything and _has_global_layer(network):
                break
            # Shifted pictures are larger than this probe: they show what it missed.
            period = None if margin is None else _period(network, channels, scale, margin)
            if period is not None:
                break
        if margin is None:
            return measured(margin=None, cause=_first_global(network, channels))
        if period is None:
            cause = "its result depends on the position in the picture"
            return measured(margin=None, cause=cause)
        if period == 1:
            return measured(margin=margin)
        # Measured again from whole blocks: pixels of one block may reach differently far.
        for side in _SIDES:
            if side > margin and side % _PROBE == 0:
                block_margin, _ = _margin(network, channels, side, scale, block=period)
                if block_margin is not None:
                    aligned = math.ceil(block_margin / period) * period
                    return measured(margin=aligned, period=period)
        return measured(margin=None, cause=f"it reads more than {_SIDES[-1]} pixels to a side")


def _widest_layer(network: nn.Module) -> int:
    """The longest span of one convolution: a smaller probe would miss its outer taps."""
    spans = [
        max(d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True))
        for module in network.modules()
        if isinstance(module, nn.Conv2d)
    ]
    return max(spans, default=0)


def _least(network: nn.Module, channels: int) -> int:
    """32, or 64 for a network that refuses sides which are no multiple of 64."""
    try:
        network(_picture(channels, _SIDES[0]))
    except RuntimeError:
        return _PROBE
    return _SIDES[0]


@contextlib.contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _picture(channels: int, side: int) -> Tensor:
    generator = torch.Generator().manual_seed(side)
    return torch.rand((1, channels, side, side), generator=generator)


def _scale(network: nn.Module, channels: int) -> tuple[int, int]:
    """The scale, and values of the largest tensor that any submodule returns, per input pixel."""
    largest = 0

    def note(_module: nn.Module, _inputs: tuple, output: object) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.numel())

    with register_module_forward_hook(note):
        output = network(_picture(channels, _PROBE))
    if not isinstance(output, Tensor) or output.ndim != 4:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"{type(network).__name__} returned {what} for a (1, {channels}, {_PROBE}, {_PROBE}) "
            "picture; it must return one tensor (batch, channels, height, width)"
        )
    _, out_channels, height, width = output.shape
    if height != width or height % _PROBE or out_channels != channels:
        raise InputError(
            f"{type(network).__name__} turned ({channels}, {_PROBE}, {_PROBE}) into "
            f"({out_channels}, {height}, {width}); restoring needs the same channels and a whole "
            "multiple of both sides"
        )
    return height // _PROBE, math.ceil(largest / _PROBE**2)


def _margin(
    network: nn.Module, channels: int, side: int, scale: int, *, block: int
) -> tuple[int | None, bool]:
    """How far a corner block's influence goes beyond it, and whether that is everywhere.

    Corners, because from there a picture of `side` pixels shows reaches of up to `side`.
    """
    clean = _picture(channels, side)
    corners = (slice(0, block), slice(side - block, side))
    reaches, everything = [0], True

    def moved_by(*corners: slice) -> Tensor:
        changed = clean.clone()
        for corner in corners:
            changed[..., corner, corner] = 1.5 - clean[..., corner, corner]
        return (network(changed) != network(clean)).any(1)[0]

    for corner in corners:
        tainted = clean.clone()
        tainted[..., corner, corner] = math.nan
        touched = network(tainted).isnan().any(1)[0]
        everything &= bool(touched.all())
        reaches += _beyond(touched, corner, scale)
    moved, near = moved_by(*corners), (max(reaches) + block) * scale
    moved[:near, :near] = moved[-near:, -near:] = False
    if max(reaches) < side // 2 and bool(moved.any()):
        # Something does not pass a NaN on: only how far a plain change reaches is left to tell.
        for corner in corners:
            reaches += _beyond(moved_by(corner), corner, scale)
    reach = max(reaches)
    return (None if reach >= side - block else reach), everything


def _beyond(touched: Tensor, corner: slice, scale: int) -> list[int]:
    """How far touched pixels lie before and behind the corner, in input pixels, on both axes."""
    reaches = []
    for axis in (0, 1):
        hit = touched.any(axis).nonzero().flatten() // scale
        if len(hit):
            reaches += [corner.start - int(hit[0]), int(hit[-1]) - (corner.stop - 1)]
    return reaches


def _period(network: nn.Module, channels: int, scale: int, margin: int) -> int | None:
    """The smallest shift of the input that merely shifts the output."""
    for period in _PERIODS:
        inner = margin + period
        side = math.ceil((2 * inner + period + 16) / _PROBE) * _PROBE
        picture = _picture(channels, side + period)
        first = network(picture[..., :side, :side])
        second = network(picture[..., period:, period:])
        low, high = (inner + period) * scale, (side - inner) * scale
        shift = period * scale
        one = first[..., low:high, low:high]
        other = second[..., low - shift : high - shift, low - shift : high - shift]
        if (one - other).abs().max() <= _ROUNDING * max(float(one.abs().max()), 1e-6):
            return period
    return None


def _has_global_layer(network: nn.Module) -> bool:
    return any(isinstance(module, _GLOBAL_LAYERS) for module in network.modules())


def _first_global(network: nn.Module, channels: int) -> str:
    """Names the first submodule that spreads one pixel over the whole picture."""
    names = {module: name for name, module in network.named_modules()}
    spreading: list[str] = []

    def note(module: nn.Module, inputs: tuple, output: object) -> None:
        leaf = next(module.children(), None) is None
        if leaf and not spreading and isinstance(output, Tensor) and output.ndim == 4:
            before = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
            spread = bool(output.isnan().any(1).all())
            if spread and (before is None or not bool(before.isnan().any(1).all())):
                spreading.append(f"{type(module).__name__} at {names[module]!r}")

    marked = _picture(channels, _PROBE)
    marked[..., 0, 0] = math.nan
    with register_module_forward_hook(note):
        network(marked)
    return spreading[0] if spreading else "each output pixel depends on the whole picture"
