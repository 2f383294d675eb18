"""Functions of packed LU factors and their pivots."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import Entry, Kind, handles
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace


def _of_pivots(func: torch._ops.OpOverload, place: int) -> Callable[[Callable], Callable]:
    """Registers a function of arrays. Torch wants int32 pivots; arrays of them show as int64."""

    def register(function: Callable) -> Callable:
        @handles(func)
        def handler(trace: Trace, called: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
            pivots: JaxTensor = args[place]
            with torch._C._DisableTorchDispatch():
                narrow = torch.empty_like(pivots.meta, dtype=torch.int32)
            metas = trace.meta_result(called, (*args[:place], narrow, *args[place + 1 :]), kwargs)
            return trace.functional(called, Entry(Kind.LOWERING, function), args, kwargs, metas)

        return function

    return register


def _permutation(pivots: jax.Array, rows: int) -> jax.Array:
    """Row i of the permuted matrix is row `permutation[i]`; pivots count from 1, as LAPACK's."""
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


@_of_pivots(aten.lu_unpack.default, 1)
def lu_unpack(
    packed: jax.Array, pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows, columns = packed.shape[-2:]
    rank = min(rows, columns)
    p = lower = upper = jnp.zeros((0,), packed.dtype)
    if unpack_data:
        lower = jnp.tril(packed[..., :rank], -1) + jnp.eye(rows, rank, dtype=packed.dtype)
        upper = jnp.triu(packed[..., :rank, :])
    if unpack_pivots:
        p = jax.nn.one_hot(_permutation(pivots, rows), rows, dtype=packed.dtype).mT
    return p, lower, upper


@_of_pivots(aten.linalg_lu_solve.default, 1)
def lu_solve(
    packed: jax.Array, pivots: jax.Array, b: jax.Array, *, left: bool = True, adjoint: bool = False
) -> jax.Array:
    """X of `A X = B`, of `Aᴴ X = B` where adjoint, of `X A = B` where not left."""
    if not left:  # Aᵀ Xᵀ = Bᵀ; of the conjugate where adjoint
        b = b.mT
    transposed = adjoint is left
    conjugated = adjoint
    shape = jnp.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed = jnp.broadcast_to(packed, shape + packed.shape[-2:])
    b = jnp.broadcast_to(b, shape + b.shape[-2:])
    order = _permutation(pivots, packed.shape[-1])
    order = jnp.broadcast_to(order, (*shape, order.shape[-1]))[..., None]

    def triangular(b: jax.Array, *, lower: bool) -> jax.Array:
        return lax.linalg.triangular_solve(
            packed, b, left_side=True, lower=lower, unit_diagonal=lower,
            transpose_a=transposed, conjugate_a=conjugated,
        )  # fmt: skip

    if transposed:
        x = triangular(triangular(b, lower=False), lower=True)
        x = jnp.take_along_axis(x, jnp.argsort(order, -2), -2)
    else:
        x = jnp.take_along_axis(b, order, -2)
        x = triangular(triangular(x, lower=True), lower=False)
    return x if left else x.mT
