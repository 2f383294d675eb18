"""Programs that went wrong on CPUs."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsr.doctor.sentinels.sentinel import JAX, XLA, Outcome, normal, sentinel

_YNN_OFF = "import jaxsr first, or XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type="

# ---- products and sums rounded once


@sentinel(
    source="jaxsr/interop/lowerings/reductions.py",
    fault="jaxlib 0.10.2, CPU: NaN, for a product less a peak of -1e38 is rounded once",
    workaround="mask with -inf, or after the scale",
    avoided="softmax gives the peak's own weight as 1",
)
def softmax_of_a_masked_row() -> Outcome:
    scores = normal(4, 7)
    hidden = np.zeros((4, 7), np.float32)
    hidden[1] = np.finfo(np.float32).min
    program = jax.jit(lambda s, m: jax.nn.softmax((s + m) / np.float32(8**0.5)))
    masked = (scores.astype(np.float64) + hidden) / 8**0.5
    masked[1] = 0  # the sum of the scores and the largest number loses the scores
    weights = np.exp(masked - masked.max(1, keepdims=True))
    return program(scores, hidden), weights / weights.sum(1, keepdims=True)


# ---- the YNN fusion of CPUs


@sentinel(
    source=f"{JAX}40412",
    fault="jaxlib 0.10.2, CPU: SIGSEGV in the YNN fusion",
    workaround=_YNN_OFF,
)
def product_summed_at_rank_7() -> Outcome:
    a, b = normal(2, 3, 1, 2, 2, 8, 8, 8)
    return jax.jit(lambda a, b: (a * b).sum(3))(a, b), (a.astype(np.float64) * b).sum(3)


@sentinel(
    source=f"{JAX}39257",
    fault="jaxlib 0.10.2 and 0.11.0, CPU: SIGSEGV or a hang in the YNN fusion",
    workaround=_YNN_OFF,
)
def broadcast_product_summed_at_rank_8() -> Outcome:
    # The sizes of the report; a third of them does not crash.
    a, b = np.ones((10, 4, 6), np.float32), np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
    program = jax.jit(lambda a, b: jnp.log((a[..., None, None, None, None, None] * b).sum(2)))
    return program(a, b), np.full((10, 4, 9, 9, 9, 9, 9), np.log(6.0))


@sentinel(
    source="interop/lowerings/triangular_solve.py",
    fault="jaxlib 0.10.2, CPU: LAPACK's calls wait for each other's threads, for ever",
    workaround="import jaxsr.interop.module first, or write the substitution in jax.numpy",
    avoided="interop/lowerings/triangular_solve.py: no LAPACK",
)
def triangular_systems_side_by_side() -> Outcome:
    systems = 2 * (os.cpu_count() or 1) + 4
    a = np.eye(64, dtype=np.float32) + np.tril(normal(systems, 16, 64, 64), -1) / 64
    solved = jax.jit(lambda a: [lax.linalg.triangular_solve(m, m, left_side=True) for m in a])
    signal.alarm(10)  # ends the process
    for _ in range(40):
        jax.block_until_ready(solved(a))
    signal.alarm(0)
    return jnp.stack(solved(a)), np.broadcast_to(np.eye(64), a.shape)


def _squared_norms(rows: int, dtype: str) -> Outcome:
    """Norms of (i, 0, 0), as |I x|²: the last row is not summed."""
    x = np.zeros((rows, 3), dtype)
    x[:, 0] = np.arange(rows)
    identity = np.eye(3, dtype=dtype)
    program = jax.jit(jax.vmap(lambda row: ((identity @ row) ** 2).sum()))
    return program(x), (x.astype(np.float64) ** 2).sum(1)


_vmapped_product = sentinel(
    source=f"{JAX}39103",
    fault="jaxlib 0.10.2, CPU: the last value is wrong, by the YNN fusion",
    workaround=_YNN_OFF,
)


@_vmapped_product
def vmapped_product_squared_and_summed() -> Outcome:
    return _squared_norms(32769, "float32")


@_vmapped_product
def vmapped_product_squared_and_summed_in_float64() -> Outcome:
    with jax.enable_x64(True):
        return _squared_norms(16385, "float64")


@sentinel(
    source=f"{XLA}48714",
    fault="jaxlib 0.10.2 to 0.11.2, CPU: the YNN fusion drops the dilation",
    workaround=_YNN_OFF,
)
def window_maximum_of_a_dilated_input() -> Outcome:
    x = normal(64, 128)
    window = ((2, 1), (2, 1), ((0, 0), (0, 0)))
    program = jax.jit(
        lambda x: lax.reduce_window(x, -np.inf, lax.max, *window, base_dilation=(1, 2))
    )
    reference = np.full((32, 255), -np.inf)
    reference[:, ::2] = x.reshape(32, 2, 128).max(1)
    return program(x), reference


# ---- other faults on CPUs

_shift_in_place = sentinel(
    source=f"{XLA}49176",
    fault="jaxlib 0.10.2 to 0.11.2, CPU: rows are read after they are overwritten",
    workaround="concatenate the parts instead of x.at[1:].set(x[:-1])",
    avoided="writes through torch views are concatenations on CPUs (interop/_core/views.py)",
)


@_shift_in_place
def rows_shifted_in_place_then_reshaped() -> Outcome:
    x = np.arange(128, dtype=np.int32).reshape(8, 16)

    def program(x: jax.Array) -> jax.Array:
        rows = x + 1
        return rows.at[1:].set(rows[:-1])[None]

    return jax.jit(program)(x), np.concatenate([x[:1], x[:-1]])[None] + 1


@_shift_in_place
def slice_shifted_in_place_then_reshaped() -> Outcome:
    x = np.arange(4, dtype=np.int32).reshape(4, 1, 1)

    def program(x: jax.Array) -> jax.Array:
        rows = x + np.int32(1)
        return lax.dynamic_update_slice(rows, rows[:3], (1, 0, 0)).reshape((1, 4, 1))

    return jax.jit(program)(x), np.array([1, 1, 2, 3]).reshape(1, 4, 1)


@_shift_in_place
def rows_reshaped_then_shifted_in_place() -> Outcome:
    # Found by the fuzz: a barrier before or after the update does not help here.
    x = np.arange(3, dtype=np.int32).reshape(3, 1)

    def program(x: jax.Array) -> jax.Array:
        rows = x.reshape(3)
        return rows.at[1:].set(rows[:-1])

    return jax.jit(program)(x), np.array([0, 0, 1])


@sentinel(
    source=f"{XLA}48713",
    fault="jaxlib 0.10.2 to 0.11.2, CPU: reads beyond the row where zeros belong",
    workaround="slice the input; pass no negative padding to a convolution",
    avoided="torch's negative padding is a slice; gradients of convolutions are not affected",
)
def convolution_with_a_cropped_edge() -> Outcome:
    x = np.arange(6 * 6 * 8, dtype=np.float32).reshape(1, 6, 6, 8)
    identity = np.eye(8, dtype=np.float32).reshape(1, 1, 8, 8)
    program = jax.jit(
        lambda x, kernel: lax.conv_general_dilated(
            x, kernel, (1, 1), ((0, 0), (-5, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )
    return program(x, identity), np.pad(x[:, :, 5:], ((0, 0), (0, 0), (0, 1), (0, 0)))


@sentinel(
    source="interop/lowerings/convolution.py",
    fault="jaxlib 0.10.2 to 0.11.2, CPU: SwapConvOperands ends the process",
    workaround="pad the input by lax.pad, and the convolution not at all",
    avoided="interop/lowerings/convolution.py pads in a separate operation",
)
def input_gradient_of_two_taps_at_stride_2() -> Outcome:
    weight, cotangent = normal(1, 1, 3, 2), normal(1, 1, 2, 3)

    def program(x: jax.Array, weight: jax.Array, cotangent: jax.Array) -> jax.Array:
        def convolve(x: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(x, weight, (2, 2), ((1, 1), (1, 1)))

        return jax.vjp(convolve, x)[1](cotangent)[0]

    reference = np.zeros((7, 7))
    for i, j in np.ndindex(2, 3):
        reference[2 * i : 2 * i + 3, 2 * j : 2 * j + 2] += cotangent[0, 0, i, j] * weight[0, 0]
    x = np.zeros((1, 1, 4, 4), np.float32)
    return jax.jit(program)(x, weight, cotangent), reference[None, None, 1:5, 1:5]


@sentinel(
    source=f"{XLA}44705",
    fault="jaxlib 0.10.1 and 0.10.2, CPU and CUDA: NaN, folded by the MLIR emitter",
    workaround="jnp.where with 0 where both operands of arctan2 are 0",
    avoided="no network of jaxsr takes an angle of comparisons",
)
def angle_of_an_exclusive_or_with_itself() -> Outcome:
    x = np.arange(5, dtype=np.int32)
    return jax.jit(lambda x: jnp.angle(jnp.logical_xor(x, x)))(x), np.zeros(5)


@sentinel(
    source=f"{JAX}33479",
    fault="jaxlib 0.8.1, CPU: a gather is folded with its axes exchanged; the thread is open",
)
def gather_from_a_constant() -> Outcome:
    tokens = np.tile(np.arange(6, dtype=np.int32), (2, 1))
    program = jax.jit(lambda: jax.vmap(lambda row: row[jnp.arange(6)])(jnp.asarray(tokens)) + 1)
    return program(), tokens + 1


@sentinel(
    source=f"{JAX}34096",
    fault="jaxlib 0.8.2: fails to compile in permutation_sort_simplifier; the thread is open",
)
def inverse_permutation_by_two_sorts() -> Outcome:
    x = np.array([3, 1, 2, 0, 5, 4, 9, 8, 7, 6])

    def program(x: jax.Array) -> jax.Array:
        order = jnp.argsort(x)
        return x[order][jnp.argsort(order)]

    with jax.enable_x64(True):
        return jax.jit(program)(x), x


@sentinel(
    source=f"{JAX}39264",
    fault="jaxlib 0.10.0 and 0.10.1, CPU: the gradient's compilation aborts",
    tolerance=1e-4,
)
def gradient_of_attention_over_10_players() -> Outcome:
    # The report's sizes: 512 sets of 10, 4 heads of 32. Summed over queries, so that softmax
    # has a gradient by the values alone, which NumPy can repeat.
    q, k, v = normal(3, 512, 4, 10, 32)

    def loss(v: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
        weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(32), axis=-1)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v).sum()

    logits = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / np.sqrt(32)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    reference = np.repeat(weights.sum(2)[..., None], 32, axis=-1)
    return jax.jit(jax.value_and_grad(loss))(v, q, k)[1], reference
