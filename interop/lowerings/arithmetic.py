"""Sums, products, quotients, comparisons, logic, bits and rounding, of one element at a time.

JAX computes these as torch does, and dispatch casts the results to torch's dtype. Where the two
differ is written at the operator.
"""

import operator
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import is_nan, widened
from jaxsr.interop._core.flat_functions import flat
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.elementwise import common_dtype
from jaxsr.interop.lowerings.quotients import divided, quotient


def _lowers_each(table: Mapping[str, Callable[..., jax.Array]], *overloads: str) -> None:
    """Registers a function for those of these overloads that an operator has."""
    for name, function in table.items():
        packet = getattr(aten, name)
        lowers(*(getattr(packet, each) for each in overloads if each in packet.overloads()))(
            function
        )


# ---- sums, products and quotients


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(x: jax.Array, y: ArrayLike, alpha: complex = 1) -> jax.Array:
    return x + (y if alpha == 1 else y * alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def subtract(x: jax.Array, y: ArrayLike, alpha: complex = 1) -> jax.Array:
    return x - (y if alpha == 1 else y * alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def subtract_from(x: jax.Array, y: ArrayLike, alpha: complex = 1) -> jax.Array:
    return jnp.asarray(y) - (x if alpha == 1 else x * alpha)


_lowers_each({"mul": operator.mul}, "Tensor", "Scalar")


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(x: jax.Array, y: ArrayLike) -> jax.Array:
    out, by_zero = jnp.floor_divide(x, y), y == 0
    if by_zero is False or not jnp.issubdtype(out.dtype, jnp.floating):
        return out
    # NaN to JAX, which takes the remainder first.
    return jnp.where(by_zero, lax.stop_gradient(x / y), out)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide(x: jax.Array, y: ArrayLike, *, rounding_mode: str | None = None) -> jax.Array:
    if rounding_mode == "floor":
        out = floor_divide(x, y)
        return flat(x + y, out) if jnp.issubdtype(out.dtype, jnp.inexact) else out
    if rounding_mode is None:
        return quotient(x, y)
    if not jnp.issubdtype(jnp.result_type(x, y), jnp.inexact):
        return lax.div(*common_dtype(x, y))
    out = jnp.trunc(divided(*common_dtype(x, y)))
    return flat(x + y, out)


_lowers_each(
    {
        "neg": jnp.negative, "gcd": jnp.gcd, "lcm": jnp.lcm, "_conj_physical": jnp.conj,
    },
    "default",
)  # fmt: skip
lowers(aten.frexp.Tensor)(jnp.frexp)


@lowers(aten.complex.default)
def from_parts(real: jax.Array, imag: jax.Array) -> jax.Array:
    return lax.complex(*common_dtype(real, imag))


# ---- comparisons, logic and bits

_lowers_each(
    {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "Tensor", "Scalar",
)  # fmt: skip
_lowers_each(
    {
        "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
        "logical_xor": jnp.logical_xor, "logical_not": jnp.logical_not,
        "isnan": is_nan, "isinf": jnp.isinf, "signbit": jnp.signbit, "bitwise_not": jnp.invert,
    },
    "default",
)  # fmt: skip
# XLA also shifts by fewer than 0 and by all bits or more to 0 or the sign.
_lowers_each(
    {
        "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
        "bitwise_left_shift": operator.lshift, "bitwise_right_shift": operator.rshift,
        "__lshift__": operator.lshift, "__rshift__": operator.rshift,
    },
    "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar",
)  # fmt: skip
lowers(aten.where.self)(jnp.where)


# ---- rounding: whole numbers stay as they are


def _rounded(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: flat(x, function(x)) if jnp.issubdtype(x.dtype, jnp.inexact) else x


_ROUNDINGS = {"ceil": jnp.ceil, "floor": jnp.floor, "trunc": jnp.trunc, "round": jnp.round}
_lowers_each({name: _rounded(function) for name, function in _ROUNDINGS.items()}, "default")


@lowers(aten.round.decimals)
def round_to_decimals(x: jax.Array, *, decimals: int) -> jax.Array:
    wide, scale = widened(x), 10.0 ** abs(decimals)
    if decimals < 0:
        out = jnp.round(divided(wide, scale)) * scale
    else:
        out = divided(jnp.round(wide * scale), scale)
    return flat(x, out.astype(x.dtype))
