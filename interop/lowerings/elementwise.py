"""Functions of one element at a time, with torch's gradient at kinks, ties and poles.

`jnp.clip` gives half a gradient at its bounds and `jnp.abs` one at zero; torch gives one and zero.
Images are full of exact 0 and 1, so this is not a corner case. A new elementwise operator goes
here: a function of arrays under `@lowers(torch.ops.aten.NAME.OVERLOAD)`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import is_nan, wide_dtype, widened
from jaxsr.interop._core.flat_functions import flat
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers, wraps_torchax
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.lowerings.masked_product import masked_product

# ---- derivatives that torch defines where calculus does not


def with_partials(
    value: Callable[..., jax.Array], *partials: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """`value` with partial derivatives, each a function of (arguments..., result)."""
    fn = jax.custom_jvp(value)

    def jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
        out = fn(*primals)
        total = jnp.zeros_like(out)
        for partial, tangent in zip(partials, tangents, strict=True):
            # A zero slope stops even an infinite tangent's NaN; torch masks in the same way.
            total = total + masked_product(partial(*primals, out), tangent)
        return out, total.astype(out.dtype)

    fn.defjvp(jvp)
    return fn


def common_dtype(*values: ArrayLike) -> list[jax.Array]:
    dtype = jnp.result_type(*values)
    return [jnp.asarray(v, dtype) for v in jnp.broadcast_arrays(*values)]


def _nonzero(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 1, x)


# ---- limits


def _nan_is_constant(x: jax.Array) -> jax.Array:
    """NaN stays, and gets no gradient."""
    return jnp.where(is_nan(x), lax.stop_gradient(x), x)


@lowers(aten.clamp.default)
def clamp(x: jax.Array, low: ArrayLike | None = None, high: ArrayLike | None = None) -> jax.Array:
    dtype = jnp.result_type(x, *(v for v in (low, high) if v is not None))
    out = _nan_is_constant(x.astype(dtype))
    if any(math.isnan(bound) for bound in (low, high) if isinstance(bound, float)):
        return jnp.full_like(out, jnp.nan)
    # Integers of another range wrap, as in torch.
    low, high = (b if b is None else np.asarray(b).astype(dtype) for b in (low, high))
    if low is not None:
        out = jnp.where(out < low, low, out)
    if high is not None:
        # torch: where both bounds cross, the upper one wins; NaN stays.
        out = jnp.where(out > high, high, out)
    return out


@lowers(aten.clamp.Tensor)
def clamp_tensor(x: jax.Array, low: Any = None, high: Any = None) -> jax.Array:
    if low is None:
        return clamp_max_tensor(x, high)
    if high is None:
        return clamp_min_tensor(x, low)
    inside = (x >= low) & (x <= high) | is_nan(x)
    x = _nan_is_constant(x)
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
    return jnp.where((x >= low) | is_nan(x), _nan_is_constant(x), low)


@lowers(aten.clamp_max.Tensor)
def clamp_max_tensor(x: jax.Array, high: jax.Array) -> jax.Array:
    return jnp.where((x <= high) | is_nan(x), _nan_is_constant(x), high)


# ---- signs: slope at exactly zero


@lowers(aten.abs.default)
def absolute(x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.abs(x)
    if jnp.iscomplexobj(x):
        zero = x == 0
        return jnp.where(zero, 0, jnp.abs(jnp.where(zero, 1, x)))
    # JAX's derivative of abs at 0 is 1; torch's is 0 (and so an exact L1 match rests).
    return straight_through(x * lax.stop_gradient(sgn(x)), jnp.abs(x))


def lowers_of_floats(func: torch._ops.OpOverload, function: Callable[..., jax.Array]) -> None:
    """`func` as `function`, which takes no booleans or integers."""
    lowers(func)(lambda x: function(x if jnp.issubdtype(x.dtype, jnp.inexact) else widened(x)))


for _func, _function in (
    (aten.acos, jnp.arccos), (aten.acosh, jnp.arccosh), (aten.asin, jnp.arcsin),
    (aten.asinh, jnp.arcsinh), (aten.atan, jnp.arctan), (aten.atanh, jnp.arctanh),
    (aten.cos, jnp.cos), (aten.cosh, jnp.cosh), (aten.erf, jax.scipy.special.erf),
    (aten.erfc, jax.scipy.special.erfc), (aten.erfinv, jax.scipy.special.erfinv),
    (aten.exp, jnp.exp), (aten.expm1, jnp.expm1), (aten.log, jnp.log),
    (aten.log1p, jnp.log1p), (aten.sigmoid, jax.nn.sigmoid),
    (aten.sin, jnp.sin), (aten.sinh, jnp.sinh), (aten.sqrt, jnp.sqrt), (aten.tan, jnp.tan),
    (aten.tanh, jnp.tanh),
):  # fmt: skip
    lowers_of_floats(_func.default, _function)
lowers(aten.rsqrt.default)(lambda x: lax.rsqrt(widened(x)))


@lowers(aten.sgn.default, aten.sign.default)
def sgn(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        return x
    if not jnp.iscomplexobj(x):
        out = (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)  # NaN and -0 also give 0
        return flat(x, out) if jnp.issubdtype(x.dtype, jnp.inexact) else out
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


@lowers(aten.angle.default)
def angle(x: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(x):
        return straight_through(jnp.angle(jnp.where(x == 0, 1, x)), jnp.angle(x))
    out = jnp.where(x < 0, jnp.pi, 0.0)
    return jnp.where(is_nan(x), jnp.nan, out)


@lowers(aten.polar.default)
def polar(radius: jax.Array, angle: jax.Array) -> jax.Array:
    # torch's gradient is that of a radius without its sign.
    unsigned = radius * lax.stop_gradient(jnp.sign(radius))
    radius = straight_through(unsigned, radius)
    return lax.complex(radius * jnp.cos(angle), radius * jnp.sin(angle))


@lowers(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(x: jax.Array, sign: jax.Array | float) -> jax.Array:
    out = jnp.copysign(x, sign)
    ratio = jnp.where(x == 0, 0, out / jnp.where(x == 0, 1, x))
    return straight_through(x * lax.stop_gradient(ratio) + 0 * sign, out)


@lowers(aten.nextafter.default)
def nextafter(x: jax.Array, y: jax.Array) -> jax.Array:
    x, y = common_dtype(x, y)
    # A number that is its own neighbour is y, for which torch has no gradient.
    source = jnp.where(x == y, lax.stop_gradient(x), x)
    return straight_through(source, jnp.nextafter(lax.stop_gradient(x), lax.stop_gradient(y)))


# ---- remainders: exact, as C computes them


_fmod = with_partials(lax.rem, lambda x, y, _: jnp.ones_like(x), lambda x, y, _: -jnp.trunc(x / y))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(x: jax.Array, y: ArrayLike) -> jax.Array:
    x, y = common_dtype(x, y)
    return _fmod(x, y) if jnp.issubdtype(x.dtype, jnp.floating) else lax.rem(x, y)


_remainder = with_partials(
    jnp.remainder, lambda x, y, _: jnp.ones_like(x), lambda x, y, _: -jnp.floor(x / y)
)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(x: ArrayLike, y: ArrayLike) -> jax.Array:
    x, y = common_dtype(x, y)
    return _remainder(x, y) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.remainder(x, y)


# ---- special functions


lowers(aten.sinc.default)(lambda x: jnp.sinc(widened(x)))


def _lowers_wide(value: Callable[..., jax.Array], *funcs: torch._ops.OpOverload) -> None:
    """`funcs` of two arguments as `value`, computed in float32 at least."""
    lowers(*funcs)(lambda x, y: value(*map(widened, common_dtype(x, y))))


_lowers_wide(jnp.logaddexp, aten.logaddexp.default)
_lowers_wide(jnp.logaddexp2, aten.logaddexp2.default)
_lowers_wide(jax.scipy.special.gammainc, aten.igamma.default)
_lowers_wide(jax.scipy.special.gammaincc, aten.igammac.default)

_atan2 = with_partials(
    jnp.arctan2,
    lambda y, x, _: jnp.where((x == 0) & (y == 0), 0, x / _nonzero(x * x + y * y)),
    lambda y, x, _: jnp.where((x == 0) & (y == 0), 0, -y / _nonzero(x * x + y * y)),
)


_lowers_wide(_atan2, aten.atan2.default)


# At the origin NaN, as torch has it.
_hypot = with_partials(jnp.hypot, lambda x, _, out: x / out, lambda _, y, out: y / out)


_lowers_wide(_hypot, aten.hypot.default)


def _times_log(
    log: Callable[[jax.Array], jax.Array], pole: float
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """x · log(y), 0 where x is; `log` is infinite at `pole`."""

    @jax.custom_jvp
    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(is_nan(y), y, jnp.where(x == 0, 0, x * log(y)))

    @run.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
        x, y = primals
        # As in torch a cotangent of zero wins over an infinite logarithm.
        of_x = jnp.where((x == 0) & (y <= pole), 0, masked_product(tangents[0], log(y)))
        return run(x, y), of_x + masked_product(x / (y - pole), tangents[1])

    return run


_special = aten.special_xlog1py
_lowers_wide(
    _times_log(jnp.log, 0), aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other
)
_lowers_wide(
    _times_log(jnp.log1p, -1), _special.default, _special.self_scalar, _special.other_scalar
)


_logit = with_partials(
    lambda x: jnp.log(x / (1 - x)),
    lambda x, _: jnp.where((x < 0) | (x > 1), jnp.nan, 1 / (x * (1 - x))),
)


@lowers(aten.logit.default)
def logit(x: jax.Array, eps: float | None = None) -> jax.Array:
    x = widened(x) if x.dtype != jnp.bfloat16 else x
    if eps is None:
        return _logit(x)
    bounded = jnp.where(x < eps, eps, jnp.where(x > 1 - eps, 1 - eps, x)).astype(x.dtype)
    value = lax.stop_gradient(jnp.log(bounded / (1 - bounded)))
    inside = (x >= eps) & (x <= 1 - eps)
    return jnp.where(inside, _logit(jnp.where(inside, x, 0.5)), value)


_entr = with_partials(jax.scipy.special.entr, lambda x, _: -(1 + jnp.log(x)))
_ndtri = with_partials(
    jax.scipy.special.ndtri, lambda _, out: math.sqrt(2 * math.pi) * jnp.exp(out * out / 2)
)

lowers(aten.special_entr.default)(lambda x: _entr(widened(x)))
lowers(aten.special_ndtri.default)(lambda p: _ndtri(widened(p)))


def _trigamma(x: jax.Array) -> jax.Array:
    # JAX's polygamma holds for positive arguments only: reflect the others.
    positive = functools.partial(jax.scipy.special.polygamma, 1)
    mirrored = jnp.square(jnp.pi / jnp.sin(jnp.pi * x)) - positive(1 - x)
    return jnp.where(x > 0, positive(jnp.where(x > 0, x, 1)), mirrored)


def _digamma_value(x: jax.Array) -> jax.Array:
    out = jax.scipy.special.digamma(x)
    # torch: −∞ at +0, +∞ at −0, NaN at the negative integers.
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), out)


_digamma = with_partials(_digamma_value, lambda x, _: _polygamma(1)(x))


lowers(aten.digamma.default)(lambda x: _digamma(widened(x)))

_lgamma = with_partials(lax.lgamma, lambda x, _: _digamma(x))

lowers(aten.lgamma.default)(lambda x: _lgamma(widened(x)))


@lowers(aten.mvlgamma.default)
def mvlgamma(x: jax.Array, p: int) -> jax.Array:
    halves = jnp.arange(p) / 2
    terms = _lgamma(widened(x)[..., None] - halves.astype(wide_dtype(x.dtype)))
    return terms.sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


@lowers(aten.polygamma.default)
def polygamma(n: int, x: jax.Array) -> jax.Array:
    wide = widened(x)
    return _digamma(wide) if n == 0 else _polygamma(n)(wide)


def _polygamma(n: int) -> Callable[[jax.Array], jax.Array]:
    factor = (-1) ** (n + 1) * math.factorial(n)
    return with_partials(
        _trigamma if n == 1 else lambda x: factor * zeta_value(jnp.full_like(x, n + 1.0), x),
        lambda x, _: _polygamma(n + 1)(x),
    )


def zeta_value(s: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz's zeta function as Cephes and torch define it, also for negative `q`.

    There, terms up to the first positive `q + k` are summed; `jax.scipy.special.zeta` is NaN.
    """
    # From 2²³ on every number is whole, and a pole.
    is_pole = (q <= 0) & ((q == jnp.floor(q)) | (q < -(2.0**23)))
    first = jnp.where(is_pole | is_nan(q), 1, q)

    def add_term(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, q = state
        term = jnp.power(jnp.where(q <= 0, q, 1), -s)
        return jnp.where(q <= 0, total + term, total), jnp.where(q <= 0, q + 1, q)

    begin = (jnp.zeros_like(first), first)
    total, positive = lax.while_loop(lambda state: (state[1] <= 0).any(), add_term, begin)
    value = total + jax.scipy.special.zeta(s, positive)
    value = jnp.where((q < 0) & (s != jnp.floor(s)), jnp.nan, value)
    value = jnp.where(is_pole, jnp.inf, value)
    value = jnp.where(s == 1, jnp.inf, value)
    return jnp.where((s < 1) | is_nan(s) | is_nan(q), jnp.nan, value)


_special_zeta = aten.special_zeta


@lowers(_special_zeta.default, _special_zeta.self_scalar, _special_zeta.other_scalar)
def special_zeta(s: ArrayLike, q: ArrayLike) -> jax.Array:
    return zeta_value(*(widened(v) for v in common_dtype(s, q)))


@lowers(aten.special_log_ndtr.default)
def log_ndtr(x: jax.Array) -> jax.Array:
    return jax.scipy.special.log_ndtr(widened(x))


@lowers(aten.special_spherical_bessel_j0.default)
def spherical_bessel_j0(x: jax.Array) -> jax.Array:
    wide = widened(x)
    return jnp.where(jnp.isinf(wide), 0, jnp.where(wide == 0, 1, jnp.sin(wide) / _nonzero(wide)))


# ---- modified Bessel functions: slopes from each other, not from their approximations


_bessel = jax.scipy.special


def _over(y: jax.Array, x: jax.Array) -> jax.Array:
    """y / x with its limit ½ at zero, for y = I₁(x)."""
    return jnp.where(x == 0, 0.5, y / _nonzero(x))


def _i1_over_x(x: jax.Array, y: jax.Array) -> jax.Array:
    """Near zero by its series, as the quotient's own slope would cancel."""
    square = x * x
    series = 0.5 * (1 + square / 8 * (1 + square / 24 * (1 + square / 48 * (1 + square / 80))))
    near = jnp.abs(x) < 1
    return jnp.where(near, series, y / jnp.where(near, 1, x))


_I1 = with_partials(_bessel.i1, lambda x, y: _I0(x) - _i1_over_x(x, y))
_I0 = with_partials(_bessel.i0, lambda x, _: _I1(x))
_I1E = with_partials(_bessel.i1e, lambda x, y: _I0E(x) - jnp.sign(x) * y - _over(y, x))
_I0E = with_partials(_bessel.i0e, lambda x, y: _I1E(x) - jnp.sign(x) * y)


@wraps_torchax(
    aten.special_bessel_j0, aten.special_bessel_j1, aten.special_bessel_y0,
    aten.special_bessel_y1, aten.special_modified_bessel_i0, aten.special_modified_bessel_i1,
    aten.special_modified_bessel_k0, aten.special_modified_bessel_k1,
    aten.special_hermite_polynomial_h, aten.special_hermite_polynomial_he,
    aten.special_laguerre_polynomial_l,
)  # fmt: skip
def _of_numbers(lowering: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Torchax's takes no booleans."""

    def number(value: Any) -> Any:
        return widened(value) if getattr(value, "dtype", None) == jnp.bool_ else value

    return lambda *values: lowering(*map(number, values))


for _function, _func in (
    (_I0, aten.i0), (_I0E, aten.special_i0e), (_I1, aten.special_i1), (_I1E, aten.special_i1e),
):  # fmt: skip
    lowers(_func.default)(functools.partial(lambda f, x: f(widened(x)), _function))
