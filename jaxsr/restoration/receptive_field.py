"""The inputs of an output pixel of a network: how far tiles must overlap, and where they start.

A tile gives the whole image's result where it holds every input pixel that an output pixel
depends on, and where it starts on a multiple of the network's period.

- **Margin.** Read from the network's operations (`jaxsr.restoration.coverage`), or found by probing
  where they cannot be followed (`jaxsr.restoration.probing`).
- **Period.** Shifting the input by the period shifts the output by `scale` times as much. It is 1
  for convolutions and whole enlargements; for windows, strides and tables of positions it is read
  from the ranges and then tried on two shifted strips.
- A network whose result depends on the whole image (InstanceNorm, global pooling, attention over
  everything), or that no shift leaves alone (positional encodings), has no exact tiles; the first
  operation that makes it so is named.

Networks are NCHW torch modules on the CPU, in evaluation mode.
"""

import logging
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, UserError, first_line, printable
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import evaluating
from jaxsr.models.outputs import answer_of
from jaxsr.restoration.coverage import cover
from jaxsr.restoration.covered_tensor import CoveredTensor, NotAnalysedError
from jaxsr.restoration.live_values import most_live_values
from jaxsr.restoration.probing import first_global, is_periodic, picture, probe_margin

log = logging.getLogger(__name__)

_LENGTHS = (128, 512, 1024, 2048)
"""Rows of the images whose ranges are followed; margins are below two fifths of them."""
_LOCAL = ("convolution", "avg_pool2d", "max_pool2d", "_unsafe_view", "view")
"""Operations that see all of a short image and not all of a long one."""
_PROBED = (32, 64, 128, 256, 512)
"""Lengths of the probed strips."""
_WIDTHS = (32, 64)
"""Widths of the images and strips; the second where a network does not take the first."""
_MOST_PERIOD = 128
ROUNDING = 1e-5
"""Sums of a deep network differ by this much, relative to its largest value."""
_POSITION = "its result depends on the position in the image"
_PATIENCE_S = 2.0
"""Probing that takes longer says so."""
_LIMIT_S = 120.0
"""Processor seconds. Probing that would take longer ends: the image is then treated whole."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a network's output depends on its input: its receptive field."""

    scale: int
    """Output pixels per input pixel, along each side."""
    margin: int | None
    """Input pixels that a tile needs beyond its own on every side; None: the whole image."""
    period: int = 1
    """Tiles start at multiples of this."""
    cause: str = ""
    """The part of the network that rules out a margin, if there is no margin."""
    live: int = 0
    """Values that are alive at once, at most, per input pixel."""
    least_side: int = 1
    """Pixels of the smallest image that it takes, along each side."""
    tried: dict[tuple[int, int], int] = field(default_factory=dict, compare=False, repr=False)
    """Longest side on which tiles gave the whole's result, by the axis and a tile's side."""


def measure_reach(
    network: nn.Module, *, channels: int, least_side: int = 1, side_multiple: int = 1
) -> Reach:
    """Reads a network's reach from its operations, or probes it.

    Args:
      network: takes (batch, `channels`, height, width), in [0, 1] or any range near it; answers as
        `jaxsr.models.outputs.answer_of` says.
      channels: of its input.
      least_side: the smallest sides that it takes.
      side_multiple: sides are multiples of this.

    Raises:
      ValueError: it does not turn images into images `scale` times as large.
    """
    answering = network.register_forward_hook(lambda _module, _inputs, output: answer_of(output))
    with (
        answering,
        torch.no_grad(),
        evaluating(network),
        torch.backends.nnpack.flags(enabled=False),
    ):
        return _Measurement(network, channels, least_side, side_multiple).reach()


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """The reach of a network along one axis."""

    scale: int
    margin: int | None
    period: int | None
    """None where no shift leaves the ranges alone."""
    position: tuple[str, ...]
    """Operations that may treat rows by their position."""
    cause: str
    """Reason that there is no margin."""
    live: int


