"""Pooling as torch computes it: any window, dilation, ceil mode, indices, ties and gradients."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.lowerings.convolution import per_axis
from jaxsr.interop.lowerings.extremes import lowest
from jaxsr.interop.lowerings.resample import resize_images


def _max_pool(
    x: jax.Array,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    ndim: int,
) -> tuple[jax.Array, jax.Array]:
    """The first largest element of each window, and its flat position in the image.

    Built from shifted strided slices of the window: dilation has a gradient then, and ties go to
    the first element, as in torch. A large window is reduced one axis after the other, in slices
    whose number grows with the logarithm of its length.
    """
    kernel = per_axis(kernel, ndim)
    stride = per_axis(stride, ndim) if stride not in ((), [], None) else kernel
    padding, dilation = per_axis(padding, ndim), per_axis(dilation, ndim)
    spatial = x.shape[-ndim:]
    counts = [
        _windows(*each, ceil_mode)
        for each in zip(spatial, kernel, stride, padding, dilation, strict=True)
    ]
    right = [
        max(0, (n - 1) * s + (k - 1) * d + 1 - size - p)
        for n, s, k, d, size, p in zip(
            counts, stride, kernel, dilation, spatial, padding, strict=True
        )
    ]
    sides = tuple(zip(padding, right, strict=True))
    low = jnp.asarray(lowest(x.dtype), x.dtype)
    padded = jnp.pad(x, (*((0, 0),) * (x.ndim - ndim), *sides), constant_values=low)
    positions = np.arange(math.prod(spatial), dtype=np.int32).reshape(spatial)
    positions = np.pad(positions, sides, constant_values=-1)
    best: _Placed = padded, positions
    axes = range(x.ndim - ndim, x.ndim)
    if math.prod(kernel) <= _FEW_TAPS:
        taps = itertools.product(*(range(k) for k in kernel))
        parts = (_part(best, axes, tap, counts, stride, dilation) for tap in taps)
        value, index = functools.reduce(_first_largest, parts)
        return value, jnp.broadcast_to(jnp.asarray(index), value.shape)
    for axis, k, n, s, d in reversed([*zip(axes, kernel, counts, stride, dilation, strict=True)]):
        reach = 1  # elements of the window that `best` is of, at every place
        while reach < k:
            step = min(reach, k - reach)
            count = best[0].shape[axis] - step * d
            parts = (_part(best, [axis], [tap], [count], [1], [d]) for tap in (0, step))
            reach, best = reach + step, functools.reduce(_first_largest, parts)
        best = _part(best, [axis], [0], [n], [s], [d])
    return best


_FEW_TAPS = 32
_Placed = tuple[jax.Array, Any]
"""Elements, and their flat positions in the image; -1 in the padding. Positions may lack axes."""


def _part(
    placed: _Placed,
    axes: Sequence[int],
    offsets: Sequence[int],
    counts: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> _Placed:
    """One tap of each window."""
    window = [slice(None)] * placed[0].ndim
    for axis, o, n, s, d in zip(axes, offsets, counts, stride, dilation, strict=True):
        window[axis] = slice(o * d, o * d + (n - 1) * s + 1, s)
    value, place = placed
    return value[(*window,)], place[(*window[value.ndim - place.ndim :],)]


def _first_largest(first: _Placed, second: _Placed) -> _Placed:
    (best, index), (value, place) = first, second
    # NaN wins, as in torch; padding never does, even against a window of -inf.
    wins = (value > best) | jnp.isnan(value) & ~jnp.isnan(best) | (index < 0)
    return jnp.where(wins, value, best), jnp.where(wins, place, index)


def _windows(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    # A window that starts in the right padding is dropped (torch's pooling_output_shape).
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def _avg_pool(
    x: jax.Array,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
    *,
    ndim: int,
) -> jax.Array:
    """Sums of windows over their sizes, which are known while this is traced."""
    kernel, padding = per_axis(kernel, ndim), per_axis(padding, ndim)
    stride = per_axis(stride, ndim) if stride not in ((), [], None) else kernel
    sizes, sides = np.ones(()), []
    for size, k, s, p in zip(x.shape[-ndim:], kernel, stride, padding, strict=True):
        starts = np.arange(_windows(size, k, s, p, 1, ceil_mode)) * s - p
        sides.append((p, max(0, int(starts[-1]) + k - size)))
        # In ceil mode a window may extend beyond the padding; those positions do not count.
        first, last = (starts, size + p) if count_include_pad else (np.maximum(starts, 0), size)
        sizes = sizes[..., None] * (np.minimum(starts + k, last) - first)
    lead = (1,) * (x.ndim - ndim)
    zero = np.zeros((), x.dtype)
    total = lax.reduce_window(
        x, zero, lax.add, (*lead, *kernel), (*lead, *stride), [(0, 0)] * len(lead) + sides
    )
    sizes = np.asarray(divisor) if divisor is not None else sizes
    sizes = sizes.flat[0] if (sizes == sizes.flat[0]).all() else sizes
    return lax.div(total, jnp.broadcast_to(jnp.asarray(sizes, x.dtype), total.shape))


def _adaptive_bounds(size: int, out: int) -> list[tuple[int, int]]:
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_windows(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of each output's window, padded to one length, and which of them count."""
    bounds = _adaptive_bounds(size, out)
    longest = max((b - a for a, b in bounds), default=1)
    index = np.zeros((out, longest), np.int32)
    valid = np.zeros((out, longest), bool)
    for i, (a, b) in enumerate(bounds):
        index[i, : b - a], valid[i, : b - a] = np.arange(a, b), True
    return index, valid


