"""Rows of a table, and sums, means and maxima of bags of them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.interpreters import ad, batching

from jaxsr.interop._core.dtypes import is_nan, to_jax_dtype, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles, lowers
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.xla_calls.primitives import cpu_primitive

_NAMES = (
    "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip
_SUM, _MEAN, _MAX = range(3)


def _rows(weight: jax.Array, index: jax.Array) -> jax.Array:
    if index.size != 1:
        return weight[index]
    # XLA reads one row with a slice. From a table split over GPUs it then gathers the whole table,
    # while each device looks up its share of two rows.
    twice = jnp.concatenate([index.reshape(1), index.reshape(1)])
    return weight[twice][:1].reshape(*index.shape, *weight.shape[1:])


def _scaled(rows: jax.Array, counts: jax.Array, *, divides: bool) -> jax.Array:
    return (rows / counts).astype(rows.dtype) if divides else rows


_scaled_p = cpu_primitive("jaxsr_by_frequency", _scaled)
"""The rows, whose gradient is divided by counts; the gradient of that one is not, as in torch."""


def _scaled_jvp(primals: tuple, tangents: tuple, *, divides: bool) -> tuple:
    (rows, counts), tangent = primals, tangents[0]
    if not isinstance(tangent, ad.Zero):
        tangent = _scaled_p.bind(tangent, counts, divides=divides)
    return _scaled_p.bind(rows, counts, divides=divides), tangent


def _scaled_transpose(ct: Any, rows: Any, counts: jax.Array, *, divides: bool) -> list:
    return [_scaled_p.bind(ad.instantiate_zeros(ct), counts, divides=not divides), None]


def _scaled_batch(operands: Sequence[jax.Array], batch: Sequence[Any], *, divides: bool) -> tuple:
    size = next(x.shape[i] for x, i in zip(operands, batch, strict=True) if i is not None)
    moved = (
        jnp.broadcast_to(x, (size, *x.shape)) if i is None else jnp.moveaxis(x, i, 0)
        for x, i in zip(operands, batch, strict=True)
    )
    return _scaled_p.bind(*moved, divides=divides), 0


ad.primitive_jvps[_scaled_p] = _scaled_jvp
ad.primitive_transposes[_scaled_p] = _scaled_transpose
batching.primitive_batchers[_scaled_p] = _scaled_batch


@lowers(aten.embedding.default)
def embedding(
    weight: jax.Array, index: jax.Array, padding: int = -1, by_frequency: bool = False, *_: Any
) -> jax.Array:
    rows = _rows(weight, index)
    if by_frequency:
        counts = jnp.zeros(weight.shape[0], jnp.int32).at[index.reshape(-1)].add(1)[index]
        rows = _scaled_p.bind(rows, counts[..., None].astype(jnp.float32), divides=False)
    if padding >= 0:
        # The padding row is read but never learns.
        rows = jnp.where((index == padding)[..., None], lax.stop_gradient(rows), rows)
    return rows


def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    *,
    mode: int,
    per_sample_weights: jax.Array | None,
    bags: int,
    padding_idx: int,
) -> jax.Array:
    """(rows, D), (n,), (bags,) or (bags + 1,) -> (bags, D); an empty bag gives zeros."""
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(indices.shape[0]), side="right") - 1
    counted = indices != padding_idx
    if offsets.shape[0] > bags:  # the last one says where the last bag ends
        counted &= jnp.arange(indices.shape[0]) < offsets[bags]
    rows = widened(weight[indices])
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if mode == _MAX:
        values = jnp.where(counted[:, None], rows, -jnp.inf)
        largest = jax.ops.segment_max(lax.stop_gradient(values), bag, bags)
        # torch's gradient goes to the first of equal maxima.
        is_largest = counted[:, None] & ((values == largest[bag]) | is_nan(values))
        places = jnp.where(is_largest, jnp.arange(len(values))[:, None], len(values))
        first = jax.ops.segment_min(places, bag, bags)
        padded = jnp.pad(values, ((0, 1), (0, 0)))  # an empty bag's zeros
        return jnp.take_along_axis(padded, jnp.minimum(first, len(values)), 0)
    sums = jax.ops.segment_sum(jnp.where(counted[:, None], rows, 0), bag, bags)
    if mode == _SUM:
        return sums
    sizes = jax.ops.segment_sum(counted.astype(jnp.int32), bag, bags)
    return sums / jnp.maximum(sizes, 1)[:, None]


@jax.custom_jvp
def _without_gradient(weight: jax.Array) -> jax.Array:
    return weight


@_without_gradient.defjvp
def _without_gradient_jvp(primals: tuple, tangents: tuple) -> tuple:
    raise UnsupportedTorchError(
        "embedding_bag with scale_grad_by_freq=True: torch's gradient of several bags divides by "
        "the counts of other rows; use torch.nn.Embedding(scale_grad_by_freq=True) and sum or "
        "average what it gives"
    )


@handles(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def _embedding_bag(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, ...]:
    call = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    metas = trace.meta_result(func, args, kwargs)
    weight, samples = call["weight"], call.get("per_sample_weights")
    rows = weight.array()
    value = embedding_bag(
        _without_gradient(rows) if call.get("scale_grad_by_freq") else rows,
        call["indices"].array(),
        call["offsets"].array(),
        mode=call.get("mode", _SUM),
        per_sample_weights=None if samples is None else samples.array(),
        bags=metas[0].shape[0],
        padding_idx=call.get("padding_idx", -1),
    )
    value = value.astype(to_jax_dtype(metas[0].dtype))
    needs = weight.needs_grad or (samples is not None and samples.needs_grad)
    result = trace.wrap_like(value, metas[0], needs)
    # Only torch's own backward reads the others.
    return result, *(trace.wrap(jnp.zeros(m.shape, jnp.int32), m.dtype) for m in metas[1:])
