"""Sums, means and maxima of bags of embeddings."""

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.dtypes import to_jax_dtype, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError

_NAMES = (
    "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip
_SUM, _MEAN, _MAX = range(3)


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
    """(rows, D), (n,), (bags,) -> (bags, D); an empty bag gives zeros."""
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(indices.shape[0]), side="right") - 1
    counted = indices != padding_idx
    rows = widened(weight[indices])
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if mode == _MAX:
        inside = (bag == jnp.arange(bags)[:, None]) & counted
        values = jnp.where(inside[..., None], rows, -jnp.inf)
        # torch's gradient goes to the first of equal maxima.
        first = values.argmax(1, keepdims=True)
        largest = jnp.take_along_axis(values, first, 1)[:, 0]
        return jnp.where(inside.any(1)[:, None], largest, 0)
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
