"""Programs for CPUs with a choice of kernels (`JAXSR_CPU_KERNELS`)."""

import os
from collections.abc import Callable
from typing import Any


def program_with(kernels: str, function: Callable[..., Any], *arrays: Any) -> Callable[..., Any]:
    """The function, compiled with these kernels; a call waits for its result."""
    import jax

    from jaxsr.xla_calls.calls import SWITCH

    os.environ[SWITCH] = kernels
    program = jax.jit(function).lower(*arrays).compile()

    def call(*arrays: Any) -> None:
        os.environ[SWITCH] = kernels  # read by the calls, too
        jax.block_until_ready(program(*arrays))

    return call
