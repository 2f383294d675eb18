"""A product in which a factor of zero wins over infinities and NaN, with derivatives of any order.

`where(factor == 0, 0, factor * other)` has these values, but its derivative by a factor of zero is
lost: second derivatives would vanish wherever a first one is zero.
"""

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jaxsr.xla_calls.primitives import cpu_primitive


def _product(factor: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where(factor == 0, jnp.zeros((), other.dtype), factor * other)


_product_p = cpu_primitive("masked_product", _product)
ad.defbilinear(
    _product_p,
    lambda cotangent, _, other: _product_p.bind(cotangent, other),
    lambda cotangent, factor, _: _product_p.bind(factor, cotangent),
)


def masked_product(factor: jax.Array, other: jax.Array) -> jax.Array:
    """`factor * other`, and 0 where `factor` is.

    Args:
      factor: the deciding operand; it is cast and broadcast to the other.
      other: of a floating or complex dtype.
    """
    factor = jnp.broadcast_to(jnp.asarray(factor, other.dtype), other.shape)
    return _product_p.bind(factor, other)
