"""Layer normalisation, whose input is stored for all that read it.

Each block of a transformer adds to a stream of features and normalises it. XLA's CPU fusions do not
store the stream: every reader adds all blocks so far up anew, and the gradient's stream likewise.
A Swin of 12 blocks became kernels of 800 operations, and took twice the time to compile.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.accumulation import mean
from jaxsr.interop._core.dtypes import widened
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
    """Later readers of the input also read the stored array."""
    x: JaxTensor = args[0] if args else kwargs["input"]
    # A transposed view comes from convolutions, whose results are stored anyway.
    is_stream = (
        x.meta.untyped_storage().nbytes() // x.element_size() == x.numel() >= _LEAST_STORED
        and x.meta.is_contiguous()
    )
    if is_stream and not x.cell.owner and not trace.gradients.recording:
        store(x)
    return trace.functional(func, _ENTRY, args, kwargs, trace.meta_result(func, args, kwargs))


def _layer_norm(
    x: jax.Array,
    shape: Sequence[int],
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    out, means, rstd = _normalized(widened(x), tuple(range(-len(shape), 0)), eps)
    return _affine(out, weight, bias), means, rstd


_ENTRY = Entry(Kind.LOWERING, _layer_norm)


def _normalized(
    x: jax.Array, axes: tuple[int, ...], eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`x` with mean 0 and variance 1 over axes, the mean, and the inverse standard deviation."""
    means = mean(x, axes, keepdims=True)
    centred = x - means
    rstd = lax.rsqrt(mean(jnp.square(centred), axes, keepdims=True) + eps)
    return centred * rstd, means, rstd


def _affine(x: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


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
    """In float32, in which torch computes narrower ones, also of nothing."""
    if not x.size:
        statistics = jnp.zeros((n, groups), x.dtype)
        return x, statistics, statistics
    # Not (n, groups, -1): XLA would add up its pixels as they lie before.
    grouped = widened(x).reshape(n, groups, c // groups, *x.shape[2:])
    out, means, rstd = _normalized(grouped, tuple(range(2, grouped.ndim)), eps)
    per_channel = (c, *[1] * (x.ndim - 2))
    weight, bias = (v if v is None else v.reshape(per_channel) for v in (weight, bias))
    out = _affine(out.reshape(x.shape), weight, bias)
    return out, means.reshape(n, groups), rstd.reshape(n, groups)
