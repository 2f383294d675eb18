"""Powers, and logarithms and powers of bases 2 and 10."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.elementwise import common_dtype, lowers_of_floats, with_partials


def _real_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """`base ** exponent`. XLA makes `exponent * log(abs(base))` of the logarithm of `lax.pow`."""
    size, is_whole = lax.pow(jnp.abs(base), exponent), jnp.floor(exponent) == exponent
    keeps_sign = is_whole | (base == 0) | jnp.isinf(base)
    of_negative = jnp.where(
        jnp.abs(lax.rem(exponent, jnp.full_like(exponent, 2))) == 1, -size, size
    )
    return jnp.where(jnp.signbit(base), jnp.where(keeps_sign, of_negative, jnp.nan), size)


_pow = with_partials(
    _real_power,
    lambda b, e, _: jnp.where(e == 0, 0, e * _real_power(b, jnp.where(e == 0, 1, e - 1))),
    lambda b, e, out: jnp.where(
        (b == 0) & (e >= 0), 0, out * jnp.log(jnp.where((b == 0) & (e >= 0), 1, b))
    ),
)


def _whole_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Powers of integers, modulo their bits. `jnp.power` reads six bits of the exponent."""
    out = jnp.ones_like(base)
    for bit in range(jnp.iinfo(exponent.dtype).max.bit_length()):
        out = jnp.where(exponent >> bit & 1, out * base, out)
        base = base * base
    return out


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base: ArrayLike, exponent: ArrayLike) -> jax.Array:
    base, exponent = common_dtype(base, exponent)
    if jnp.issubdtype(base.dtype, jnp.integer):
        # Only the whole numbers 1 and -1 have whole inverses.
        inverse = jnp.where(exponent % 2 == 0, base * base, base)
        inverse = jnp.where(jnp.abs(base) == 1, inverse, 0)
        return jnp.where(exponent < 0, inverse, _whole_power(base, jnp.maximum(exponent, 0)))
    if not jnp.issubdtype(base.dtype, jnp.floating):
        return jnp.power(base, exponent)
    return _pow(base, exponent)


@lowers(aten.pow.Tensor_Scalar)
def power_by_number(x: jax.Array, exponent: complex) -> jax.Array:
    if isinstance(exponent, complex) or jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.power(x, exponent)
    if jnp.issubdtype(x.dtype, jnp.inexact) or isinstance(exponent, float):
        return _power_of(float(exponent))(widened(x))
    return power(x if x.dtype != jnp.bool_ else x.astype(jnp.int32), int(exponent))


_FEW_FACTORS: dict[float, Callable[[jax.Array], jax.Array]] = {
    0.0: jnp.ones_like,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    0.5: jnp.sqrt,
    -0.5: lax.rsqrt,
    -1.0: lambda x: 1 / x,
    -2.0: lambda x: 1 / (x * x),
}


@functools.cache
def _power_of(exponent: float) -> Callable[[jax.Array], jax.Array]:
    """The power of a number that is known, with slopes of any order, also at 0."""

    @jax.custom_jvp
    def run(x: jax.Array) -> jax.Array:
        few = _FEW_FACTORS.get(exponent)
        return _real_power(x, jnp.full_like(x, exponent)) if few is None else few(x)

    @run.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        (x,), (tangent,) = primals, tangents
        if exponent == 0:
            return run(x), jnp.zeros_like(tangent)
        return run(x), exponent * _power_of(exponent - 1)(x) * tangent

    return run


# ---- bases 2 and 10: whole results are exact, as in torch


def _exponent_and_rest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """n and log(x / 2ⁿ), where x / 2ⁿ is near 1."""
    part, exponent = jnp.frexp(x)
    is_low = part < math.sqrt(0.5)
    part = jnp.where(is_low, 2 * part, part)
    return (exponent - is_low).astype(x.dtype), jnp.log(part)


def _log2(x: jax.Array) -> jax.Array:
    exponent, rest = _exponent_and_rest(x)
    return _at_limits(x, exponent + rest * (1 / math.log(2)))


def _log10(x: jax.Array) -> jax.Array:
    exponent, rest = _exponent_and_rest(x)
    # Few bits, so that its products with exponents are exact.
    high = round(math.log10(2) * (1 << 12)) / (1 << 12)
    low = exponent * (math.log10(2) - high) + rest * (1 / math.log(10))
    return _at_limits(x, exponent * high + low)


def _at_limits(x: jax.Array, logarithm: jax.Array) -> jax.Array:
    return jnp.where((x > 0) & (x < jnp.inf), logarithm, jnp.log(x))


def _exp2(x: jax.Array) -> jax.Array:
    exponent = jnp.round(jnp.clip(x, -1e4, 1e4))
    return jnp.ldexp(jnp.exp((x - exponent) * math.log(2)), exponent.astype(jnp.int32))


for _func, _value, _base in ((aten.log2, _log2, 2), (aten.log10, _log10, 10)):
    lowers_of_floats(
        _func.default, with_partials(_value, lambda x, _, base=_base: 1 / (x * math.log(base)))
    )
lowers_of_floats(aten.exp2.default, with_partials(_exp2, lambda _, out: out * math.log(2)))
