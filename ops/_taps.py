"""What one output pixel of a one-dimensional resize reads, and how much of each.

A separable resize is, along each axis, `out[o] = sum_t weight[o, t] * in[index[o, t]]`. The tables
are NumPy, made once at trace time by the convention (`_taps_torch.py` and its neighbours) and
applied by `_resample.py`.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Taps:
    """The taps of every output pixel along one axis."""

    extent: int
    """Pixels of the input along this axis."""
    index: np.ndarray
    """(outputs, taps) int32; every entry lies inside the input."""
    weight: np.ndarray
    """(outputs, taps) float64, or int32 where the convention is fixed point."""
    step: float
    """Input pixels between two neighbouring outputs."""
    bits: int = 0
    """Fractional bits of a fixed-point weight."""

    @property
    def outputs(self) -> int:
        return self.index.shape[0]

    @property
    def is_identity(self) -> bool:
        """Whether every output is the input pixel at its own place."""
        return (
            self.outputs == self.extent
            and self.index.shape[1] == 1
            and bool((self.index[:, 0] == np.arange(self.extent)).all())
            and self.bits == 0
            and bool((self.weight == 1).all())
        )


def make_taps(
    extent: int, index: np.ndarray, weight: np.ndarray, *, step: float, bits: int = 0
) -> Taps:
    """Tables from indices that may leave the image at either end; those are clamped to the edge.

    A tap of zero weight is pointed at a pixel that the output reads anyway: 0 * NaN is NaN, so a
    NaN just outside the support would otherwise spread into the output.
    """
    used = weight != 0
    used[~used.any(axis=1), 0] = True
    first_used = used.argmax(axis=1)
    anchor = np.take_along_axis(index, first_used[:, None], axis=1)
    index = np.clip(np.where(used, index, anchor), 0, extent - 1)
    columns = used.any(axis=0)
    return Taps(extent, index[:, columns].astype(np.int32), weight[:, columns], step, bits)


def nearest_taps(extent: int, index: np.ndarray, *, step: float) -> Taps:
    """One tap of weight 1 for each output."""
    index = np.clip(index, 0, extent - 1).astype(np.int32)[:, None]
    return Taps(extent, index, np.ones(index.shape), step)


def area_taps(extent: int, outputs: int) -> Taps:
    """Means over whole pixels: output o covers floor(o n / m) up to ceil((o + 1) n / m)."""
    o = np.arange(outputs, dtype=np.int64)
    start = o * extent // outputs
    stop = -((-(o + 1) * extent) // outputs)
    index = start[:, None] + np.arange(int((stop - start).max()))
    weight = np.where(index < stop[:, None], 1.0 / (stop - start)[:, None], 0.0)
    return make_taps(extent, index, weight, step=extent / outputs)
