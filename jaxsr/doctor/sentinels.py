"""Small programs that a release of jaxlib or libtpu compiled wrongly, or died on.

A new release is judged by them, not by its number. To add one, write a function under `@sentinel`
that returns what the device computes, and the same by NumPy in float64. `jaxsr.doctor.compiler`
runs them in a child process. What the fuzz of `tests/doctor` finds belongs here, too.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsr.runtime.xla_flags import product_fusion

JAX = "https://github.com/jax-ml/jax/issues/"
XLA = "https://github.com/openxla/xla/issues/"

_YNN_OFF = "import jaxsr first, or XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type="
_OTHER_RELEASE = "install another jaxlib, or compute this on another platform"


class NotHereError(Exception):
    """A sentinel needs what this machine does not have; its message says what."""


Outcome = tuple[Any, Any]
"""What the device computed, and the reference: arrays of one shape."""


@dataclass(frozen=True)
class Sentinel:
    """One program, and what is known about it."""

    name: str
    run: Callable[[], Outcome]
    """Computes both; raises `NotHereError` where it cannot run."""
    source: str
    """The thread, or the file of this project, that describes the fault."""
    fault: str
    """Where it was seen, and what went wrong."""
    workaround: str
    """What to do in one's own JAX code."""
    avoided: str | None
    """How jaxsr's programs avoid it; None where they are at risk."""
    tolerance: float
    """Of the result, in units of the reference's largest value."""


SENTINELS: dict[str, Sentinel] = {}


def sentinel(
    *,
    source: str,
    fault: str,
    workaround: str = _OTHER_RELEASE,
    avoided: str | None = None,
    tolerance: float = 1e-5,
) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    """Registers a function as the sentinel of its name; the fields of `Sentinel`."""

    def register(run: Callable[[], Outcome]) -> Callable[[], Outcome]:
        name = run.__name__.replace("_", " ")
        SENTINELS[name] = Sentinel(name, run, source, fault, workaround, avoided, tolerance)
        return run

    return register


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _mesh_of_4() -> Mesh:
    if len(jax.devices()) < 4:
        raise NotHereError("4 devices")
    return Mesh(np.array(jax.devices()[:4]), ("d",))


# ---- products and sums rounded once


@sentinel(
    source="jaxsr/interop/lowerings/reductions.py",
    fault="jaxlib 0.10.2, CPU: NaN, for a product less a peak of -1e38 is rounded once",
    workaround="mask with -inf, or after the scale",
    avoided="softmax gives the peak's own weight as 1",
)
def softmax_of_a_masked_row() -> Outcome:
    scores = _normal(4, 7)
    hidden = np.zeros((4, 7), np.float32)
    hidden[1] = np.finfo(np.float32).min
    program = jax.jit(lambda s, m: jax.nn.softmax((s + m) / np.float32(8**0.5)))
    masked = (scores.astype(np.float64) + hidden) / 8**0.5
    masked[1] = 0  # what the scores add to the largest number is lost
    weights = np.exp(masked - masked.max(1, keepdims=True))
    return program(scores, hidden), weights / weights.sum(1, keepdims=True)


# ---- the YNN fusion of CPUs


@sentinel(
    source=f"{JAX}40412",
    fault="jaxlib 0.10.2, CPU: SIGSEGV in the YNN fusion",
    workaround=_YNN_OFF,
)
def product_summed_at_rank_7() -> Outcome:
    a, b = _normal(2, 3, 1, 2, 2, 8, 8, 8)
    return jax.jit(lambda a, b: (a * b).sum(3))(a, b), (a.astype(np.float64) * b).sum(3)


@sentinel(
    source=f"{JAX}39257",
    fault="jaxlib 0.10.2 and 0.11.0, CPU: SIGSEGV or a hang in the YNN fusion",
    workaround=_YNN_OFF,
)
def broadcast_product_summed_at_rank_8() -> Outcome:
    # Of the sizes in the report; those a third of it do not crash.
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
    a = np.eye(64, dtype=np.float32) + np.tril(_normal(systems, 16, 64, 64), -1) / 64
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
    x = _normal(64, 128)
    window = ((2, 1), (2, 1), ((0, 0), (0, 0)))
    program = jax.jit(
        lambda x: lax.reduce_window(x, -np.inf, lax.max, *window, base_dilation=(1, 2))
    )
    reference = np.full((32, 255), -np.inf)
    reference[:, ::2] = x.reshape(32, 2, 128).max(1)
    return program(x), reference


