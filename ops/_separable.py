"""One axis of a separable filter as a sum of shifted slices.

Shifted sums, not `lax.conv`: a TPU convolution rounds float32 operands to bfloat16 by default, and
on CPU the sums are tens of times faster (a depthwise convolution vectorises badly in XLA).

An axis may hold `step` values per pixel: with channels last, columns and channels are filtered as
one contiguous run (see `fold_channels`), because loops over three channels do not vectorise.

A long window is a matrix product: its program does not grow with the window.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._border import Border, border_index, border_period, pad_axis, strips
from jaxsr.ops._resize.kernels import by_matmul_of_any
from jaxsr.ops._resize.weights import Taps
from jaxsr.ops._typed_jax import asarray, optimization_barrier, platform_dependent, zeros_like

Weight = float | int
LONGEST_SUM = 160
"""Taps beyond which a window becomes a matrix product."""
_LONGEST_SUM_ON_TPU = 40
"""The same on TPUs, whose compiler writes partial sums of longer windows to main memory: of 64 x
224² x 3 in float32, 1 GiB with 45 taps, 21 to 42 MiB with up to 37, and 53 MiB as products."""


def fold_channels(x: jax.Array, axes: tuple[int, int]) -> tuple[jax.Array, dict[int, int]]:
    """`x` with all that lies behind the later axis folded into it, and the step of each axis."""
    last = max(axes)
    step = math.prod(x.shape[last + 1 :])
    return x.reshape(*x.shape[:last], x.shape[last] * step), {min(axes): 1, last: step}


def filter_valid(x: jax.Array, weights: Sequence[Weight], axis: int, step: int = 1) -> jax.Array:
    """Correlates one axis with `weights`, keeping only positions where every tap is inside.

    Taps with equal mirrored weights are added before they are multiplied, which saves almost half
    of the products of a symmetric window. Taps without a weight are not read: a NaN times zero is
    NaN. The sum has the dtype of `x`.
    """
    taps = len(weights)
    extent = x.shape[axis] - (taps - 1) * step

    def shifted(tap: int) -> jax.Array:
        return jax.lax.slice_in_dim(x, tap * step, tap * step + extent, axis=axis)

    def pair(tap: int) -> jax.Array:
        mirror = taps - 1 - tap
        if tap != mirror and weights[tap] == weights[mirror]:
            return (shifted(tap) + shifted(mirror)) * asarray(weights[tap], x.dtype)
        read = [t for t in dict.fromkeys((tap, mirror)) if weights[t]]
        return reduce(jnp.add, (shifted(t) * asarray(weights[t], x.dtype) for t in read))

    pairs = [tap for tap in range((taps + 1) // 2) if weights[tap] or weights[taps - 1 - tap]]
    return reduce(jnp.add, map(pair, pairs)) if pairs else zeros_like(shifted(0))


def filter_valid_apart(
    x: jax.Array, weights: Sequence[Weight], axis: int, step: int = 1
) -> jax.Array:
    """`filter_valid` as a result of its own, for a next filter to read.

    XLA's CPU fusion would compute the first filter anew for every tap of the second. It does not
    fuse a concatenation, so each half is filtered apart; a barrier alone does not stop it.
    """
    reach = (len(weights) - 1) * step
    extent = x.shape[axis] - reach
    middle = extent // step // 2 * step
    if middle == 0:
        return filter_valid(x, weights, axis, step)
    halves = ((0, middle + reach), (middle, extent + reach))
    parts = [jax.lax.slice_in_dim(x, *half, axis=axis) for half in halves]
    return jnp.concatenate([filter_valid(part, weights, axis, step) for part in parts], axis)


def filter_bordered(
    x: jax.Array,
    weights: Sequence[Weight],
    axis: int,
    border: Border,
    *,
    step: int = 1,
    finish: Callable[[jax.Array], jax.Array] = asarray,
) -> jax.Array:
    """`finish` of one axis correlated with an odd window, its extent kept by inventing a border."""
    radius = len(weights) // 2
    if len(weights) > LONGEST_SUM:
        return finish(_filter_by_products(x, weights, axis, border, step))
    if radius == 0:
        return finish(x * asarray(weights[0], x.dtype))

    def padded(x: jax.Array) -> jax.Array:
        # Without the barriers XLA evaluates the padding, and the previous axis, once per tap.
        wide = optimization_barrier(pad_axis(x, axis, radius, radius, border, step))
        return optimization_barrier(finish(filter_valid(wide, weights, axis, step)))

    def split(x: jax.Array, *, copied: bool) -> jax.Array:
        # Most of the image needs no border: only two strips are ever copied, on a GPU not even
        # those. `finish` acts on the pieces, because XLA's CPU loops over a concatenation do not
        # vectorise.
        low, high = strips(x, axis, radius, border, step)
        if copied:
            low, high = optimization_barrier((low, high))
        pieces = [finish(filter_valid(piece, weights, axis, step)) for piece in (low, x, high)]
        return optimization_barrier(jnp.concatenate(pieces, axis))

    if x.shape[axis] <= 2 * radius * step:
        return padded(x)
    forms = {
        "cpu": partial(split, copied=True),
        "cuda": partial(split, copied=False),
        "default": padded,
    }
    if len(weights) > _LONGEST_SUM_ON_TPU and jnp.issubdtype(x.dtype, jnp.floating):
        forms["tpu"] = lambda x: finish(_filter_by_products(x, weights, axis, border, step))
    return platform_dependent(x, **forms)


def _filter_by_products(
    x: jax.Array, weights: Sequence[Weight], axis: int, border: Border, step: int
) -> jax.Array:
    pixels = x.reshape(*x.shape[:axis], -1, step, *x.shape[axis + 1 :])
    taps = _window_taps(np.asarray(weights, np.float64), pixels.shape[axis], border)
    return by_matmul_of_any(pixels, taps, axis).reshape(x.shape)


def _window_taps(weights: np.ndarray, extent: int, border: Border) -> Taps:
    """Pixels and weights of every output; offsets that reach the same pixel are one tap."""
    radius = len(weights) // 2
    offset = np.arange(-radius, radius + 1)
    if border in ("edge", "constant"):
        offset = np.clip(offset, -extent, extent)
    else:
        offset = offset % border_period(extent, border)
    offset, place = np.unique(offset, return_inverse=True)
    weight = np.bincount(place, weights)
    index, counts = border_index(np.arange(extent)[:, None] + offset, extent, border)
    weight = np.where(np.broadcast_to(counts, index.shape), weight, 0.0)
    return Taps(extent, index.astype(np.int32), weight, step=1.0)