def _adaptive_max(
    x: jax.Array, size: int | Sequence[int], *, ndim: int
) -> tuple[jax.Array, jax.Array]:
    spatial, out = x.shape[-ndim:], per_axis(size, ndim)
    windows = [_adaptive_windows(n, o) for n, o in zip(spatial, out, strict=True)]
    flat = np.zeros((1,), np.int64)
    valid = np.ones((1,), bool)
    shape: tuple[int, ...] = ()
    # Flat positions of every window: (out..., window...) built axis by axis.
    for (index, ok), n in zip(windows, spatial, strict=True):
        flat = flat.reshape(*shape, 1, -1, 1) * n + index[:, None, :]
        valid = valid.reshape(*shape, 1, -1, 1) & ok[:, None, :]
        shape = (*shape, index.shape[0])
        flat, valid = flat.reshape(*shape, -1), valid.reshape(*shape, -1)
    lead = x.shape[: x.ndim - ndim]
    values = x.reshape(*lead, -1)[..., flat.astype(np.int32)]
    values = jnp.where(valid, values, lowest(x.dtype))
    # argmax takes the first of equal values and the first NaN, as torch does.
    best = jnp.argmax(values, -1)
    picked = jnp.take_along_axis(values, best[..., None], -1)[..., 0]
    positions = jnp.broadcast_to(jnp.asarray(flat, jnp.int32), values.shape)
    return picked, jnp.take_along_axis(positions, best[..., None], -1)[..., 0]