@sentinel(
    source="jaxsr/models/llama/transposed.py",
    fault="none is known: generate compiles its decode loops so on CPUs, for a few rows",
    workaround="generate with --batch-size 1, without --deterministic",
)
def products_of_few_rows_by_ynn() -> Outcome:
    options = product_fusion()
    if not options:
        raise NotHereError("a jaxlib with this fusion")
    x, panels, keys = _normal(4, 192), _normal(3, 192, 64), _normal(4, 3, 2, 64)

    def program(x: jax.Array, panels: jax.Array, keys: jax.Array) -> jax.Array:
        rows = jnp.broadcast_to(x, (3, 4, 192))
        y = jnp.einsum("pmi,pio->pmo", rows, panels)
        return jnp.einsum("mkto,kmo->mkt", keys, y)  # the reference adds up more exactly

    compiled = jax.jit(program).lower(x, panels, keys).compile(options)
    exact = np.einsum("mi,pio->pmo", x.astype(np.float64), panels)
    return compiled(x, panels, keys), np.einsum("mkto,kmo->mkt", keys.astype(np.float64), exact)


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
    weight, cotangent = _normal(1, 1, 3, 2), _normal(1, 1, 2, 3)

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
    q, k, v = _normal(3, 512, 4, 10, 32)

    def loss(v: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
        weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(32), axis=-1)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v).sum()

    logits = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / np.sqrt(32)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    reference = np.repeat(weights.sum(2)[..., None], 32, axis=-1)
    return jax.jit(jax.value_and_grad(loss))(v, q, k)[1], reference


# ---- the partitioner


@sentinel(
    source=f"{JAX}39301",
    fault="jaxlib 0.10.2 to 0.11.2, 4 devices: fails to compile, an invalid concatenation",
    workaround="jax.lax.with_sharding_constraint to replicate the operand",
    avoided="shapes are split by batch, never to one element a device",
)
def concatenations_of_one_element_a_device() -> Outcome:
    sharding = NamedSharding(_mesh_of_4(), PartitionSpec("d"))
    x = np.arange(4, dtype=np.float32)

    def program(x: jax.Array) -> jax.Array:
        def rolled(left: int) -> jax.Array:
            ends = [(-left, 0, 0)], [(0, left - 4, 0)]
            return lax.concatenate([lax.pad(x, np.float32(0), end) for end in ends], 0)

        return rolled(3) + rolled(1)

    return jax.jit(program)(jax.device_put(x, sharding)), np.roll(x, -3) + np.roll(x, -1)


@sentinel(
    source=f"{XLA}49143",
    fault="libtpu 0.0.48, 4 chips: an accumulated scatter is summed over chips too often",
    workaround="XLA_FLAGS=--xla_disable_hlo_passes=while-loop-all-reduce-code-motion",
)
def embedding_gradient_accumulated_in_a_scan() -> Outcome:
    by_rows = NamedSharding(_mesh_of_4(), PartitionSpec("d"))
    by_batch = NamedSharding(by_rows.mesh, PartitionSpec(None, "d"))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 96, (2, 8, 8)).astype(np.int32)
    cotangents = (rng.integers(-8, 8, (2, 8, 8, 16)) / 16).astype(np.float32)

    def program(table: jax.Array, ids: jax.Array, cotangents: jax.Array) -> jax.Array:
        def accumulate(total: jax.Array, batch: Any) -> tuple[jax.Array, None]:
            rows, cotangent = batch
            gradient = jax.vjp(lambda table: table[rows], table)[1](cotangent)[0]
            return lax.with_sharding_constraint(total + gradient, by_rows), None

        return lax.scan(accumulate, jnp.zeros_like(table), (ids, cotangents))[0]

    reference = np.zeros((96, 16))
    np.add.at(reference, ids, cotangents)
    placed = (jax.device_put(value, by_batch) for value in (ids, cotangents))
    return jax.jit(program)(jax.device_put(np.zeros((96, 16), np.float32), by_rows), *placed), (
        reference
    )


# ---- TPUs


@sentinel(
    source=f"{JAX}39025",
    fault="libtpu 0.0.42: rows of the gradient are zero, outside jit",
    workaround="compute the gradient under jax.jit",
    avoided="jaxsr's steps are jitted",
)
def gradient_of_a_gather_outside_jit() -> Outcome:
    x, cotangent = _normal(2, 256, 8, 128)
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
    x, scale = _normal(2, 8, 256).astype(jnp.bfloat16)

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
    q, k, v = _normal(3, 1, 32, 4, 64)
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) / 8
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return jax.jit(jax.nn.dot_product_attention)(q, k, v), np.einsum("bhqk,bkhd->bqhd", weights, v)


# ---- CUDA


@sentinel(
    source=f"{JAX}39336",
    fault="jaxlib 0.10.2, CUDA sm_120: the factor is not applied to the bias",
    workaround="XLA_FLAGS=--xla_gpu_autotune_level=3",
)
def scaled_sum_of_product_and_bias() -> Outcome:
    a, b, bias = _normal(32, 15), _normal(100, 15), 100 * _normal(32)
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
    x = _normal(1, 1000, 3)

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
