"""Norms, softmax and cumulative sums, with torch's gradient at zero and in masked rows."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax

from jaxsr.interop._core.accumulation import mean, terms, total
from jaxsr.interop._core.dtypes import nan_where, to_jax_dtype, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.lowerings.elementwise import absolute, common_dtype, with_partials
from jaxsr.interop.lowerings.extremes import extreme
from jaxsr.interop.lowerings.linalg import lowers_function


def _reduced(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lowering(
        x: jax.Array,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> jax.Array:
        if dtype is not None:
            x = x.astype(to_jax_dtype(dtype))
        axes = dim if dim is None or isinstance(dim, int) else tuple(dim) or None
        return reduce(x, axes if x.ndim else None, keepdims=keepdim and x.ndim > 0)

    return lowering


lowers(aten.sum.default, aten.sum.dim_IntList)(_reduced(total))
lowers(aten.mean.default, aten.mean.dim)(_reduced(mean))
lowers(aten.prod.default, aten.prod.dim_int)(_reduced(jnp.prod))
lowers(aten.any.default, aten.any.dim, aten.any.dims)(_reduced(jnp.any))


@lowers(aten.dist.default)
def dist(x: jax.Array, y: jax.Array, p: float = 2) -> jax.Array:
    return vector_norm(widened(x) - widened(y), p)


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    x: jax.Array,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """A p-norm with torch's subgradients: zero at zero, shared among equal maxima."""
    if dtype is not None:
        x = x.astype(to_jax_dtype(dtype))
    axes = tuple(range(x.ndim)) if not x.ndim or dim is None or dim == [] else tuple(dim)
    size = absolute(x)
    wide = widened(size)
    order = float(order)
    if order == float("inf"):
        out = extreme(size, jnp.max, axes, keepdim)
    elif order == float("-inf"):
        out = extreme(size, jnp.min, axes, keepdim)
    elif order == 0:
        out = jnp.sum((wide != 0).astype(wide.dtype), axes, keepdims=keepdim)
    elif order == 1:
        out = total(wide, axes, keepdims=keepdim)
    elif order == 2 and not jnp.iscomplexobj(x):
        squares = total(jnp.square(x.astype(wide.dtype)), axes, keepdims=keepdim)
        zero = squares == 0
        out = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))
    else:
        empty = wide == 0
        powers = jnp.where(
            empty, 0.0**order if order > 0 else jnp.inf, jnp.where(empty, 1, wide) ** order
        )
        added = total(powers, axes, keepdims=keepdim)
        bad = (added == 0) | jnp.isinf(added)
        out = jnp.where(bad, added ** (1 / order), jnp.where(bad, 1, added) ** (1 / order))
        out = jnp.where(added == 0, lax.stop_gradient(out), out)
    return out.astype(size.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _direction(x: jax.Array, axis: int, eps: float) -> jax.Array:
    return x / _size(x, axis, eps)


def _size(x: jax.Array, axis: int, eps: float) -> jax.Array:
    size = vector_norm(x, 2, (axis,), True)
    return jnp.where(size > eps, size, eps).astype(x.dtype)


@_direction.defjvp
def _(axis: int, eps: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple:
    """Across the direction, so that nothing cancels."""
    (x,), (tangent,) = primals, tangents
    unit, size = _direction(x, axis, eps), _size(x, axis, eps)
    along = unit * (unit * tangent).sum(axis, keepdims=True)
    return unit, (tangent - jnp.where(size > eps, along, 0)) / size


def cosine_similarity(x1: jax.Array, x2: jax.Array, dim: int = 1, eps: float = 1e-8) -> jax.Array:
    x1, x2 = common_dtype(x1, x2)
    if not x1.ndim:
        return cosine_similarity(x1[None], x2[None], 0, eps)
    return (_direction(x1, dim, eps) * _direction(x2, dim, eps)).sum(dim)


lowers_function(F.cosine_similarity, cosine_similarity)


@lowers(aten.renorm.default)
def renorm(x: jax.Array, p: float, dim: int, largest: float) -> jax.Array:
    wide = widened(x)
    axes = tuple(axis for axis in range(x.ndim) if axis != dim % x.ndim)
    norm = vector_norm(wide, p, axes, True)
    return wide * jnp.where(norm > largest, largest / (norm + 1e-7), 1)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(x: jax.Array, axis: int) -> jax.Array:
    """The softmax of float numbers, also of rows filled with a mask's largest negative number.

    Compilers for CPUs round `a * b - peak` once. Where `a * b` is -1e38 that leaves not 0 but
    1e31, and the row is NaN: at the peak the difference is therefore written down as 0.
    """
    peak = x.max(axis, keepdims=True)
    # `x * 0` is NaN for a peak that is not finite. A test of the peak itself would be a reduction
    # of its own on GPUs, before the kernel that computes the rest.
    weights = jnp.exp(jnp.where(x == peak, x * 0, x - peak))
    return weights / weights.sum(axis, keepdims=True)


@softmax.defjvp
def _softmax_jvp(
    axis: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y = softmax(primals[0], axis)
    (tangent,) = tangents
    return y, y * (tangent - (y * tangent).sum(axis, keepdims=True))


@lowers(aten._softmax.default)
def softmax_of_dtype(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    if not x.size or not x.ndim:
        return x if x.ndim else jnp.where(jnp.isfinite(x), x * 0 + 1, jnp.nan).astype(x.dtype)
    wide = softmax(widened(x), dim % x.ndim)
    return wide if half_to_float else wide.astype(x.dtype)


@lowers(aten._log_softmax.default)
def log_softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    if not x.size:
        return x
    wide = (
        jax.nn.log_softmax(widened(x), dim)
        if x.ndim
        else jnp.where(jnp.isfinite(x), x * 0, jnp.nan)
    )
    return wide if half_to_float else wide.astype(x.dtype)


@lowers(aten._safe_softmax.default)
def safe_softmax(x: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    if dtype is not None:
        x = x.astype(to_jax_dtype(dtype))
    wide = widened(x)
    hidden = jnp.all(wide == -jnp.inf, dim, keepdims=True)
    out = softmax(jnp.where(hidden, 0, wide), dim % x.ndim)
    return jnp.where(hidden, 0, out).astype(x.dtype)


def _running(scan: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lowering(x: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
        if dtype is not None:
            x = x.astype(to_jax_dtype(dtype))
        elif not jnp.issubdtype(x.dtype, jnp.inexact):
            # torch's result is int64; lax counts in the operand's own bits.
            x = x.astype(jnp.promote_types(x.dtype, to_jax_dtype(torch.int64)))
        return scan(x, axis=dim % x.ndim) if x.ndim else x

    return lowering


lowers(aten.cumsum.default)(_running(lax.cumsum))
lowers(aten.cumprod.default)(_running(lax.cumprod))


@lowers(aten.logcumsumexp.default)
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    if x.ndim == 0:
        return x
    if jnp.iscomplexobj(x):
        raise NotImplementedError("logcumsumexp of complex numbers")
    wide = widened(x)
    return lax.cumlogsumexp(wide, axis=dim % x.ndim).astype(x.dtype)


_root_of_variance = with_partials(
    jnp.sqrt, lambda _, out: jnp.where(out == 0, 0, 0.5 / jnp.where(out == 0, 1, out))
)
"""torch's gradient of equal elements is zero."""


@lowers(aten.var.correction)
def var(
    x: jax.Array,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> jax.Array:
    ddof: Any = 1 if correction is None else correction
    if jnp.iscomplexobj(x):
        real, imaginary = (var(p, dim, correction=ddof, keepdim=keepdim) for p in (x.real, x.imag))
        return real + imaginary
    axes = tuple(dim) if dim and x.ndim else None
    left = terms(x, axes) - ddof
    wide = widened(x)
    squares = jnp.square(wide - mean(wide, axes, keepdims=True))
    sums = total(squares, axes, keepdims=keepdim)
    # torch divides by zero where no degree of freedom is left, but its gradient has their number.
    return sums / left + (lax.stop_gradient(sums / 0.0) if left < 0 else 0)


@lowers(aten.std.correction)
def std(x: jax.Array, dim: Sequence[int] | None = None, **options: Any) -> jax.Array:
    return _root_of_variance(var(x, dim, **options))


def _with_mean(moment: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def lowering(
        x: jax.Array, dim: Sequence[int] | None = None, *, keepdim: bool = False, **options: Any
    ) -> tuple[jax.Array, jax.Array]:
        axes = tuple(dim) if dim and x.ndim else None
        return moment(x, dim, keepdim=keepdim, **options), mean(widened(x), axes, keepdims=keepdim)

    return lowering


lowers(aten.var_mean.correction)(_with_mean(var))
lowers(aten.std_mean.correction)(_with_mean(std))


@lowers(aten.histc.default)
def histc(x: jax.Array, bins: int = 100, min: float = 0, max: float = 0) -> jax.Array:
    """Counts by torch's rule for places: one division also places an edge."""
    x = x.reshape(-1)
    low, high, refused = jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype), False
    if min == max and x.size:
        low, high = x.min(), x.max()
        refused = ~(jnp.isfinite(low) & jnp.isfinite(high))
        low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    # The barrier keeps XLA from multiplying by an inverse of the width, which moves edges.
    width = jnp.broadcast_to(high - low, x.shape)
    scaled, width = lax.optimization_barrier(((x - low) * bins, width))
    place = (scaled / width).astype(jnp.int32)
    inside = (x >= low) & (x <= high)
    counts = jnp.zeros(bins, jnp.int32)
    counts = counts.at[jnp.minimum(place, bins - 1)].add(inside.astype(jnp.int32))
    return nan_where(refused, counts.astype(x.dtype))


@lowers(aten._is_all_true.default)
def is_all_true(x: jax.Array) -> jax.Array:
    return x.all()


@lowers(aten._is_any_true.default)
def is_any_true(x: jax.Array) -> jax.Array:
    return x.any()


def _distances(difference: jax.Array, p: float) -> jax.Array:
    if p != math.inf:
        return vector_norm(difference, p, (-1,))
    # torch gives each of several largest coordinates the whole gradient.
    sizes = absolute(difference)
    largest = lax.stop_gradient(sizes.max(-1, keepdims=True, initial=0))
    return straight_through(jnp.where(sizes == largest, sizes, 0).sum(-1), largest[..., 0])


@lowers(aten._pdist_forward.default)
def pdist(x: jax.Array, p: float = 2.0) -> jax.Array:
    first, second = jnp.triu_indices(x.shape[0], 1)
    return _distances(x[first] - x[second], p)


@lowers(aten._cdist_forward.default)
def cdist(x: jax.Array, y: jax.Array, p: float, compute_mode: int | None = None) -> jax.Array:
    return _distances(x[..., :, None, :] - y[..., None, :, :], p)


@lowers(aten._euclidean_dist.default)
def euclidean_dist(x: jax.Array, y: jax.Array) -> jax.Array:
    """By a product, as torch computes many; without a gradient where points coincide."""
    x_size, y_size = (jnp.square(a).sum(-1, keepdims=True) for a in (x, y))
    left = jnp.concatenate([-2 * x, x_size, jnp.ones_like(x_size)], -1)
    right = jnp.concatenate([y, jnp.ones_like(y_size), y_size], -1)
    squared = jnp.matmul(left, right.mT)
    apart = squared > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1)), 0)
