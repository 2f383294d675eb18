"""Applies a table of weights along one axis of an array.

`by_definition` is the whole operation; the tests hold every other form to it. The fast forms:

- `by_phase`: the outputs of a rational ratio p/q repeat every p pixels with the input shifted by q,
  so each of the p phases is a weighted sum of strided slices. Wins on CPUs and GPUs where the ratio
  is simple. It reads the unpadded input (a pad and a slice in one XLA:CPU fusion evaluate the pad
  once a tap); the few outputs at the ends are gathered from the two strips they read.
- `by_gather`: one gather a tap. Wins where the ratio has no short period, and compiles quickly.
- `by_fused_gathers`: the same, to be fused with the next pass. Wins on GPUs for few taps.
- `by_loop`: also gathers, a few taps at a time in a loop: a filter hundreds of taps wide (a
  thumbnail of a large photo) compiles as quickly as a narrow one.
- `by_matmul`: matrix products, the fastest on a TPU. For finite input only: their zeros meet every
  pixel of a band. `by_matmul_of_any` takes any input, for more products.
- `by_digits`: matrix products for uint8 levels and fixed-point weights, exact.

All of them sum in the dtype of their array, and from the first tap to the last where the tables ask
for it. The first two end in a concatenation, which XLA:CPU does not fuse into operations that
follows: fused, the next pass would compute this one again for each of its own taps. (It drops
`optimization_barrier` before it fuses.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._resize.weights import SPARE, Finish, Taps
from jaxsr.ops._typed_jax import asarray, dot_general, gather, zeros_like

LONG_LINE = 64
"""Contiguous values that one pixel of the resized axis stands for, from which on gathers win."""
MOST_PHASES = 8
MOST_SLICES = 48
"""Slices beyond which compiling the phases costs more than they save."""
MOST_GATHERS = 24
"""Taps beyond which `by_loop` takes over from `by_gather`."""
LOOP_TAPS = 8
"""Taps that one turn of the loop adds."""
BAND_OUTPUTS = 128
"""Outputs of one matrix product: the rows of a TPU's multiplier."""
DIGIT = 256
"""Base of the digits of fixed-point weights; from -128 to 127."""
SAME_WEIGHT = 1e-7
"""Weights of one phase closer than this are one constant: half a unit in float32's last place."""


@dataclass(frozen=True, eq=False)
class Phases:
    """How `by_phase` computes one axis: `inner` periods in the middle, the ends one by one."""

    outputs_per_period: int
    inputs_per_period: int
    first: int
    """First period whose taps follow the pattern."""
    periods: int
    """Periods that do."""
    slices: tuple[tuple[tuple[int, np.ndarray], ...], ...]
    """For every phase, (offset of the input slice, weight or weights along the axis)."""


