"""The scaled complementary error function, which JAX lacks."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.elementwise import is_nan, with_partials


def _erfcx_value(x: jax.Array) -> jax.Array:
    far = jnp.maximum(jnp.abs(x), 2)
    # Laplace's continued fraction, DLMF 7.9.1: 50 terms are exact in float64 from 2 on.
    total = lax.fori_loop(0, 50, lambda i, t: far + (50 - i) / 2 / t, far)
    near = jnp.where(jnp.abs(x) < 2, x, 0)
    mirrored = jnp.where(
        jnp.abs(x) < 2,
        jnp.exp(near * near) * lax.erfc(jnp.abs(near)),
        1 / (math.sqrt(math.pi) * total),
    )
    value = jnp.where(x < 0, 2 * jnp.exp(x * x) - mirrored, mirrored)
    return jnp.where(is_nan(x), x, value)


_erfcx = with_partials(_erfcx_value, lambda x, out: 2 * x * out - 2 / math.sqrt(math.pi))

lowers(aten.special_erfcx.default)(lambda x: _erfcx(widened(x)))
