"""Reads and writes at positions that an array gives: indexing, lookup, search and scatter.

`x[i]` and `x[i] = v` where `i` is a traced integer are overridden here: torch would read `i` into
Python.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core import torchax
from jaxsr.interop._core.dispatch import Trace, is_differentiable
from jaxsr.interop._core.registry import lowers, overrides
from jaxsr.interop._core.tensor import JaxTensor, View, straight_through
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop._core.views import updated, without_grad
from jaxsr.interop.lowerings.extremes import equal

aten = torch.ops.aten


@lowers(aten.slice_scatter.default)
def _slice_scatter(
    x: jax.Array,
    source: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    return updated(x, source, dim % x.ndim, slice(start, end, step))


# ---- a traced integer as an index


def _is_traced_scalar(item: Any) -> bool:
    return (
        isinstance(item, JaxTensor)
        and item.dim() == 0
        and item.const is None
        and not item.dtype.is_floating_point
        and item.dtype not in (torch.bool, torch.uint8)
    )


def _is_basic(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, (int, slice))


def _selected(trace: Trace, x: JaxTensor, key: Any) -> JaxTensor | None:
    """The view that `key` means, or None where torch's own indexing does."""
    items = key if isinstance(key, tuple) else (key,)
    if not any(_is_traced_scalar(i) for i in items):
        return None
    if not all(_is_basic(i) or _is_traced_scalar(i) for i in items):
        return None
    view: Any = x[tuple(slice(None) if _is_traced_scalar(i) else i for i in items)]
    taken = sum(i is not None and i is not Ellipsis for i in items)
    dim, places = 0, []
    for item in items:
        if item is Ellipsis:
            dim += x.dim() - taken
        elif _is_traced_scalar(item):
            places.append((dim, item))
            dim += 1
        elif not isinstance(item, int) or isinstance(item, bool):
            dim += 1
    for place, index in reversed(places):
        view = _select(trace, view, place, index.array())
    return view


def _select(trace: Trace, parent: JaxTensor, dim: int, index: jax.Array) -> JaxTensor:
    view = View(
        parent,
        # Negative counts from the end, as in torch; beyond the end JAX clamps, torch raises.
        lambda p: lax.dynamic_index_in_dim(p, index, dim, keepdims=False),
        lambda p, new: lax.dynamic_update_index_in_dim(p, new, index, dim),
    )
    if not torch.is_grad_enabled():
        view = without_grad(view)
    view.dynamic = True
    with plain_torch():
        meta = parent.meta.select(dim, 0)
    parent.viewed = True
    needs = parent.needs_grad and torch.is_grad_enabled() and is_differentiable(meta)
    return JaxTensor(meta, parent.cell, view, needs)


@overrides(torch.Tensor.__getitem__)
def _getitem(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, key = args
    if isinstance(x, torch.Tensor):
        selected = _selected(trace, trace.as_jax_tensor(x), key)
        if selected is not None:
            return selected
    return func(*args, **kwargs)


@overrides(torch.Tensor.__setitem__)
def _setitem(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, key, value = args
    if isinstance(x, torch.Tensor):
        target = _selected(trace, trace.as_jax_tensor(x), key)
        if target is not None:
            target.copy_(value) if isinstance(value, torch.Tensor) else target.fill_(value)
            return None
    return func(*args, **kwargs)


# ---- lookup and search


def _rows(weight: jax.Array, index: jax.Array) -> jax.Array:
    if index.size != 1:
        return weight[index]
    # XLA reads one row with a slice. Of a table split over GPUs it then gathers the whole table,
    # while each device looks up its share of two rows.
    twice = jnp.concatenate([index.reshape(1), index.reshape(1)])
    return weight[twice][:1].reshape(*index.shape, *weight.shape[1:])


@lowers(aten.embedding.default)
def embedding(
    weight: jax.Array, index: jax.Array, padding: int = -1, by_frequency: bool = False, *_: Any
) -> jax.Array:
    rows = _rows(weight, index)
    if by_frequency:
        counts = jnp.zeros(weight.shape[0], weight.dtype).at[index.reshape(-1)].add(1)
        share = (1 / counts[index])[..., None]
        rows = rows * share + lax.stop_gradient(rows * (1 - share))
    if padding >= 0:
        # The padding row is read but never learns.
        rows = jnp.where((index == padding)[..., None], lax.stop_gradient(rows), rows)
    return rows


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: jax.Array, output_size: int | None = None) -> jax.Array:
    return jnp.repeat(jnp.arange(repeats.shape[0]), repeats, total_repeat_length=output_size)


@lowers(aten.searchsorted.Tensor)
def searchsorted(
    sequence: jax.Array,
    values: jax.Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    side_name = "right" if right or side == "right" else "left"
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1)
    if sequence.ndim == 1:
        return jnp.searchsorted(sequence, values, side=side_name)
    rows = sequence.reshape(-1, sequence.shape[-1])
    queries = values.reshape(rows.shape[0], -1)
    positions = jax.vmap(lambda s, v: jnp.searchsorted(s, v, side=side_name))(rows, queries)
    return positions.reshape(values.shape)


# ---- scatter


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    general = torchax.lowering(aten.scatter_reduce.two)
    assert general is not None
    out = general(x, dim, index, source, reduce, include_self=include_self)
    if reduce not in ("amax", "amin") or not jnp.issubdtype(x.dtype, jnp.floating) or x.ndim == 0:
        return out
    # Among equals torch shares the gradient; XLA's scatter would give each of them all of it.
    out = lax.stop_gradient(out)
    source = source[tuple(slice(0, n) for n in index.shape)]
    indices = list(jnp.indices(index.shape, sparse=True))
    indices[dim] = index
    place = tuple(indices)
    reached = jnp.zeros(x.shape, x.dtype).at[place].add(1)
    ties, ties_here = equal(source, out[place]), equal(x, out)
    # torch counts the tensor's own element even where include_self=False leaves it out.
    counts_itself = ties_here & (jnp.asarray(include_self) | (reached == 0))
    count = ties_here.astype(x.dtype).at[place].add(ties.astype(x.dtype))
    share = jnp.where(counts_itself, x / jnp.maximum(count, 1), 0)
    share = share.at[place].add(jnp.where(ties, source / jnp.maximum(count[place], 1), 0))
    return straight_through(share, out)
