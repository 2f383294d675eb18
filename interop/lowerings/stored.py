"""Arrays that all readers read from memory."""

import jax
from jax.interpreters import ad

from jaxsr.interop.cpu_kernels.stored import stored_by_call
from jaxsr.ops._cpu_primitives import cpu_primitive


def stored(x: jax.Array) -> jax.Array:
    """The array itself; all that read it read the same numbers.

    XLA makes an array anew in each fusion that reads it. On CPUs one fusion rounds a product and a
    sum, another one makes a multiply-add of them: a maximum is then equal to none of the elements
    that it was found among, and its gradient is lost. What a custom call writes is made once. Its
    cotangent is stored, too.
    """
    return stored_p.bind(x)


stored_p = cpu_primitive("jaxsr_stored", lambda x: x, stored_by_call)
ad.deflinear2(stored_p, lambda ct, _: [stored(ct)])
