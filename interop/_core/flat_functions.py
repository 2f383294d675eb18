"""Functions whose gradient is 0 everywhere, as those of roundings and signs."""

import jax
import jax.numpy as jnp


@jax.custom_jvp
def flat(source: jax.Array, value: jax.Array) -> jax.Array:
    """`value`, whose gradient by `source`, of its shape, is 0.

    JAX knows that of roundings and signs, and then has none; torch's optimisers still decay a
    parameter with a gradient of 0.
    """
    del source
    return value


@flat.defjvp
def _flat_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    slope = tangents[0]
    return flat(*primals), jax.lax.select(jnp.zeros((), bool), slope, jnp.zeros_like(slope))
