"""Programs that went wrong on NVIDIA GPUs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsr.doctor.sentinels.sentinel import JAX, XLA, Outcome, normal, sentinel


@sentinel(
    source=f"{JAX}39336",
    fault="jaxlib 0.10.2, CUDA sm_120: the factor is not applied to the bias",
    workaround="XLA_FLAGS=--xla_gpu_autotune_level=3",
)
def scaled_sum_of_product_and_bias() -> Outcome:
    a, b, bias = normal(32, 15), normal(100, 15), 100 * normal(32)
    program = jax.jit(jax.vmap(lambda row: 0.1 * ((a @ row) + bias)))
    return program(b), 0.1 * (b.astype(np.float64) @ a.T + bias)


@sentinel(
    source=f"{XLA}49119",
    fault="jaxlib 0.11, CUDA: start indices of the update are exchanged",
    workaround="jax.lax.optimization_barrier between the update and the roll",
)
def update_at_traced_starts_then_a_roll() -> Outcome:
    x = np.random.default_rng(0).integers(-9, 9, (33, 7, 16)).astype(np.int32)

    def program(x: jax.Array, starts: jax.Array, shift: jax.Array) -> jax.Array:
        total = jnp.flip(jnp.cumsum(jnp.flip(x, 2), axis=2), 2)
        total = lax.pad(total, np.int32(0), [(-3, -1, 0), (1, 2, 0), (-2, -3, 0)])
        update = lax.dynamic_slice(total, (0, 0, 0), (14, 4, 7)) * 3 - 1
        total = lax.dynamic_update_slice(total, update, list(starts))
        return jnp.roll(total, shift, axis=1)

    total = np.flip(np.cumsum(np.flip(x, 2), 2), 2)[3:-1, :, 2:-3]
    total = np.pad(total, ((0, 0), (1, 2), (0, 0)))
    reference = total.copy()
    reference[15:29, 5:9, 1:8] = total[:14, :4, :7] * 3 - 1  # 20 is clamped to 15
    starts = np.array([20, 5, 1], np.int32)
    return jax.jit(program)(x, starts, 2), np.roll(reference, 2, axis=1)


@sentinel(
    source=f"{XLA}49123",
    fault="jaxlib 0.11, CUDA: the last channel is wrong (cuDNN)",
    workaround="convolve in int32 or float32",
)
def grouped_convolution_of_int8() -> Outcome:
    x = (np.arange(4).reshape(1, 4, 1, 1) % 5 - 2).astype(np.int8)
    weight = (np.arange(8).reshape(4, 2, 1, 1) % 7 - 3).astype(np.int8)
    program = jax.jit(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", feature_group_count=2)
    )
    groups = x.reshape(2, 2).astype(np.int64)
    reference = np.einsum("gi,goi->go", groups, weight.reshape(2, 2, 2).astype(np.int64))
    return program(x, weight), reference.reshape(1, 4, 1, 1)


@sentinel(
    source=f"{JAX}40633",
    fault="jaxlib 0.11.0 and 0.11.1, CUDA on an A6000: values of an earlier buffer",
    workaround="compute under jax.jit",
)
def single_operations_outside_jit() -> Outcome:
    root = jnp.sqrt(jnp.float32(512))
    return jnp.concatenate([jnp.ones(4) + 1, root[None]]), np.array([2, 2, 2, 2, np.sqrt(512)])


@sentinel(
    source=f"{JAX}39157",
    fault="jaxlib 0.10.2, CUDA: fails to compile, an invalid scf.if",
    workaround="jax.lax.optimization_barrier before the concatenation",
)
def cross_product_concatenated_with_a_sum() -> Outcome:
    x = normal(1, 1000, 3)

    def program(x: jax.Array) -> jax.Array:
        total = jnp.sum(x, axis=-1)
        z = x / jnp.sum(x * x, axis=-1, keepdims=True)
        y = jnp.cross(z, x + 1)
        first = jnp.stack([y, z, y], -1)[..., 0, :]
        return jnp.concatenate([first, total[..., None]], -1)

    wide = x.astype(np.float64)
    z = wide / (wide * wide).sum(-1, keepdims=True)
    y = np.cross(z, wide + 1)
    first = np.stack([y, z, y], -1)[..., 0, :]
    return jax.jit(program)(x), np.concatenate([first, wide.sum(-1)[..., None]], -1)
