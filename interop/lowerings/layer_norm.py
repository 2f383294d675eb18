"""Layer normalisation, whose input is stored for all that read it.

Each block of a transformer adds to a stream of features and normalises it. XLA's CPU fusions do not
store the stream: every reader adds all blocks so far up anew, and the gradient's stream likewise.
A Swin of 12 blocks became kernels of 800 operations, and took twice the time to compile.
"""

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core import torchax
from jaxsr.interop._core.dtypes import widened_floats
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import Entry, Kind, handles, lowers
from jaxsr.interop._core.stored_tensors import store
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace

_LEAST_STORED = 1 << 14
"""Elements from which on they are stored: it costs a call of 20 µs and may cost a copy."""


@handles(aten.native_layer_norm.default)
def layer_norm(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, ...]:
    """By torchax; whoever reads the input later reads the stored array, too."""
    x: JaxTensor = args[0] if args else kwargs["input"]
    # A transposed view is what convolutions made, whose results are stored anyway.
    is_stream = (
        x.meta.untyped_storage().nbytes() // x.element_size() == x.numel() >= _LEAST_STORED
        and x.meta.is_contiguous()
    )
    if is_stream and not x.cell.owner and not trace.gradients.recording:
        store(x)
    entry = Entry(Kind.TORCHAX, torchax.lowering(func))
    return trace.functional(func, entry, args, kwargs, trace.meta_result(func, args, kwargs))


@lowers(aten.native_group_norm.default)
def group_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    n: int,
    c: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """By torchax in float32, in which torch computes narrower ones, also of nothing."""
    if not x.size:
        statistics = jnp.zeros((n, groups), x.dtype)
        return x, statistics, statistics
    lowering = torchax.lowering(aten.native_group_norm.default)
    assert lowering is not None
    wide = map(widened_floats, (x, weight, bias))
    return lowering(*wide, n, c, pixels, groups, eps)
