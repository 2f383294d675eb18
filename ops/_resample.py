"""Applies tap tables along one axis of an array: three ways to compute the same sums.

- `by_phase`: the outputs of a rational ratio p/q repeat every p pixels with the input shifted by q,
  so each of the p phases is a weighted sum of strided slices. Reads the unpadded input (a pad and a
  slice in one XLA:CPU fusion evaluate the pad once a tap) and computes the few outputs at the ends
  apart.
- `by_gather`: one gather a tap; for ratios without a short period.
- `by_matmul`: a dense matrix; only fit for finite input, because its zeros meet every pixel.

All three sum in the dtype of the array they are given.
"""

from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._taps import Taps

MOST_SLICES = 128
"""Slices beyond which compiling the phases costs more than they save."""
MOST_EDGE_TAPS = 160
"""Taps of the outputs at both ends that are worth writing out one by one."""
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


def plan_phases(taps: Taps) -> Phases | None:
    """The periodic part of the tables, or None where there is none worth using."""
    ratio = Fraction(taps.step).limit_denominator(MOST_SLICES)
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
    used = taps.weight[: blocks * p].reshape(blocks, p, width) != 0
    # A tap of zero weight points anywhere inside the support; it does not break the pattern.
    regular = ((shifted == middle) | ~used).all(axis=(1, 2))
    before, after = np.nonzero(~regular[: blocks // 2])[0], np.nonzero(~regular[blocks // 2 :])[0]
    first = int(before[-1]) + 1 if before.size else 0
    stop = blocks // 2 + int(after[0]) if after.size else blocks
    while stop > first and middle.max() + q * (stop - 1) >= taps.extent:
        stop -= 1
    while stop > first and middle.min() + q * first < 0:
        first += 1
    rest = taps.outputs - (stop - first) * p
    if stop - first < 2 or rest * width > MOST_EDGE_TAPS:
        return None
    weight = taps.weight[first * p : stop * p].reshape(stop - first, p, width)
    is_exact = taps.in_order or np.issubdtype(taps.weight.dtype, np.integer)
    tolerance = 0 if is_exact else SAME_WEIGHT
    slices = []
    for r in range(p):
        terms = []
        for t in range(width):
            along = weight[:, r, t]
            if not along.any():
                continue
            constant = np.ptp(along) <= tolerance
            terms.append((int(middle[r, t]) + q * first, along[:1] if constant else along))
        slices.append(tuple(terms))
    return Phases(p, q, first, stop - first, tuple(slices))


def by_phase(x: jax.Array, taps: Taps, phases: Phases, axis: int) -> jax.Array:
    """Weighted sums of strided slices, one set a phase; the ends of the axis one by one."""
    p, q = phases.outputs_per_period, phases.inputs_per_period
    reach = q * (phases.periods - 1) + 1
    outs = []
    for terms in phases.slices:
        total = None
        for start, weight in terms:
            piece = jax.lax.slice_in_dim(x, start, start + reach, q, axis=axis)
            term = _product(piece, _along(weight, axis, x), taps)
            total = term if total is None else total + term
        outs.append(total)
    if p == 1:
        middle = outs[0]
    else:
        middle = jnp.stack(outs, axis=axis + 1)
        middle = middle.reshape(*x.shape[:axis], phases.periods * p, *x.shape[axis + 1 :])
    first = phases.first * p
    stop = first + phases.periods * p
    parts = [_each(x, taps, range(first), axis), [middle]]
    parts.append(_each(x, taps, range(stop, taps.outputs), axis))
    flat = [part for group in parts for part in group]
    return flat[0] if len(flat) == 1 else jax.lax.concatenate(flat, axis)


def by_gather(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """One gather a tap."""
    if taps.is_choice:
        return jnp.take(x, jnp.asarray(taps.index[:, 0]), axis=axis, mode="clip")
    total = None
    for t in range(taps.index.shape[1]):
        piece = x.at[(slice(None),) * axis + (jnp.asarray(taps.index[:, t]),)].get(
            mode="promise_in_bounds"
        )
        weight = taps.weight[:, t]
        term = _product(piece, _along(weight, axis, x), taps)
        total = term if total is None else total + term
    assert total is not None
    return total


def by_matmul(x: jax.Array, taps: Taps, axis: int, precision: jax.lax.Precision) -> jax.Array:
    """One matrix product. A NaN or an infinity reaches every output of its line."""
    rows = np.repeat(np.arange(taps.outputs), taps.index.shape[1])
    matrix = np.zeros((taps.outputs, taps.extent))
    np.add.at(matrix, (rows, taps.index.ravel()), taps.weight.ravel())
    y = jnp.tensordot(x, jnp.asarray(matrix, x.dtype), ((axis,), (1,)), precision=precision)
    return jnp.moveaxis(y, -1, axis)


def apply_taps(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """The sums of `taps` along `axis`, by the way that suits the ratio."""
    if taps.is_identity:
        return x
    phases = None if taps.is_choice else plan_phases(taps)
    if phases is not None:
        return by_phase(x, taps, phases, axis)
    return by_gather(x, taps, axis)


def _each(x: jax.Array, taps: Taps, outputs: range, axis: int) -> list[jax.Array]:
    result = []
    for o in outputs:
        total = None
        for i, w in zip(taps.index[o], taps.weight[o], strict=True):
            if w == 0 and total is not None:
                continue
            pixel = jax.lax.slice_in_dim(x, int(i), int(i) + 1, axis=axis)
            term = _product(pixel, np.asarray(w, x.dtype), taps)
            total = term if total is None else total + term
        result.append(total)
    return result


def _product(pixels: jax.Array, weight: np.ndarray, taps: Taps) -> jax.Array:
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
