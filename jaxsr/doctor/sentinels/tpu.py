"""Programs that went wrong on TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsr.doctor.sentinels.sentinel import JAX, Outcome, normal, sentinel


@sentinel(
    source=f"{JAX}39025",
    fault="libtpu 0.0.42: rows of the gradient are zero, outside jit",
    workaround="compute the gradient under jax.jit",
    avoided="jaxsr's steps are jitted",
)
def gradient_of_a_gather_outside_jit() -> Outcome:
    x, cotangent = normal(2, 256, 8, 128)
    return jax.vjp(lambda x: x[:, np.arange(8), :], jnp.asarray(x))[1](cotangent)[0], cotangent


@sentinel(
    source=f"{JAX}40581",
    fault="libtpu 0.0.48: ends the process",
    workaround="cast both operands to one dtype",
)
def product_of_floats_and_integers_in_int32() -> Outcome:
    a, b = np.ones((4, 128), np.int8), jnp.ones((128, 128), jnp.bfloat16)
    program = jax.jit(
        lambda a, b: lax.dot_general(
            a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
        )
    )
    return program(a, b), np.full((4, 128), 128)


@sentinel(
    source="interop/lowerings/extremes.py",
    fault="libtpu 0.0.52: the maximum equals none of the values that it was found among",
    workaround="jax.lax.reduce_precision of both sides before they are compared",
    avoided="interop/lowerings/extremes.py compares rounded values",
    tolerance=1e-2,  # of one bfloat16 product
)
def gradient_of_a_maximum_of_bfloat16_products() -> Outcome:
    x, scale = normal(2, 8, 256).astype(jnp.bfloat16)

    def loss(x: jax.Array, scale: jax.Array) -> jax.Array:
        return (x * scale).max(1).astype(jnp.float32).sum()

    product = np.asarray(x * scale, np.float64)
    chosen = product == product.max(1, keepdims=True)
    reference = chosen / chosen.sum(1, keepdims=True) * scale.astype(np.float64)
    return jax.jit(jax.grad(loss))(x, scale).astype(jnp.float32), reference


@sentinel(
    source=f"{JAX}38885",
    fault="jax 0.10 and 0.11: equal elements are counted in bfloat16, which ends at 256",
    workaround="cast to float32 before the maximum",
    avoided="interop/lowerings/extremes.py counts in float32",
    tolerance=1e-2,
)
def gradient_of_a_maximum_of_equal_bfloat16() -> Outcome:
    x = np.ones(1000, jnp.bfloat16)
    return jax.jit(jax.grad(jnp.max))(x).astype(jnp.float32), np.full(1000, 1e-3)


@sentinel(
    source=f"{JAX}35916",
    fault="libtpu 0.0.37, v6e: unrelated values, in float32 too",
    workaround="einsum and softmax, with precision='highest'",
    avoided="torch's attention is lowered to einsum and softmax",
    tolerance=1e-4,
)
def dot_product_attention() -> Outcome:
    q, k, v = normal(3, 1, 32, 4, 64)
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) / 8
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return jax.jit(jax.nn.dot_product_attention)(q, k, v), np.einsum("bhqk,bkhd->bqhd", weights, v)
