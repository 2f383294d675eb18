"""Products of groups of rows, each with a matrix of its own: the experts of a mixture.

On a TPU `jax.lax.ragged_dot` computes only the rows of each group; no sum runs over all experts.
Letters: S rows of all groups, G groups, M, K, N sizes of the matrices.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles, lowers
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.errors import UnsupportedTorchError

_ROWS_OF_BOTH = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)
"""(S, M), (S, N) -> (G, M, N): the contracted axis is split into groups."""


@jax.custom_vjp
def _products_of_rows(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    """(S, M), (S, N) -> (G, M, N), which JAX itself cannot differentiate."""
    return lax.ragged_dot_general(a, b, sizes, _ROWS_OF_BOTH)


def _products_forward(
    a: jax.Array, b: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _products_of_rows(a, b, sizes), (a, b, sizes)


def _products_backward(
    residuals: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, np.ndarray]:
    a, b, sizes = residuals
    no_gradient = np.zeros(sizes.shape, jax.dtypes.float0)
    return (
        lax.ragged_dot(b, cotangent.mT, sizes),
        lax.ragged_dot(a, cotangent, sizes),
        no_gradient,
    )


_products_of_rows.defvjp(_products_forward, _products_backward)


def grouped_matmul(a: jax.Array, b: jax.Array, ends: jax.Array | None) -> jax.Array:
    """The product of every group; `ends` (G,) holds the place behind each group's last row."""
    if ends is None:
        return jnp.matmul(a, b)
    sizes = jnp.diff(ends.astype(jnp.int32), prepend=0)
    if a.ndim == 2 and b.ndim == 3:
        return lax.ragged_dot(a, b, sizes)  # (S, K), (G, K, N) -> (S, N)
    if a.ndim == 3:
        return lax.ragged_dot(b.T, a.mT, sizes).T  # (G, M, K), (K, S) -> (M, S)
    return _products_of_rows(a.T, b, sizes)  # (M, S), (S, N) -> (G, M, N)


@handles(aten._grouped_mm.default)
def _grouped_mm(
    trace: Trace,
    func: torch._ops.OpOverload,
    args: tuple,
    kwargs: dict,
) -> JaxTensor:
    # On the meta device torch knows it for bfloat16 alone.
    names = ("self", "mat2", "offs", "bias", "out_dtype")
    operands: list[Any] = [
        args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)
    ]
    a, b, ends, bias, out_dtype = operands
    if (ends is None) != (a.dim() == b.dim() == 3) or a.dtype != b.dtype:
        raise UnsupportedTorchError(
            f"grouped_mm of {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}, offs "
            f"{None if ends is None else tuple(ends.shape)}; give equal dtypes, and offs unless "
            "both have three axes"
        )
    value = grouped_matmul(a.array(), b.array(), None if ends is None else ends.array())
    if bias is not None:
        value = value + bias.array()
    dtype = out_dtype or a.dtype
    with plain_torch():
        meta = torch.empty(value.shape, dtype=dtype, device="meta")
    tensors = [t for t in (a, b, bias) if isinstance(t, JaxTensor)]
    value = value.astype(to_jax_dtype(dtype))
    return trace.wrap_result(func, value, meta, any(t.needs_grad for t in tensors))


@lowers("transformers::grouped_mm_fallback")
def grouped_mm_fallback(input: jax.Array, weight: jax.Array, offs: jax.Array) -> jax.Array:
    return grouped_matmul(input, weight, offs)