def by_definition(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """`out[o] = sum_t weight[o, t] * in[index[o, t]]`, which every form below computes."""
    pixels = jnp.moveaxis(x, axis, -1)[..., taps.index]
    products = _product(pixels, taps.weight.astype(x.dtype), taps)
    return jnp.moveaxis(products.sum(-1, dtype=x.dtype), -1, axis)


def apply_taps(x: jax.Array, taps: Taps, axis: int, finish: Finish | None = None) -> jax.Array:
    """The sums of `taps` along `axis`, by the way that suits the ratio, each one `finish`ed."""
    if taps.is_identity:
        return x if finish is None else finish(x)
    if taps.is_choice:
        return by_gather(x, taps, axis, finish)
    # A gather of long contiguous lines is as fast as a slice of them, and compiles in less time.
    if math.prod(x.shape[axis + 1 :]) < LONG_LINE:
        phases = plan_phases(taps)
        if phases is not None:
            return by_phase(x, taps, phases, axis, finish)
    if taps.index.shape[1] > MOST_GATHERS:
        total = by_loop(x, taps, axis)
        return total if finish is None else finish(total)
    return by_gather(x, taps, axis, finish)


def gathers_pixels(shape: Sequence[int], taps: Taps, axis: int) -> bool:
    """Whether `apply_taps` gathers single pixels, not lines, for an array of this shape."""
    short = math.prod(shape[axis + 1 :]) < LONG_LINE
    return short and not taps.is_choice and plan_phases(taps) is None


def plan_phases(taps: Taps) -> Phases | None:
    """The periodic part of the tables, or None where there is none worth using."""
    ratio = Fraction(taps.step).limit_denominator(MOST_PHASES)
    p, q = ratio.denominator, ratio.numerator
    blocks = taps.outputs // p
    if q == 0 or blocks < 3 or abs(float(ratio) - taps.step) * taps.outputs > 0.01:
        return None
    width = taps.index.shape[1]
    if p * width > MOST_SLICES:
        return None
    shifted = taps.index[: blocks * p].reshape(blocks, p, width).astype(np.int64)
    shifted = shifted - q * np.arange(blocks)[:, None, None]
    middle = shifted[blocks // 2]
    used = np.abs(taps.weight[: blocks * p].reshape(blocks, p, width)) > SPARE
    # A spare tap points anywhere inside the support. Every period has the same ones, or it would
    # read past its support where its neighbours do not.
    same = used == used[blocks // 2]
    regular = (same & ((shifted == middle) | ~used)).all(axis=(1, 2))
    before, after = np.nonzero(~regular[: blocks // 2])[0], np.nonzero(~regular[blocks // 2 :])[0]
    first = int(before[-1]) + 1 if before.size else 0
    stop = blocks // 2 + int(after[0]) if after.size else blocks
    while stop > first and middle.max() + q * (stop - 1) >= taps.extent:
        stop -= 1
    while stop > first and middle.min() + q * first < 0:
        first += 1
    if 2 * (stop - first) < blocks:
        return None
    weight = taps.weight[first * p : stop * p].reshape(stop - first, p, width)
    is_exact = taps.in_order or np.issubdtype(taps.weight.dtype, np.integer)
    tolerance = 0 if is_exact else SAME_WEIGHT

    def term(r: int, t: int) -> tuple[int, np.ndarray]:
        along = weight[:, r, t]
        is_constant = float(np.ptp(along)) <= tolerance
        return int(middle[r, t]) + q * first, along[:1] if is_constant else along

    used = np.abs(weight[0]) > SPARE
    slices = [tuple(term(r, t) for t in range(width) if used[r, t]) for r in range(p)]
    return Phases(p, q, first, stop - first, tuple(slices)) if all(slices) else None


def by_phase(
    x: jax.Array, taps: Taps, phases: Phases, axis: int, finish: Finish | None = None
) -> jax.Array:
    """Weighted sums of strided slices, one set a phase; the ends of the axis by gathers."""
    p, q = phases.outputs_per_period, phases.inputs_per_period
    reach = q * (phases.periods - 1) + 1

    def term(start: int, weight: np.ndarray) -> jax.Array:
        piece = jax.lax.slice_in_dim(x, start, start + reach, q, axis=axis)
        return _product(piece, _along(weight, axis, x), taps)

    outs = [reduce(jnp.add, (term(*each) for each in terms)) for terms in phases.slices]
    if p == 1:
        middle = outs[0]
    else:
        middle = jnp.stack(outs, axis=axis + 1)
        middle = middle.reshape(*x.shape[:axis], phases.periods * p, *x.shape[axis + 1 :])
    first = phases.first * p
    stop = first + phases.periods * p
    parts = [middle]
    if first > 0:
        parts.insert(0, _gather(x, taps, slice(0, first), axis))
    if stop < taps.outputs:
        parts.append(_gather(x, taps, slice(stop, taps.outputs), axis))
    return _join(parts, axis, finish)


def by_fused_gathers(
    x: jax.Array, taps: Taps, axis: int, finish: Finish | None = None
) -> jax.Array:
    """One gather a tap, which a compiler may fuse into later operations."""
    total = _gather(x, taps, slice(None), axis)
    return total if finish is None else finish(total)


def by_gather(x: jax.Array, taps: Taps, axis: int, finish: Finish | None = None) -> jax.Array:
    """One gather a tap."""
    if taps.is_choice or taps.outputs == 1:
        return _join([_gather(x, taps, slice(None), axis)], axis, finish)
    # Two parts for the sake of the concatenation.
    last = taps.outputs - 1
    parts = [_gather(x, taps, part, axis) for part in (slice(0, last), slice(last, None))]
    return _join(parts, axis, finish)


def _join(parts: list[jax.Array], axis: int, finish: Finish | None) -> jax.Array:
    # Finished one by one: the concatenation has to come last to keep the passes apart.
    parts = parts if finish is None else [finish(part) for part in parts]
    return jax.lax.concatenate(parts, axis)


def by_loop(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """`LOOP_TAPS` gathers a turn."""
    outputs, width = taps.index.shape
    turns = -(-width // LOOP_TAPS)
    spare = turns * LOOP_TAPS - width
    # Spare taps read the first tap's pixel, with its sign.
    index = np.concatenate([taps.index, np.repeat(taps.index[:, :1], spare, axis=1)], axis=1)
    no_share = np.copysign(SPARE, taps.weight[:, :1]).astype(x.dtype)
    weight = np.concatenate([taps.weight, np.repeat(no_share, spare, axis=1)], axis=1)
    weight = weight.astype(x.dtype)
    index = index.T.reshape(turns, LOOP_TAPS, outputs, 1)
    weight = weight.T.reshape(turns, LOOP_TAPS, outputs, *[1] * (x.ndim - 1 - axis))

    def turn(total: jax.Array, tables: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        for position, share in zip(*tables, strict=True):
            total = total + _product(_lines(x, position, axis), share, taps)
        return total, None

    # Derived from x, so that the sums are sharded as it is.
    start = zeros_like(x, shape=(*x.shape[:axis], outputs, *x.shape[axis + 1 :]))
    return jax.lax.scan(turn, start, (asarray(index), asarray(weight)))[0]


def _lines(x: jax.Array, index: jax.Array | np.ndarray, axis: int) -> jax.Array:
    """The lines of `x` across `axis` at `index`, a column of positions that are all inside."""
    dimensions = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(d for d in range(x.ndim) if d != axis),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
    )
    line = tuple(1 if d == axis else extent for d, extent in enumerate(x.shape))
    return gather(x, index, dimensions, line, mode="promise_in_bounds")


def _gather(x: jax.Array, taps: Taps, outputs: slice, axis: int) -> jax.Array:
    index, weight = taps.index[outputs], taps.weight[outputs]
    low, high = int(index.min()), int(index.max()) + 1
    strip = jax.lax.slice_in_dim(x, low, high, axis=axis)

    def term(t: int) -> jax.Array:
        pixels = _lines(strip, index[:, t : t + 1] - low, axis)
        return pixels if taps.is_choice else _product(pixels, _along(weight[:, t], axis, x), taps)

    return reduce(jnp.add, map(term, range(index.shape[1])))


def by_matmul(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """Matrix products, one for each band of outputs; exact in float32, also on a TPU."""
    # A TPU rounds float32 operands to bfloat16 by default, and HIGH leaves 16 bits.
    return _banded_product(x, _matrix(taps, x.dtype), taps, axis, jax.lax.Precision.HIGHEST)


def by_matmul_of_any(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """`by_matmul` where a NaN or an infinity reaches only the outputs with a tap on it.

    Products count the taps of each output that meet one. Quicker to compile than sums of slices.
    """
    matrix = _matrix(taps, np.float32)

    def reached(taps_on_high: np.ndarray, taps_on_low: np.ndarray) -> jax.Array:
        # A few ones to sum: exact in any precision.
        counts = [
            _banded_product(marks.astype(jnp.bfloat16), met.astype(jnp.bfloat16), taps, axis)
            for marks, met in ((jnp.isposinf(x), taps_on_high), (jnp.isneginf(x), taps_on_low))
        ]
        return (counts[0] + counts[1]) > 0

    to_high, to_low = reached(matrix > 0, matrix < 0), reached(matrix < 0, matrix > 0)
    marks = jnp.isnan(x).astype(jnp.bfloat16)
    to_nan = _banded_product(marks, (matrix != 0).astype(jnp.bfloat16), taps, axis) > 0
    sums = by_matmul(jnp.where(jnp.isfinite(x), x, 0), taps, axis)
    sums = jnp.where(to_high, jnp.inf, jnp.where(to_low, -jnp.inf, sums))
    return jnp.where(to_nan | (to_high & to_low), jnp.nan, sums)


def can_take_digits(x: jax.Array, taps: Taps) -> bool:
    """Whether `by_digits` computes these sums."""
    is_fixed_point = np.issubdtype(taps.weight.dtype, np.integer)
    # float32 adds whole numbers exactly below 2²⁴.
    most = 255 * (DIGIT // 2) * taps.index.shape[1]
    return x.dtype == jnp.uint8 and is_fixed_point and not taps.shift and most < 1 << 24


def by_digits(x: jax.Array, taps: Taps, axis: int, finish: Finish | None = None) -> jax.Array:
    """int32 sums of uint8 levels by fixed-point weights, as a product for each digit of those.

    Levels and digits are whole numbers of 8 bits, which bfloat16 holds and a TPU's multiplier adds
    up in float32 without rounding. Sums of shifted slices of integers, between lanes, take it up to
    forty times as long (docs/ops.md).
    """
    remainder, place = _matrix(taps, np.int64), 0
    levels = x.astype(jnp.bfloat16)
    terms: list[jax.Array] = []
    while remainder.any():
        digit = (remainder + DIGIT // 2) % DIGIT - DIGIT // 2
        if digit.any():
            sums = _banded_product(levels, digit.astype(jnp.bfloat16), taps, axis, out=jnp.float32)
            terms.append(sums.astype(jnp.int32) << place)
        remainder, place = (remainder - digit) // DIGIT, place + DIGIT.bit_length() - 1
    total = reduce(jnp.add, terms)
    return total if finish is None else finish(total)


def _matrix(taps: Taps, dtype: np.dtype | type) -> np.ndarray:
    matrix = np.zeros((taps.outputs, taps.extent), dtype)
    rows = np.repeat(np.arange(taps.outputs), taps.index.shape[1])
    np.add.at(matrix, (rows, taps.index.ravel()), taps.weight.ravel())
    return matrix


def _banded_product(
    x: jax.Array,
    matrix: np.ndarray,
    taps: Taps,
    axis: int,
    precision: jax.lax.Precision | None = None,
    out: type | None = None,
) -> jax.Array:
    options: dict[str, Any] = {"precision": precision, "preferred_element_type": out}
    parts: list[jax.Array] = []
    for band, low, high in _bands(taps):
        piece = jax.lax.slice_in_dim(x, low, high, axis=axis)
        weights = asarray(matrix[band, low:high])
        if math.prod(x.shape[axis + 1 :]) < BAND_OUTPUTS:
            sums = jnp.tensordot(piece, weights, ((axis,), (1,)), **options)
            parts.append(jnp.moveaxis(sums, -1, axis))
            continue
        # One product for each index of the leading axes leaves the result's axes in order; a TPU
        # takes 4 % fewer cycles for it, by its compiler's estimate.
        leading = tuple(range(axis))
        weights = jnp.broadcast_to(weights, (*x.shape[:axis], *weights.shape))
        dimensions = (((axis + 1,), (axis,)), (leading, leading))
        parts.append(dot_general(weights, piece, dimensions, **options))
    return jax.lax.concatenate(parts, axis)


def _bands(taps: Taps) -> list[tuple[slice, int, int]]:
    """(outputs, first input, end of the inputs) of each product: bands where they are narrow."""
    bands: list[tuple[slice, int, int]] = []
    for first in range(0, taps.outputs, BAND_OUTPUTS):
        band = slice(first, min(first + BAND_OUTPUTS, taps.outputs))
        # Whole tiles: a TPU lays arrays out in rows of 8.
        low = int(taps.index[band].min()) // 8 * 8
        high = min(-(-(int(taps.index[band].max()) + 1) // 8) * 8, taps.extent)
        bands.append((band, low, high))
    widest = max(high - low for _, low, high in bands)
    if 3 * widest > taps.extent:
        return [(slice(None), 0, taps.extent)]
    return bands


def _product(pixels: jax.Array, weight: np.ndarray | jax.Array, taps: Taps) -> jax.Array:
    if taps.in_order:
        # The choice keeps compilers from contracting product and sum into one operation that
        # rounds once: the reference rounds twice.
        return jnp.where(pixels == 0, 0.0, pixels * weight)
    return (pixels * weight) >> taps.shift if taps.shift else pixels * weight


def _along(weight: np.ndarray, axis: int, x: jax.Array) -> np.ndarray:
    if weight.size == 1:
        return np.asarray(weight.reshape(()), x.dtype)
    shape = [1] * x.ndim
    shape[axis] = -1
    return weight.reshape(shape).astype(x.dtype)
