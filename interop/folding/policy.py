# pyright: reportUnknownMemberType=false
"""Lane folding: narrow convolutions on TPU compute neighbouring columns side by side.

A TPU takes as long for a convolution of 16 channels as for one of 128, and its activations take
eight times their size. Folded, eight columns share those 128 lanes (`layout.py`). Results are those
of the plain network, up to the order of sums.

CPUs and GPUs convolve images with channels last; torch's order costs two transposes a convolution.
With folds of one column, images stay channels last from layer to layer.

    folding = choose_folding("auto", mesh.devices.flat[0])     # None where it does not help
    module = to_jax(network, lane_folding=folding)

Which fold a width gets is a table (`table.py`), searched with the TPU compiler's estimates.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any, Literal, cast

from jaxsr.interop.aot.chips import chip_of
from jaxsr.interop.errors import InputError
from jaxsr.interop.folding.layout import LANES
from jaxsr.interop.folding.table import FOLDS

log = logging.getLogger(__name__)

Choice = Literal["auto", "on", "off"]

_OTHER_CHIPS = "v5e"
"""Whose folds a chip without a table gets: all have 128 lanes."""
_WIDEST = 512
"""Input lanes beyond which no convolution is folded."""
_MOVED = 256
"""Input lanes up to which an image already folded is folded further."""


@dataclasses.dataclass(frozen=True)
class LaneFolding:
    """Which fold the images of a width get, and which stay folded."""

    folds: Mapping[int, int]
    """By most channels: the columns folded into their lanes; more channels are not folded."""
    fewest_lanes: int = 64
    """An image that an operator leaves with fewer is unfolded: columns fill the lanes better."""
    offset_bytes: int = 2
    """Images of numbers no wider than this may be grouped with an offset, which saves up to a third
    of a convolution's multiplications. In float32 it is memory that limits: some steps take a tenth
    fewer cycles with offsets, SPAN's of 48 channels on v6e takes more."""
    channels_last: bool = False
    """Nothing is folded; images have their channels last, one column in a group."""

    def fold_of(self, channels: int) -> int:
        """Columns in a group of images with so many channels."""
        return next((f for limit, f in sorted(self.folds.items()) if channels <= limit), 1)

    def choose(
        self, *, inputs: int, outputs: int, width: int, stride: int, current: int | None
    ) -> int:
        """The fold that a convolution's input gets, 1 for none.

        Args:
          inputs, outputs: channels.
          width: columns of the input.
          stride: along columns.
          current: the fold that the input has already.
        """
        if self.channels_last:
            return 1
        columns = self.fold_of(outputs) * stride
        if current is not None:
            if current * inputs > LANES and current * outputs > 2 * LANES:
                # If both sides are wider than the lanes, folding only adds multiplications by zero.
                return self._fitting(max(self.fold_of(inputs), self.fold_of(outputs)), width)
            further = columns > current and columns * inputs <= _MOVED
            return self._fitting(columns, width) if further else current
        if self.fold_of(outputs) == 1:
            return 1
        while columns > 1 and columns * inputs > _WIDEST:
            columns //= 2
        return self._fitting(columns, width)

    def _fitting(self, columns: int, width: int) -> int:
        """The fold itself if it divides the width or wastes little of it, else a smaller one."""
        while columns > 1 and columns > width:
            columns //= 2
        half = columns // 2
        if width % columns and half > 1 and width % half == 0:
            return half
        return columns


CHANNELS_LAST = LaneFolding({}, channels_last=True)
"""For CPUs and GPUs."""


def choose_folding(choice: Choice, device: Any) -> LaneFolding | None:
    """The meaning of `--lane-folding` for a device.

    Args:
      choice: `auto` folds on TPUs and puts channels last elsewhere, `on` folds everywhere, `off`
        leaves everything as torch has it.
      device: one of JAX's; None for its first.

    Raises:
      InputError: the choice does not exist.
    """
    if choice not in ("auto", "on", "off"):
        raise InputError(f"lane_folding must be auto, on or off, got {choice!r}")
    if choice == "off":
        return None
    if device is None:
        import jax

        device = cast(Any, jax.devices())[0]
    if choice == "auto" and device.platform != "tpu":
        return CHANNELS_LAST
    return LaneFolding(_folds(device))


def _folds(device: Any) -> Mapping[int, int]:
    """The table of a device's chip; a warning names a TPU without a table."""
    chip = chip_of(device.device_kind)
    if chip is not None and chip.name in FOLDS:
        return FOLDS[chip.name]
    if device.platform == "tpu":
        _warn_once(device.device_kind)
    return FOLDS[_OTHER_CHIPS]


@functools.cache
def _warn_once(device_kind: str) -> None:
    log.warning(
        "lane folding has no table for %s and uses that of %s; "
        "`python -m benchmarks.lane_folding_table` makes one",
        device_kind,
        _OTHER_CHIPS,
    )
