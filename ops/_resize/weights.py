"""The pixels that one output pixel of a one-dimensional resize reads, and their weights.

A separable resize is, along each axis, `out[o] = sum_t weight[o, t] * in[index[o, t]]`. The tables
are NumPy arrays. A convention (`conventions/`) makes them while JAX traces; `kernels.py` applies
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import compute_dtype
from jaxsr.ops._resize.filters import Filter

SPARE = float(np.finfo(np.float32).tiny)
"""Weight of a tap that just fills its row. It changes no finite sum, but is not 0 for infinity."""

Finish = Callable[[jax.Array], jax.Array]
"""Follows every sum of a pass: rounding, shifting, clipping."""


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
    shift: int = 0
    """Bits dropped from each integer product before it is added."""
    in_order: bool = False
    """Whether products are rounded before they are added, from the first tap to the last."""

    @property
    def outputs(self) -> int:
        return self.index.shape[0]

    @property
    def is_choice(self) -> bool:
        """Whether every output is one input pixel, unweighted."""
        return self.index.shape[1] == 1 and bool((self.weight == 1).all()) and not self.shift

    @property
    def is_identity(self) -> bool:
        """Whether every output is the input pixel at its own place."""
        return (
            self.outputs == self.extent
            and self.is_choice
            and bool((self.index[:, 0] == np.arange(self.extent)).all())
        )

    def transposed(self) -> "Taps":
        """The gradient's: which outputs each pixel of the input has a share in, and how large.

        A pixel without any has a spare tap.
        """
        output, tap = np.nonzero(np.abs(self.weight) > SPARE)
        pixel = self.index[output, tap]
        order = np.argsort(pixel, kind="stable")
        output, tap, pixel = output[order], tap[order], pixel[order]
        counts = np.bincount(pixel, minlength=self.extent)
        place = np.arange(pixel.size) - np.repeat(np.cumsum(counts) - counts, counts)
        index = np.zeros((self.extent, max(1, counts.max(initial=0))), np.int32)
        weight = np.full(index.shape, SPARE)
        weight[pixel, place] = self.weight[output, tap]
        index[pixel, place] = output
        # Spare taps read the first one's pixel, with its sign.
        spare = np.arange(index.shape[1]) >= counts[:, None]
        index = np.where(spare, index[:, :1], index)
        weight = np.where(spare, np.copysign(SPARE, weight[:, :1]), weight)
        # A single output has no neighbour, and its step is 0.
        return Taps(self.outputs, index, weight, 1 / self.step if self.step else 0.0)


@dataclass(frozen=True, eq=False)
class Pass:
    """One axis of a resize: the dtype of the sums, and the operations on them afterwards."""

    axis: int
    taps: Taps
    dtype: np.dtype
    finish: Finish | None = None


def make_taps(
    extent: int,
    index: np.ndarray,
    weight: np.ndarray,
    *,
    step: float,
    shift: int = 0,
    in_order: bool = False,
) -> Taps:
    """Tables from indices that may leave the image at either end; those are clamped to the edge.

    A tap of zero weight is pointed at a pixel that the output reads anyway: 0 * NaN is NaN, so a
    NaN just outside the support would otherwise spread into the output. 0 * infinity is also NaN,
    so it gets the smallest weight, with the sign of the other tap on its pixel.
    """
    used = weight != 0
    used[~used.any(axis=1), 0] = True
    anchor = np.take_along_axis(index, used.argmax(axis=1)[:, None], axis=1)
    index = np.clip(np.where(used, index, anchor), 0, extent - 1).astype(np.int32)
    if np.issubdtype(weight.dtype, np.floating):
        share = np.take_along_axis(weight, used.argmax(axis=1)[:, None], axis=1)
        weight = np.where(used, weight, np.copysign(SPARE, share))
    if used.sum(axis=1).max() < used.any(axis=0).sum():
        # Rows begin at different columns: moved to the front, in their order, they need fewer.
        front = np.argsort(~used, axis=1, kind="stable")
        index, weight, used = (np.take_along_axis(a, front, axis=1) for a in (index, weight, used))
    columns = used.any(axis=0)
    return Taps(extent, index[:, columns], weight[:, columns], step, shift, in_order)


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


def centred_taps(centre: np.ndarray, window: Filter) -> tuple[np.ndarray, np.ndarray]:
    """Indices and weights of an unstretched filter around each of `centre`, in pixels."""
    base = np.floor(centre)
    fraction = (centre - base).astype(np.float64)
    radius = int(window.radius)
    offset = np.arange(1 - radius, radius + 1)
    return base.astype(np.int64)[:, None] + offset, window.weigh(offset - fraction[:, None])


def normalised_below(stop: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weights of the taps before `stop`, each output's with the sum 1."""
    weight = np.where(index < stop[:, None], weight, 0.0)
    total = weight.sum(axis=1, keepdims=True)
    return weight / np.where(total == 0, 1.0, total)


def clamp_to_uint8(x: jax.Array) -> jax.Array:
    """Whole numbers, cut off at 0 and 255."""
    return jnp.clip(x, 0, 255).astype(jnp.uint8)


def round_half_even(x: jax.Array) -> jax.Array:
    """Floating-point sums as uint8, ties to the even level."""
    return clamp_to_uint8(jnp.round(x))


def drop_bits(bits: int) -> Finish:
    """Fixed-point sums with `bits` fractional bits as uint8, ties upwards."""

    def finish(x: jax.Array) -> jax.Array:
        return clamp_to_uint8((x + (1 << (bits - 1))) >> bits)

    return finish


def choices(taps: Sequence[tuple[int, Taps]], dtype: np.dtype) -> list[Pass]:
    """Passes that only pick pixels; they need no arithmetic and keep every dtype."""
    return [Pass(axis, table, dtype) for axis, table in cheapest_first(taps)]


def float_passes(taps: Sequence[tuple[int, Taps]], dtype: np.dtype) -> list[Pass]:
    """Floating-point passes; uint8 images are rounded once, at the end."""
    passes = [Pass(axis, table, compute_dtype(dtype)) for axis, table in cheapest_first(taps)]
    if dtype == np.uint8:
        passes[-1] = replace(passes[-1], finish=round_half_even)
    return passes


def cheapest_first(taps: Sequence[tuple[int, Taps]]) -> list[tuple[int, Taps]]:
    """Shrinks before it grows; leading axes first when shrinking, trailing ones when growing."""

    def cost(item: tuple[int, Taps]) -> tuple[float, int]:
        axis, table = item
        ratio = table.outputs / table.extent
        return ratio, axis if ratio < 1 else -axis

    return sorted(taps, key=cost)
