"""Functions of one element at a time, with torch's gradient at kinks, ties and poles.

`jnp.clip` gives half a gradient at its bounds and `jnp.abs` one at zero; torch gives one and zero.
Images are full of exact 0 and 1, so this is not a corner case. A new elementwise operator goes
here: a function of arrays under `@lowers(torch.ops.aten.NAME.OVERLOAD)`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dtypes import is_nan, wide_dtype, widened
from jaxsr.interop._core.registry import lowers
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.errors import UnsupportedTorchError

aten = torch.ops.aten


# ---- derivatives that torch defines where calculus does not


def with_partials(
    value: Callable[..., jax.Array], *partials: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """`value` with partial derivatives, each a function of (arguments..., result)."""
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


def common_dtype(*values: Any) -> list[jax.Array]:
    dtype = jnp.result_type(*values)
    return [jnp.asarray(v, dtype) for v in jnp.broadcast_arrays(*values)]


def _nonzero(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 1, x)


# ---- limits


@lowers(aten.clamp.default)
def clamp(x: jax.Array, low: Any = None, high: Any = None) -> jax.Array:
    dtype = jnp.result_type(x, *(v for v in (low, high) if v is not None))
    out = x.astype(dtype)
    if low is not None:
        out = jnp.where(out < low, jnp.asarray(low, dtype), out)
    if high is not None:
        # torch: where both bounds cross, the upper one wins; NaN stays.
        out = jnp.where(out > high, jnp.asarray(high, dtype), out)
    return out


@lowers(aten.clamp.Tensor)
def clamp_tensor(x: jax.Array, low: Any = None, high: Any = None) -> jax.Array:
    if low is None:
        return clamp_max_tensor(x, high)
    if high is None:
        return clamp_min_tensor(x, low)
    inside = (x >= low) & (x <= high) | is_nan(x)
    # torch gives a bound its gradient only where it is the one that acts.
    below = jnp.where(low < high, low, lax.stop_gradient(low))
    out = jnp.where(inside, x, jnp.where((x > high) | (high < low), high, below))
    if not jnp.issubdtype(out.dtype, jnp.floating):
        return out
    return jnp.where(is_nan(low) | is_nan(high), jnp.nan, out)


lowers(aten.clamp_min.default)(clamp)
lowers(aten.clamp_max.default)(lambda x, high: clamp(x, None, high))


@lowers(aten.clamp_min.Tensor)
def clamp_min_tensor(x: jax.Array, low: jax.Array) -> jax.Array:
    return jnp.where((x >= low) | is_nan(x), x, low)


@lowers(aten.clamp_max.Tensor)
def clamp_max_tensor(x: jax.Array, high: jax.Array) -> jax.Array:
    return jnp.where((x <= high) | is_nan(x), x, high)


@lowers(aten.hardtanh.default)
def hardtanh(x: jax.Array, low: Any = -1.0, high: Any = 1.0) -> jax.Array:
    # Its own backward excludes both bounds, unlike clamp's.
    inside = (x > low) & (x < high)
    return jnp.where(inside | is_nan(x), x, lax.stop_gradient(clamp(x, low, high)))


@lowers(aten.hardswish.default)
@jax.jit
def hardswish(x: jax.Array) -> jax.Array:
    wide = widened(x)
    outside = jnp.where(wide >= 3, wide, jnp.zeros((), wide.dtype))
    inside = (wide > -3) & (wide < 3) | is_nan(wide)
    return jnp.where(inside, wide * (wide + 3) / 6, outside).astype(x.dtype)


lowers(aten.relu6.default)(lambda x: hardtanh(x, 0, 6))


@lowers(aten.hardsigmoid.default)
def hardsigmoid(x: jax.Array) -> jax.Array:
    line = x / 6 + 0.5
    inside = (x > -3) & (x < 3)
    return jnp.where(inside | is_nan(x), line, jnp.where(x >= 3, 1, 0).astype(x.dtype))


# ---- rectifiers and signs: slope at exactly zero


@lowers(aten.relu.default)
@jax.jit
def relu(x: jax.Array) -> jax.Array:
    return jnp.where((x > 0) | is_nan(x), x, jnp.zeros((), x.dtype))


@lowers(aten.leaky_relu.default)
@jax.jit
def leaky_relu(x: jax.Array, slope: Any = 0.01) -> jax.Array:
    return jnp.where(x > 0, x, x * slope)


@lowers(aten._prelu_kernel.default)
def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, weight * x)


@lowers(aten.abs.default)
def absolute(x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.abs(x)
    if jnp.iscomplexobj(x):
        zero = x == 0
        return jnp.where(zero, 0, jnp.abs(jnp.where(zero, 1, x)))
    # JAX's derivative of abs at 0 is 1; torch's is 0 (and so an exact L1 match rests).
    return straight_through(x * lax.stop_gradient(jnp.sign(x)), jnp.abs(x))


@lowers(aten.sgn.default)
def sgn(x: jax.Array) -> jax.Array:
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


@lowers(aten.angle.default)
def angle(x: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(x):
        return jnp.angle(x)
    out = jnp.where(x < 0, jnp.pi, 0.0)
    return jnp.where(is_nan(x), jnp.nan, out)


@lowers(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(x: jax.Array, sign: Any) -> jax.Array:
    out = jnp.copysign(x, sign)
    ratio = jnp.where(x == 0, 0, out / jnp.where(x == 0, 1, x))
    return straight_through(x * lax.stop_gradient(ratio) + 0 * sign, out)


# ---- powers, logarithms and special functions


_pow = with_partials(
    jnp.power,
    lambda b, e, _: jnp.where(e == 0, 0, e * jnp.power(b, jnp.where(e == 0, 1, e - 1))),
    lambda b, e, out: jnp.where((b == 0) & (e >= 0), 0, out * jnp.log(jnp.where(b == 0, 1, b))),
)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base: Any, exponent: Any) -> jax.Array:
    base, exponent = common_dtype(base, exponent)
    if not jnp.issubdtype(base.dtype, jnp.floating):
        return jnp.power(base, exponent)
    return _pow(base, exponent)


lowers(aten.sinc.default)(lambda x: jnp.sinc(widened(x)))


def _lowers_wide(value: Callable[..., jax.Array], *funcs: Any) -> None:
    """`funcs` of two arguments as `value`, computed in float32 at least."""
    lowers(*funcs)(lambda x, y: value(*map(widened, common_dtype(x, y))))


_atan2 = with_partials(
    jnp.arctan2,
    lambda y, x, _: jnp.where((x == 0) & (y == 0), 0, x / _nonzero(x * x + y * y)),
    lambda y, x, _: jnp.where((x == 0) & (y == 0), 0, -y / _nonzero(x * x + y * y)),
)


_lowers_wide(_atan2, aten.atan2.default)


_xlogy = with_partials(
    lambda x, y: jnp.where(is_nan(y), y, jnp.where(x == 0, 0, x * jnp.log(y))),
    lambda x, y, _: jnp.where((x == 0) & (y <= 0), 0, jnp.log(y)),
    lambda x, y, _: x / y,
)


_lowers_wide(_xlogy, aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)


_xlog1py = with_partials(
    lambda x, y: jnp.where(is_nan(y), y, jnp.where(x == 0, 0, x * jnp.log1p(y))),
    lambda x, y, _: jnp.where((x == 0) & (y <= -1), 0, jnp.log1p(y)),
    lambda x, y, _: x / (y + 1),
)


_special = aten.special_xlog1py
_lowers_wide(_xlog1py, _special.default, _special.self_scalar, _special.other_scalar)


@lowers(aten.logit.default)
def logit(x: jax.Array, eps: float | None = None) -> jax.Array:
    x = widened(x) if x.dtype != jnp.bfloat16 else x
    if eps is None:
        return jnp.log(x / (1 - x))
    bounded = jnp.where(x < eps, eps, jnp.where(x > 1 - eps, 1 - eps, x)).astype(x.dtype)
    value = lax.stop_gradient(jnp.log(bounded / (1 - bounded)))
    inside = (x >= eps) & (x <= 1 - eps)
    safe = jnp.where(inside, x, 0.5)
    return jnp.where(inside, jnp.log(safe / (1 - safe)), value)


_bce = with_partials(
    lambda p, y: -(y * jnp.maximum(jnp.log(p), -100) + (1 - y) * jnp.maximum(jnp.log1p(-p), -100)),
    # torch's backward, with its own guard against 0 and 1.
    lambda p, y, _: (p - y) / jnp.maximum(p * (1 - p), 1e-12),
    lambda p, y, _: jnp.log1p(-p) - jnp.log(p),
)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    p: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = 1
) -> jax.Array:
    wide = wide_dtype(p.dtype)
    loss = _bce(p.astype(wide), target.astype(wide))
    loss = loss if weight is None else loss * weight
    loss = jnp.mean(loss) if reduction == 1 else jnp.sum(loss) if reduction == 2 else loss
    return loss.astype(p.dtype)


def _trigamma(x: jax.Array) -> jax.Array:
    # JAX's polygamma holds for positive arguments only: reflect the others.
    positive = functools.partial(jax.scipy.special.polygamma, 1)
    mirrored = jnp.square(jnp.pi / jnp.sin(jnp.pi * x)) - positive(1 - x)
    return jnp.where(x > 0, positive(jnp.where(x > 0, x, 1)), mirrored)


def _digamma_value(x: jax.Array) -> jax.Array:
    out = jax.scipy.special.digamma(x)
    # torch: −∞ at +0, +∞ at −0, NaN at the negative integers.
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), out)


_digamma = with_partials(_digamma_value, lambda x, _: _trigamma(x))


lowers(aten.digamma.default)(lambda x: _digamma(widened(x)))


@lowers(aten.polygamma.default)
def polygamma(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        return _digamma(widened(x))
    raise UnsupportedTorchError(
        f"polygamma of order {n}: JAX's is wrong for negative arguments; use digamma, or compute "
        "it in torch before apply"
    )
