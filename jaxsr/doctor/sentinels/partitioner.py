"""Programs that went wrong when XLA split them over devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsr.doctor.sentinels.sentinel import JAX, XLA, NotHereError, Outcome, sentinel


def _mesh_of_4() -> Mesh:
    if len(jax.devices()) < 4:
        raise NotHereError("4 devices")
    return Mesh(np.array(jax.devices()[:4]), ("d",))


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
