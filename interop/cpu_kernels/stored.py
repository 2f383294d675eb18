"""An array that XLA does not make again."""

import jax

from jaxsr.ops._by_rows import RowsCall
from jaxsr.ops._cpu_calls import Arrays, Attributes, kernel


@kernel("jaxsr_stored")
def _stored(inputs: Arrays, outputs: Arrays, options: Attributes) -> None:
    """The result lies where the operand lay."""


def stored_by_call(x: jax.Array) -> jax.Array:
    """`stored_p` by a call that XLA does not see through; also where kernels are XLA's."""
    if not x.size or not x.ndim:
        return x
    call = RowsCall(
        kernel=_stored,
        shape=x.shape,
        axes=("n", "n"),
        channels_last=(False, False),
        in_place=True,
        elementwise=True,
    )
    return call(x)