def _adaptive_mean(x: jax.Array, size: int | Sequence[int], *, ndim: int) -> jax.Array:
    """Means over torch's windows, which overlap where the sizes do not divide."""
    sizes = per_axis(size, ndim)
    if not all(sizes):
        return jnp.zeros((*x.shape[:-ndim], *sizes), x.dtype)
    wide = widened(x)
    overlapping: dict[int, int] = {}
    for axis, out in zip(range(x.ndim - ndim, x.ndim), sizes, strict=True):
        n = x.shape[axis]
        if n % out:
            overlapping[axis] = out
        elif n != out:
            split = (*wide.shape[:axis], out, n // out, *wide.shape[axis + 1 :])
            wide = wide.reshape(split).mean(axis + 1)
    if overlapping:
        scales = [None] * len(overlapping)
        axes = tuple(overlapping)
        wide = resize_images(wide, tuple(overlapping.values()), scales, "area", axes=axes)
    return wide.astype(x.dtype)


def _unpool(x: jax.Array, indices: jax.Array, size: Sequence[int], *_: Any, ndim: int) -> jax.Array:
    """The options that follow `size` only say how the indices came about."""
    lead = x.shape[: x.ndim - ndim]
    rows = math.prod(lead)
    flat = jnp.zeros((rows, math.prod(size)), x.dtype)
    row = jnp.arange(rows)[:, None]
    place, values = flat.at[row, indices.reshape(rows, -1)], x.reshape(rows, -1)
    # Where windows overlap one value overwrites another; torch's gradient reaches both.
    written = straight_through(place.add(values), place.set(values))
    return written.reshape(*lead, *size)


for _ndim in (2, 3):
    for _name, _pool in (
        (f"max_pool{_ndim}d_with_indices", _max_pool),
        (f"avg_pool{_ndim}d", _avg_pool),
        (f"adaptive_max_pool{_ndim}d", _adaptive_max),
        (f"_adaptive_avg_pool{_ndim}d", _adaptive_mean),
        (f"max_unpool{_ndim}d", _unpool),
    ):
        lowers(getattr(aten, _name).default)(functools.partial(_pool, ndim=_ndim))


@lowers(aten.max_pool2d_with_indices_backward.default)
def _max_pool2d_backward(
    grad: jax.Array,
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: jax.Array,
) -> jax.Array:
    rows = x.reshape(math.prod(x.shape[:-2]), -1)
    places = indices.reshape(rows.shape[0], -1)
    out = jnp.zeros(rows.shape, grad.dtype)
    out = out.at[jnp.arange(rows.shape[0])[:, None], places].add(grad.reshape(places.shape))
    return out.reshape(x.shape)


def _fractional_max_pool(
    x: jax.Array,
    kernel: int | Sequence[int],
    size: int | Sequence[int],
    samples: jax.Array,
    *,
    ndim: int,
) -> tuple[jax.Array, jax.Array]:
    """Windows whose distances follow from one random number for each axis of a plane.

    Args:
      x: images, with or without a batch.
      kernel: size of a window.
      size: of the result.
      samples: (N, C, ndim), in [0, 1); in two dimensions the columns' number is the first.
      ndim: axes of an image.
    """
    kernel, size = per_axis(kernel, ndim), per_axis(size, ndim)
    spatial = x.shape[-ndim:]
    planes = x.reshape(math.prod(x.shape[:-ndim]), *spatial)
    draws = samples.reshape(math.prod(samples.shape[:-1]), ndim)[: planes.shape[0]]
    draws = draws[:, ::-1] if ndim == 2 else draws
    flat = jnp.zeros((planes.shape[0], *(1,) * (2 * ndim)), jnp.int32)
    for axis, (pixels, taps, count) in enumerate(zip(spatial, kernel, size, strict=True)):
        begin = jnp.full((planes.shape[0], count), pixels - taps)
        if count > 1:
            step = jnp.asarray((pixels - taps) / (count - 1), draws.dtype)
            draw = draws[:, axis, None]
            place = (jnp.arange(count - 1, dtype=draws.dtype) + draw) * step
            place = jnp.trunc(place) - jnp.trunc(draw * step)
            begin = begin.at[:, :-1].set(place.astype(begin.dtype))
        pixel = begin[:, :, None] + jnp.arange(taps)
        shape = [1] * (2 * ndim)
        shape[axis], shape[ndim + axis] = count, taps
        flat = flat * pixels + pixel.reshape(-1, *shape)
    windows = flat.reshape(planes.shape[0], math.prod(size), math.prod(kernel))
    rows = planes.reshape(planes.shape[0], math.prod(spatial))
    if not rows.size:
        shape = (*x.shape[:-ndim], *size)
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int32)
    values = jnp.take_along_axis(rows[:, None], windows, -1)
    best = jnp.argmax(lax.stop_gradient(values), -1)[..., None]
    value = jnp.take_along_axis(values, best, -1)[..., 0]
    index = jnp.take_along_axis(windows, best, -1)[..., 0]
    shape = (*x.shape[:-ndim], *size)
    return value.reshape(shape), index.reshape(shape)


lowers(aten.fractional_max_pool2d.default)(functools.partial(_fractional_max_pool, ndim=2))
lowers(aten.fractional_max_pool3d.default)(functools.partial(_fractional_max_pool, ndim=3))
