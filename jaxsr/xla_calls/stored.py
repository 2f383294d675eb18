# pyright: basic
# JAX gives primitives no types.
"""Arrays that all readers read from memory, so that decisions and weights use the same value.

XLA makes an array anew in each fusion that reads it. On CPUs one fusion rounds a product and a sum,
another one makes a multiply-add of them: `floor` of one position and the fraction of the other then
lie a pixel apart, and a maximum is equal to none of the elements that it was found among. XLA keeps
`optimization_barrier` for GPUs and TPUs; its compiler for CPUs drops it before it fuses.
"""

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jaxsr.xla_calls.calls import Arrays, Attributes, enabled, kernel
from jaxsr.xla_calls.primitives import cpu_primitive
from jaxsr.xla_calls.rows import RowsCall

_LEAST_CALLED = 1 << 14
"""Elements from which on a call, which costs 20 µs, takes less time than a loop over them."""


def stored(x: jax.Array) -> jax.Array:
    """The array itself; all that read it read the same numbers. Its cotangent is also stored."""
    return stored_p.bind(x)


@kernel("jaxsr_stored")
def _stored(inputs: Arrays, outputs: Arrays, options: Attributes) -> None:
    """The result lies where the operand lay."""


def _on_cpu(x: jax.Array) -> jax.Array:
    if not x.size:
        return x
    return _by_call(x) if enabled() and x.ndim and x.size >= _LEAST_CALLED else _by_loop(x)


def _by_call(x: jax.Array) -> jax.Array:
    """By a call that XLA does not see through."""
    call = RowsCall(
        kernel=_stored,
        shape=x.shape,
        axes=("n", "n"),
        channels_last=(False, False),
        in_place=True,
        elementwise=True,
    )
    return call(x)


def _by_loop(x: jax.Array) -> jax.Array:
    """By a loop of two rounds, whose result XLA does not know to be its operand."""

    def keep(step: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(step < 2, x, jnp.zeros((), x.dtype))

    return jax.lax.fori_loop(0, 2, keep, x)


stored_p = cpu_primitive("jaxsr_stored", jax.lax.optimization_barrier, _on_cpu)
stored_p.def_impl(lambda x: x)  # an array outside of a program is in memory
ad.deflinear2(stored_p, lambda ct, _: [stored(ct)])
batching.defvectorized(stored_p)
