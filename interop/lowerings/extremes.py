"""Largest and smallest elements: of two, along axes, running, sorted, and medians.

torch shares the gradient of `amax` among elements equal to it, and gives that of `max(dim)` to the
element whose index it returns.
"""

import functools
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.typing import DTypeLike

from jaxsr.interop._core.dtypes import is_nan, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.lowerings.elementwise import common_dtype, with_partials
from jaxsr.xla_calls.stored import stored

Comparison = Callable[[jax.Array, jax.Array], jax.Array]


# ---- a gradient shared among equal elements


def equal(x: jax.Array, y: jax.Array) -> jax.Array:
    """x == y, for both in their own dtype.

    XLA computes bfloat16 in float32, and rounds only results that it writes to memory. A maximum
    that was written is equal to none of the products that it was found among, where these are made
    again: its gradient would be divided by a count of zero.
    """
    return rounded(x) == rounded(y)


def rounded(x: jax.Array) -> jax.Array:
    """`x` rounded to its own dtype, for comparisons: narrow dtypes are computed in float32."""
    if not _is_narrow(x):
        return x
    kind = jnp.finfo(x.dtype)
    return lax.reduce_precision(x.astype(jnp.float32), kind.nexp, kind.nmant)


def lowest(dtype: DTypeLike) -> float:
    """The smallest value of a dtype."""
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype: DTypeLike) -> float:
    """The greatest value of a dtype."""
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def _is_narrow(x: jax.Array) -> bool:
    """Whether XLA may compute with more digits than `x` has."""
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4


