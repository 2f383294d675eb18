"""Functions whose derivative torch defines where calculus does not: ties, poles, zero arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dispatch import REFUSED, lowers
from jaxsr.interop._core.dtypes import is_nan
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.lowerings.extremes import equal, extreme, rounded

aten = torch.ops.aten


def _with_partials(
    value: Callable[..., jax.Array], *partials: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """`value` with the partial derivatives given, each a function of (arguments..., result)."""
    fn = jax.custom_jvp(value)

    def jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
        out = value(*primals)
        total = jnp.zeros_like(out)
        for partial, tangent in zip(partials, tangents, strict=True):
            slope = partial(*primals, out)
            # A zero slope stops even an infinite tangent's NaN; torch masks in the same way.
            total = total + jnp.where(slope == 0, 0, slope * tangent)
        return out, total.astype(out.dtype)

    fn.defjvp(jvp)
    return fn


def _common(*values: Any) -> list[jax.Array]:
    dtype = jnp.result_type(*values)
    return [jnp.asarray(v, dtype) for v in jnp.broadcast_arrays(*values)]


_atan2 = _with_partials(
    jnp.arctan2,
    lambda y, x, _: jnp.where((x == 0) & (y == 0), 0, x / _nonzero(x * x + y * y)),
    lambda y, x, _: jnp.where((x == 0) & (y == 0), 0, -y / _nonzero(x * x + y * y)),
)


def _nonzero(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 1, x)


@lowers(aten.atan2.default)
def atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    y, x = (v.astype(jnp.promote_types(v.dtype, jnp.float32)) for v in _common(y, x))
    return _atan2(y, x)


@lowers(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(x: jax.Array, sign: Any) -> jax.Array:
    out = jnp.copysign(x, sign)
    ratio = jnp.where(x == 0, 0, out / jnp.where(x == 0, 1, x))
    return straight_through(x * lax.stop_gradient(ratio) + 0 * sign, out)


def _pick(x: jax.Array, y: jax.Array, first: jax.Array) -> jax.Array:
    return jnp.where(first, x, y)


@lowers(aten.fmax.default)
def fmax(x: jax.Array, y: jax.Array) -> jax.Array:
    x, y = _common(x, y)
    return _pick(x, y, (x >= y) | is_nan(y))


@lowers(aten.fmin.default)
def fmin(x: jax.Array, y: jax.Array) -> jax.Array:
    x, y = _common(x, y)
    return _pick(x, y, (x <= y) | is_nan(y))


def _larger(func: Any, value: Callable[..., jax.Array], less: Callable) -> None:
    """`func`, the larger of two or the smaller, with its gradient halved between equals.

    JAX asks which of the two equals the result. Neither does where the result was rounded and they
    are computed again, and both get zero.
    """

    def partial(own: jax.Array, other: jax.Array) -> jax.Array:
        own, other = rounded(own), rounded(other)
        return jnp.where(own == other, 0.5, jnp.where(less(own, other), 0.0, 1.0))

    chosen = _with_partials(value, lambda x, y, _: partial(x, y), lambda x, y, _: partial(y, x))

    @lowers(func)
    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = _common(x, y)
        return chosen(x, y) if jnp.issubdtype(x.dtype, jnp.floating) else value(x, y)


_larger(aten.maximum.default, jnp.maximum, lambda own, other: own < other)
_larger(aten.minimum.default, jnp.minimum, lambda own, other: own > other)


def _running(x: jax.Array, dim: int, better: Callable) -> tuple[jax.Array, jax.Array]:
    """Running extreme and its index; among equals the latest, as in torch."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    positions = lax.broadcasted_iota(jnp.int32, x.shape, dim % x.ndim)

    def later(a: tuple, b: tuple) -> tuple:
        keep = better(b[0], a[0]) | (b[0] != b[0])
        return jnp.where(keep, b[0], a[0]), jnp.where(keep, b[1], a[1])

    _, index = lax.associative_scan(later, (lax.stop_gradient(x), positions), axis=dim % x.ndim)
    return jnp.take_along_axis(x, index, dim), index


@lowers(aten.cummax.default)
def cummax(x: jax.Array, dim: int) -> Any:
    return _running(x, dim, lambda b, a: b >= a)