class _Measurement:
    def __init__(
        self, network: nn.Module, channels: int, least_side: int, side_multiple: int
    ) -> None:
        self._network, self._channels = network, channels
        self._least, self._multiple = least_side, side_multiple
        self._began, self._told = time.perf_counter(), False
        self._processor_began = time.process_time()

    def reach(self) -> Reach:
        try:
            return self._analysed()
        except UserError:
            raise
        except Exception as error:  # whatever a network does with a tensor that has no values
            log.debug("%s: %s", type(error).__name__, error)
            self._progress(f"its operations cannot be followed ({type(error).__name__})")
        return self._probed()

    def _side(self, least: int) -> int:
        return math.ceil(max(least, self._least) / self._multiple) * self._multiple

    def _analysed(self) -> Reach:
        # A copy: a forward may keep tensors in attributes, and these have no values.
        network = copy_module(self._network)
        down, across = self._axis(network, 2), self._axis(network, 3)
        scale, live = down.scale, max(down.live, across.live)
        for one in (down, across):
            if one.margin is None:
                return self._no_tiles(scale, one.cause, live)
            if one.period is None:
                return self._no_tiles(scale, f"{_POSITION}: {one.position[0]}", live)
        margin = max(down.margin or 0, across.margin or 0)
        period = math.lcm(down.period or 1, across.period or 1)
        position = [*down.position, *across.position]
        if not position:
            return self._tiles(scale, margin, period, live)
        # A network that treats both axes alike is tried along one.
        axes = (2,) if down == across else (2, 3)
        tried = [period * k for k in (1, 2, 3, 4, 6, 8, 16, 32, 64)]
        for candidate in [p for p in tried if p == period or p <= _MOST_PERIOD]:
            aligned = math.ceil(margin / candidate) * candidate
            if self._periodic(candidate, aligned, scale, axes):
                return self._tiles(scale, aligned, candidate, live)
        return self._no_tiles(scale, f"{_POSITION}: {position[0]}", live)

    def _axis(self, network: nn.Module, axis: int) -> "_Axis":
        """Follows the ranges along one axis, on longer and longer images."""
        margin, axis_reach = None, None
        for length in _LENGTHS:
            rows, columns, (output, coverage) = self._covered(network, length, axis)
            scale = _scale(self._network, output, self._channels, rows, columns, axis)
            first, last = _per_output(output, axis, rows * scale)
            margin, period = _margin_and_period(first, last, scale)
            local = (coverage.global_operation or "view").startswith(_LOCAL)
            sure = coverage.surely_global and not local
            if margin is None and coverage.unknown_operations and not sure:
                raise NotAnalysedError(coverage.unknown_operations[0])
            too_short = coverage.widest >= rows * 2 // 5  # the outer taps read nothing here
            margin = None if too_short else margin
            axis_reach = _Axis(
                scale=scale,
                margin=margin,
                period=period,
                position=tuple(coverage.position_operations),
                cause=coverage.global_operation
                or f"it reads more than {_LENGTHS[-1] * 2 // 5} pixels",
                live=math.ceil(coverage.live.most / (rows * columns)),
            )
            if not too_short and (margin is not None or not local):
                break
        assert axis_reach is not None
        return axis_reach

    def _covered(self, network: nn.Module, length: int, axis: int) -> tuple[int, int, Any]:
        for width in _WIDTHS:
            rows, columns = self._side(length), self._side(width)
            try:
                return rows, columns, cover(
                    network, channels=self._channels, rows=rows, columns=columns, axis=axis
                )  # fmt: skip
            except (RuntimeError, ValueError, AssertionError):
                if width == _WIDTHS[-1]:
                    raise
        raise AssertionError

    def _tiles(self, scale: int, margin: int, period: int, live: int) -> Reach:
        period = math.lcm(period, self._multiple)
        margin = math.ceil(margin / period) * period
        return Reach(scale=scale, margin=margin, period=period, live=live, least_side=self._least)

    def _no_tiles(self, scale: int, cause: str, live: int) -> Reach:
        return Reach(
            scale=scale, margin=None, period=self._multiple, cause=cause, live=live,
            least_side=self._least,
        )  # fmt: skip

    def _periodic(
        self, period: int, margin: int, scale: int, axes: tuple[int, ...] = (2, 3)
    ) -> bool:
        unit = math.lcm(period, self._multiple)
        width = math.ceil(max(self._least, _WIDTHS[0] // 2) / unit) * unit
        self._progress(f"trying whether shifts by {period} pixels are exact")
        try:
            return all(
                is_periodic(
                    self._network, channels=self._channels, scale=scale, period=period,
                    margin=max(margin, self._least), unit=unit, width=width, axis=axis,
                    tolerance=ROUNDING,
                )
                for axis in axes
            )  # fmt: skip
        except RuntimeError:  # sides that it does not take
            return False

    def _probed(self) -> Reach:
        side = self._side(_WIDTHS[-1])
        trial = picture(self._channels, side, side)
        try:
            output, again = self._network(trial), self._network(trial)
        except Exception as error:  # whatever a user's or a library's code raises
            raise InputError(
                f"{type(self._network).__name__} fails on images {tuple(trial.shape)}: "
                f"{first_line(error)}"
            ) from error
        scale = _scale(self._network, output, self._channels, side, side, 2)
        live = math.ceil(most_live_values(self._network, trial) / side**2)
        rounding = ROUNDING * float(output.abs().nan_to_num().max())
        if not torch.allclose(output, again, rtol=0, atol=rounding, equal_nan=True):
            return self._no_tiles(scale, "it draws random numbers", live)
        margin, period, last_s = None, None, 0.0
        for length in (self._side(length) for length in _PROBED):
            if length < _widest_layer(self._network):
                continue
            # Processor time: other programs on the machine must not affect the result.
            began = time.process_time()
            # A strip twice as long takes twice as long, or more.
            if began - self._processor_began + 2 * last_s > _LIMIT_S:
                cause = f"how far it sees is not found in {_LIMIT_S:g} s of processor time"
                return self._no_tiles(scale, cause, live)
            self._progress(f"probing how far it sees: {length} pixels")
            margin = self._probed_margin(length, scale, block=1)
            last_s = time.process_time() - began
            if margin is None:
                continue
            # Shifted strips are longer than this probe: they show its misses.
            shifts = (p for p in (1, 2, 4, 8, 16, 32, 64) if self._periodic(p, margin, scale))
            period = next(shifts, None)
            if period is not None:
                break
        if margin is None:
            cause = first_global(self._network, channels=self._channels, side=side)
            cause = cause or "each output pixel depends on the whole image"
            return self._no_tiles(scale, cause, live)
        if period is None:
            return self._no_tiles(scale, _POSITION, live)
        if period == 1:
            return self._tiles(scale, margin, 1, live)
        # Measured again from whole blocks: pixels of one block may reach differently far.
        for length in (self._side(length) for length in _PROBED):
            if length > margin and length % period == 0:
                block_margin = self._probed_margin(length, scale, block=period)
                if block_margin is not None:
                    return self._tiles(scale, block_margin, period, live)
        return self._no_tiles(scale, f"it reads more than {_PROBED[-1]} pixels", live)

    def _probed_margin(self, length: int, scale: int, *, block: int) -> int | None:
        margins = []
        for axis in (2, 3):
            try:
                margins.append(
                    probe_margin(
                        self._network, channels=self._channels, scale=scale, length=length,
                        width=self._side(_WIDTHS[-1]), block=block, axis=axis,
                    )
                )  # fmt: skip
            except RuntimeError:  # a length that it does not take
                return None
        return None if None in margins else max(m for m in margins if m is not None)

    def _progress(self, step: str) -> None:
        if time.perf_counter() - self._began > _PATIENCE_S or self._told:
            name = type(self._network).__name__
            print(f"{printable(name)}: {printable(step)}", file=sys.stderr, flush=True)
            self._told = True


def _widest_layer(network: nn.Module) -> int:
    """The longest span of one convolution: a shorter probe would miss its outer taps."""
    spans = [
        max(d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True))
        for module in network.modules()
        if isinstance(module, nn.Conv2d)
    ]
    return max(spans, default=0)


def _scale(
    network: nn.Module, output: object, channels: int, rows: int, columns: int, axis: int
) -> int:
    height, width = (rows, columns) if axis == 2 else (columns, rows)
    name = type(network).__name__
    if not isinstance(output, Tensor) or output.ndim != 4:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"{name} returned {what} for a (1, {channels}, {height}, {width}) image; it must "
            "return one tensor (batch, channels, height, width)"
        )
    _, out_channels, out_height, out_width = output.shape
    scale = out_height // height
    if (out_channels, out_height, out_width) != (channels, height * scale, width * scale) or (
        scale == 0
    ):
        raise InputError(
            f"{name} turned ({channels}, {height}, {width}) into ({out_channels}, {out_height}, "
            f"{out_width}); restoring needs the same channels and a whole multiple of both sides"
        )
    return scale


def _per_output(output: Tensor, axis: int, results: int) -> tuple[Tensor, Tensor]:
    """First and last input row of each output row; both (results,)."""
    if not isinstance(output, CoveredTensor):
        raise NotAnalysedError("the output does not depend on the image")
    first, last = (
        values.amin([a for a in range(4) if a != axis]).expand(results).long()
        for values in output.range
    )
    return first, -last


def _margin_and_period(first: Tensor, last: Tensor, scale: int) -> tuple[int | None, int | None]:
    """From the input rows that each output row depends on; no margin where they reach too far."""
    results = len(first)
    low, high = results * 2 // 5, results * 3 // 5  # seen whole, where no border is in reach
    period = next(
        (
            p
            for p in range(1, min(_MOST_PERIOD, results // scale // 5) + 1)
            if all(
                torch.equal(
                    rows[low:high] + p,
                    rows[low + p * scale : high + p * scale],
                )
                for rows in (first, last)
            )
        ),
        None,
    )
    unit = period or 1
    block = torch.arange(results) // scale // unit * unit
    margin = int(torch.maximum(block - first, last - (block + unit - 1)).max())
    return (max(margin, 0) if margin < low // scale else None), period