def sharing(
    array: jax.Array,
    largest: Callable[[jax.Array], jax.Array],
    *,
    spread: Callable[[jax.Array], jax.Array],
    total: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """`largest(array)`, with its gradient shared among equal elements.

    Args:
      array: the elements.
      largest: finds the largest, or the smallest.
      spread: makes an array like the result broadcast against the elements.
      total: sums over the elements for each of the results, in float32 at least.
    """

    @jax.custom_jvp
    def run(array: jax.Array) -> jax.Array:
        return largest(array)

    @run.defjvp
    def _(
        primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        (x,), (dx,) = primals, tangents
        x = stored(x)
        extremes = run(x)
        ties = equal(x, spread(extremes)).astype(x.dtype)
        return extremes, (total(ties * dx) / total(ties)).astype(x.dtype)

    return run(array)


def extreme(
    array: jax.Array, reduction: Callable[..., jax.Array], axes: tuple[int, ...], keepdims: bool
) -> jax.Array:
    """`reduction(array, axes)`, a maximum or minimum with its gradient shared in any dtype."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return reduction(array, axes, keepdims=keepdims)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(widened(values), axes, keepdims=True)

    def reduced(array: jax.Array) -> jax.Array:
        return reduction(array, axes, keepdims=True)

    out = sharing(array, reduced, spread=lambda extremes: extremes, total=total)
    return out if keepdims else out.squeeze(axes)


# ---- of two


def _number(x: jax.Array, y: jax.Array, *, better: Comparison) -> jax.Array:
    """The better of two, or the one that is a number where the other is NaN."""
    x, y = common_dtype(x, y)
    return jnp.where(better(x, y) | is_nan(y), x, y)


lowers(aten.fmax.default)(functools.partial(_number, better=operator.ge))
lowers(aten.fmin.default)(functools.partial(_number, better=operator.le))


def _lowers_pairwise(
    func: torch._ops.OpOverload, value: Callable[..., jax.Array], less: Comparison
) -> None:
    """`func`, the larger of two or the smaller, with its gradient halved between equals.

    JAX asks which of the two equals the result. Neither does where the result was rounded and they
    are computed again, and both get zero.
    """

    def partial(first: jax.Array, second: jax.Array) -> jax.Array:
        first, second = rounded(first), rounded(second)
        return jnp.where(first == second, 0.5, jnp.where(less(first, second), 0.0, 1.0))

    chosen = with_partials(value, lambda x, y, _: partial(x, y), lambda x, y, _: partial(y, x))

    @lowers(func)
    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = common_dtype(x, y)
        return chosen(x, y) if jnp.issubdtype(x.dtype, jnp.floating) else value(x, y)


_lowers_pairwise(aten.maximum.default, jnp.maximum, operator.lt)
_lowers_pairwise(aten.minimum.default, jnp.minimum, operator.gt)


# ---- along axes


def _lowers_over_axes(func: torch._ops.OpOverload, reduction: Callable[..., jax.Array]) -> None:
    @lowers(func)
    def run(x: jax.Array, dim: Sequence[int] = (), keepdim: bool = False) -> jax.Array:
        axes = tuple(d % max(x.ndim, 1) for d in dim)[: x.ndim] or tuple(range(x.ndim))
        return extreme(x, reduction, axes, keepdim)


_lowers_over_axes(aten.amax.default, jnp.max)
_lowers_over_axes(aten.amin.default, jnp.min)
_lowers_over_axes(aten.max.default, jnp.max)
_lowers_over_axes(aten.min.default, jnp.min)


def _with_index(
    x: jax.Array, dim: int, keepdim: bool = False, *, position: Callable[..., jax.Array]
) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    index = position(x, dim, keepdims=True)
    values = jnp.take_along_axis(x, index, dim)
    if keepdim:
        return values, index
    return values.squeeze(dim), index.squeeze(dim)


lowers(aten.max.dim)(functools.partial(_with_index, position=jnp.argmax))
lowers(aten.min.dim)(functools.partial(_with_index, position=jnp.argmin))


def _place(position: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The index of the first extreme; NaN is one."""

    def lowering(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        return position(x, dim, keepdims=keepdim) if x.ndim else jnp.zeros((), jnp.int32)

    return lowering


lowers(aten.argmax.default)(_place(jnp.argmax))
lowers(aten.argmin.default)(_place(jnp.argmin))


# ---- running, sorted, in the middle


def _running(x: jax.Array, dim: int, *, better: Comparison) -> tuple[jax.Array, jax.Array]:
    """Running extreme and its index; among equals the latest, as in torch."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    positions = lax.broadcasted_iota(jnp.int32, x.shape, dim % x.ndim)

    def later(a: tuple, b: tuple) -> tuple:
        keep = better(b[0], a[0]) | (b[0] != b[0])
        return jnp.where(keep, b[0], a[0]), jnp.where(keep, b[1], a[1])

    _, index = lax.associative_scan(later, (lax.stop_gradient(x), positions), axis=dim % x.ndim)
    return jnp.take_along_axis(x, index, dim), index


lowers(aten.cummax.default)(functools.partial(_running, better=operator.ge))
lowers(aten.cummin.default)(functools.partial(_running, better=operator.le))


@lowers(aten.sort.default, aten.sort.stable)
def sort(
    x: jax.Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[jax.Array, jax.Array]:
    del stable  # it always is
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.int8)  # jnp.argsort(descending=True) does not invert them
    index = jnp.argsort(lax.stop_gradient(x), axis=dim, descending=descending, stable=True)
    return jnp.take_along_axis(x, index, dim), index


def _picked(
    x: jax.Array, dim: int, keepdim: bool, place: Callable[[jax.Array], jax.Array | int]
) -> tuple[jax.Array, jax.Array]:
    """The element at a place of the sorted ones along an axis, and its index in `x`."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    values, indices = sort(x, dim)
    shape = [1 if axis == dim % x.ndim else size for axis, size in enumerate(x.shape)]
    places = jnp.broadcast_to(place(values), shape)
    picked = [jnp.take_along_axis(each, places, dim) for each in (values, indices)]
    value, index = picked if keepdim else [each.squeeze(dim) for each in picked]
    return value, index


@lowers(aten.kthvalue.default)
def kthvalue(
    x: jax.Array, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _picked(x, dim, keepdim, lambda values: k - 1)


@lowers(aten.mode.default)
def mode(x: jax.Array, dim: int = -1, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    """The smallest of the most frequent, and the place of the last of them."""

    def place(values: jax.Array) -> jax.Array:
        axis = dim % x.ndim
        position = lax.broadcasted_iota(jnp.int32, values.shape, axis)
        before = jnp.roll(values, 1, axis)
        starts = lax.cummax(jnp.where((values != before) | (position == 0), position, 0), axis=axis)
        run = position - starts
        first_end = jnp.argmax(run, axis, keepdims=True)
        return first_end

    return _picked(x, dim, keepdim, place)


@lowers(aten.median.dim)
def median_along(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    def place(values: jax.Array) -> jax.Array:
        last = values.shape[dim] - 1  # where NaN comes, as in torch
        return jnp.where(is_nan(lax.slice_in_dim(values, last, None, axis=dim)), last, last // 2)

    return _picked(x, dim, keepdim, place)


@lowers(aten.nanmedian.dim)
def nanmedian_along(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    def place(values: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.sum(~is_nan(values), dim, keepdims=True) - 1, 0) // 2

    return _picked(x, dim, keepdim, place)


@lowers(aten.topk.default)
def topk(
    x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[jax.Array, jax.Array]:
    del sorted  # they always are
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    rows = jnp.moveaxis(x, dim, -1)
    if largest:
        values, indices = lax.top_k(rows, k)
    elif jnp.issubdtype(x.dtype, jnp.floating):
        # NaN is the greatest of all to torch, and to `lax.top_k` in either sign.
        order = lax.stop_gradient(jnp.where(is_nan(rows), -jnp.inf, -rows))
        indices = lax.top_k(order, k)[1]
        values = jnp.take_along_axis(rows, indices, -1)
    else:  # the negative of the least integer overflows
        values, indices = lax.top_k(~rows, k)
        values = ~values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim)


def _even_median(x: jax.Array, value: jax.Array) -> jax.Array:
    """The median with its gradient shared among the elements equal to it."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return value
    value = lax.stop_gradient(value)
    ties = jnp.where(is_nan(value), is_nan(x), equal(x, value))
    share = jnp.sum(jnp.where(ties, x, 0)) / jnp.maximum(ties.sum(), 1).astype(x.dtype)
    return straight_through(share, value)


@lowers(aten.median.default)
def median(x: jax.Array) -> jax.Array:
    if not x.size and jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.full((), jnp.nan, x.dtype)
    flat = jnp.sort(x.reshape(-1))
    value = flat[(flat.size - 1) // 2]
    if jnp.issubdtype(x.dtype, jnp.floating):
        value = jnp.where(jnp.isnan(flat[-1]), jnp.nan, value)
    return _even_median(x, value)


@lowers(aten.nanmedian.default)
def nanmedian(x: jax.Array) -> jax.Array:
    flat = jnp.sort(x.reshape(-1))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return flat[(flat.size - 1) // 2]
    count = jnp.sum(~jnp.isnan(flat))
    return _even_median(x, flat[jnp.maximum(count - 1, 0) // 2])