@lowers(aten.cummin.default)
def cummin(x: jax.Array, dim: int) -> Any:
    return _running(x, dim, lambda b, a: b <= a)


def _sorted(x: jax.Array, dim: int, descending: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    index = jnp.argsort(lax.stop_gradient(x), axis=dim, descending=descending, stable=True)
    return jnp.take_along_axis(x, index, dim), index


@lowers(aten.sort.default)
def sort(x: jax.Array, dim: int = -1, descending: bool = False) -> Any:
    return _sorted(x, dim, descending)


@lowers(aten.sort.stable)
def sort_stable(
    x: jax.Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sorted(x, dim, descending)


def _even_median(x: jax.Array, value: jax.Array) -> jax.Array:
    """The median with its gradient shared among the elements equal to it."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return value
    value = lax.stop_gradient(value)
    ties = jnp.where(is_nan(value), is_nan(x), equal(x, value))
    share = jnp.sum(jnp.where(ties, x, 0)) / jnp.maximum(ties.sum(), 1).astype(x.dtype)
    return straight_through(share, value)


def _extreme(func: Any, reduction: Callable[..., jax.Array]) -> None:
    @lowers(func)
    def run(x: jax.Array, dim: Sequence[int] = (), keepdim: bool = False) -> jax.Array:
        axes = tuple(d % max(x.ndim, 1) for d in dim)[: x.ndim] or tuple(range(x.ndim))
        return extreme(x, reduction, axes, keepdim)


_extreme(aten.amax.default, jnp.max)
_extreme(aten.amin.default, jnp.min)
_extreme(aten.max.default, jnp.max)
_extreme(aten.min.default, jnp.min)


@lowers(aten.median.default)
def median(x: jax.Array) -> jax.Array:
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


@lowers(aten.hardsigmoid.default)
def hardsigmoid(x: jax.Array) -> jax.Array:
    line = x / 6 + 0.5
    inside = (x > -3) & (x < 3)
    return jnp.where(inside | is_nan(x), line, jnp.where(x >= 3, 1, 0).astype(x.dtype))


_bce = _with_partials(
    lambda p, y: -(y * jnp.maximum(jnp.log(p), -100) + (1 - y) * jnp.maximum(jnp.log1p(-p), -100)),
    # torch's backward, with its own guard against 0 and 1.
    lambda p, y, _: (p - y) / jnp.maximum(p * (1 - p), 1e-12),
    lambda p, y, _: jnp.log1p(-p) - jnp.log(p),
)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    p: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = 1
) -> jax.Array:
    wide = jnp.promote_types(p.dtype, jnp.float32)
    loss = _bce(p.astype(wide), target.astype(wide))
    loss = loss if weight is None else loss * weight
    loss = jnp.mean(loss) if reduction == 1 else jnp.sum(loss) if reduction == 2 else loss
    return loss.astype(p.dtype)


_pow = _with_partials(
    jnp.power,
    lambda b, e, _: jnp.where(e == 0, 0, e * jnp.power(b, jnp.where(e == 0, 1, e - 1))),
    lambda b, e, out: jnp.where((b == 0) & (e >= 0), 0, out * jnp.log(jnp.where(b == 0, 1, b))),
)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base: Any, exponent: Any) -> jax.Array:
    base, exponent = _common(base, exponent)
    if not jnp.issubdtype(base.dtype, jnp.floating):
        return jnp.power(base, exponent)
    return _pow(base, exponent)


@lowers(aten.sinc.default)
def sinc(x: jax.Array) -> jax.Array:
    return jnp.sinc(x.astype(jnp.promote_types(x.dtype, jnp.float32)))


_xlogy = _with_partials(
    lambda x, y: jnp.where(is_nan(y), y, jnp.where(x == 0, 0, x * jnp.log(y))),
    lambda x, y, _: jnp.where((x == 0) & (y <= 0), 0, jnp.log(y)),
    lambda x, y, _: x / y,
)


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(x: Any, y: Any) -> jax.Array:
    x, y = (v.astype(jnp.promote_types(v.dtype, jnp.float32)) for v in _common(x, y))
    return _xlogy(x, y)


_xlog1py = _with_partials(
    lambda x, y: jnp.where(is_nan(y), y, jnp.where(x == 0, 0, x * jnp.log1p(y))),
    lambda x, y, _: jnp.where((x == 0) & (y <= -1), 0, jnp.log1p(y)),
    lambda x, y, _: x / (y + 1),
)


@lowers(
    aten.special_xlog1py.default,
    aten.special_xlog1py.self_scalar,
    aten.special_xlog1py.other_scalar,
)
def xlog1py(x: Any, y: Any) -> jax.Array:
    x, y = (v.astype(jnp.promote_types(v.dtype, jnp.float32)) for v in _common(x, y))
    return _xlog1py(x, y)


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    from jaxsr.interop._core import torchax as _torchax

    general = _torchax.lowering(aten.scatter_reduce.two)
    assert general is not None
    out = general(x, dim, index, source, reduce, include_self=include_self)
    if reduce not in ("amax", "amin") or not jnp.issubdtype(x.dtype, jnp.floating) or x.ndim == 0:
        return out
    # Among equals torch shares the gradient; XLA's scatter would give each of them all of it.
    out = lax.stop_gradient(out)
    source = source[tuple(slice(0, n) for n in index.shape)]
    where = list(jnp.indices(index.shape, sparse=True))
    where[dim] = index
    place = tuple(where)
    reached = jnp.zeros(x.shape, x.dtype).at[place].add(1)
    ties, held = equal(source, out[place]), equal(x, out)
    # torch counts the tensor's own element even where include_self=False leaves it out.
    own = held & (jnp.asarray(include_self) | (reached == 0))
    count = held.astype(x.dtype).at[place].add(ties.astype(x.dtype))
    share = jnp.where(own, x / jnp.maximum(count, 1), 0)
    share = share.at[place].add(jnp.where(ties, source / jnp.maximum(count[place], 1), 0))
    return straight_through(share, out)


@lowers(aten.logit.default)
def logit(x: jax.Array, eps: float | None = None) -> jax.Array:
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if x.dtype != jnp.bfloat16 else x
    if eps is None:
        return jnp.log(x / (1 - x))
    bounded = jnp.where(x < eps, eps, jnp.where(x > 1 - eps, 1 - eps, x)).astype(x.dtype)
    value = lax.stop_gradient(jnp.log(bounded / (1 - bounded)))
    inside = (x >= eps) & (x <= 1 - eps)
    safe = jnp.where(inside, x, 0.5)
    return jnp.where(inside, jnp.log(safe / (1 - safe)), value)


def _trigamma(x: jax.Array) -> jax.Array:
    # JAX's polygamma holds for positive arguments only: reflect the rest.
    mirrored = jnp.square(jnp.pi / jnp.sin(jnp.pi * x)) - _positive_trigamma(1 - x)
    return jnp.where(x > 0, _positive_trigamma(jnp.where(x > 0, x, 1)), mirrored)


def _positive_trigamma(x: jax.Array) -> jax.Array:
    return jax.scipy.special.polygamma(1, x)


def _digamma_value(x: jax.Array) -> jax.Array:
    out = jax.scipy.special.digamma(x)
    # torch: −∞ at +0, +∞ at −0, NaN at the negative integers.
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), out)


_digamma = _with_partials(_digamma_value, lambda x, _: _trigamma(x))


@lowers(aten.digamma.default)
def digamma(x: jax.Array) -> jax.Array:
    return _digamma(x.astype(jnp.promote_types(x.dtype, jnp.float32)))


@lowers(aten.polygamma.default)
def polygamma(n: int, x: jax.Array) -> jax.Array:
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if n == 0:
        return _digamma(x)
    raise UnsupportedTorchError(
        f"polygamma of order {n}: JAX's is wrong for negative arguments; use digamma, or compute "
        "it in torch before apply"
    )


REFUSED.update(
    {
        aten.max_pool2d_with_indices_backward: "torch's internal backward operator; "
        "differentiate apply with jax.grad",
        aten.as_strided_scatter: "as_strided_scatter has no faithful gradient in JAX; "
        "use select_scatter or slice_scatter",
        aten.cholesky_inverse: "cholesky_inverse has another gradient in JAX; use torch.linalg.inv",
        aten.cholesky_solve: "cholesky_solve has another gradient in JAX; "
        "use torch.linalg.solve_triangular twice",
    }
)
