"""Reads and writes at positions that an array gives: indexing, lookup, search and scatter."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.typing import ArrayLike

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import decomposes, lowers
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop._core.views import updated
from jaxsr.interop.lowerings.extremes import equal, highest, lowest

_Write = Callable[[jax.Array, jax.Array], jax.Array]


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


@lowers(aten.select_scatter.default)
def _select_scatter(x: jax.Array, source: jax.Array, dim: int, index: int) -> jax.Array:
    dim %= x.ndim
    index %= x.shape[dim]
    return updated(x, jnp.expand_dims(source, dim), dim, slice(index, index + 1))


@lowers(aten.diagonal_scatter.default)
def _diagonal_scatter(
    x: jax.Array, source: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    rows = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    first = jnp.arange(source.shape[-1]) + max(-offset, 0)
    rows = rows.at[..., first, first + offset].set(source)
    return jnp.moveaxis(rows, (-2, -1), (dim1, dim2))


# ---- lookup and search


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    return x[_place(indices)]


def _place(indices: Sequence[jax.Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if each is None else each for each in indices)


@lowers(aten.index_select.default)
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    return x[(slice(None),) * (dim % x.ndim) + (index.reshape(-1),)] if x.ndim else x


@lowers(aten.take.default)
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    return x.reshape(-1)[index]


@lowers(aten.gather.default)
def gather(x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    del sparse_grad
    if not x.ndim or not index.size:
        return jnp.broadcast_to(x.reshape(-1)[:1], index.size).reshape(index.shape)
    # torch does not count from the end here.
    return x.at[_places(dim, index)].get(mode="promise_in_bounds", wrap_negative_indices=False)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: jax.Array, output_size: int | None = None) -> jax.Array:
    return jnp.repeat(jnp.arange(repeats.shape[0]), repeats, total_repeat_length=output_size)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    x: ArrayLike, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False
) -> jax.Array:
    return searchsorted(boundaries, x, right=right)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    sequence: jax.Array,
    values: ArrayLike,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    side_name = "right" if right or side == "right" else "left"
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1)
    if sequence.ndim == 1:
        values = jnp.asarray(values)
        return jnp.searchsorted(sequence, values, side=side_name)
    if not values.size:
        return jnp.zeros(values.shape, jnp.int32)
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
    if x.dtype == jnp.bool_:
        numbers = (x.astype(jnp.int32), dim, index, source.astype(jnp.int32))
        return scatter_reduce(*numbers, reduce, include_self=include_self) != 0
    if not x.ndim:
        one = (x[None], 0, index.reshape(1), source.reshape(1))
        return scatter_reduce(*one, reduce, include_self=include_self)[0]
    if reduce == "prod" and jnp.issubdtype(x.dtype, jnp.floating):
        return _scatter_prod(x, dim, index, source, include_self)
    out = _reduced(x, dim, index, source, reduce, include_self)
    if reduce not in ("amax", "amin") or not jnp.issubdtype(x.dtype, jnp.floating):
        return out
    # Among equals torch shares the gradient; XLA's scatter would give each of them all of it.
    out = lax.stop_gradient(out)
    source, place = _scattered(source, dim, index)
    reached = jnp.zeros(x.shape, jnp.int32).at[place].add(1)
    ties, ties_here = equal(source, out[place]), equal(x, out)
    # torch counts the tensor's own element even where include_self=False leaves it out.
    counts_itself = ties_here & (jnp.asarray(include_self) | (reached == 0))
    count = ties_here.astype(jnp.int32).at[place].add(ties.astype(jnp.int32))
    share = jnp.where(counts_itself, x / jnp.maximum(count, 1), 0)
    share = share.at[place].add(jnp.where(ties, source / jnp.maximum(count[place], 1), 0))
    return straight_through(share, out)


def _reduced(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    include_self: bool = True,
) -> jax.Array:
    """`x` combined with the elements that are scattered onto it, by JAX's own gradients."""
    source, place = _scattered(source, dim, index)
    if not include_self:
        x = x.at[place].set(_NEUTRAL.get(reduce, lambda _: 0)(x.dtype))
    at = x.at[place]
    if reduce == "amax":
        return at.max(source)
    if reduce == "amin":
        return at.min(source)
    if reduce in ("prod", "multiply"):
        return at.multiply(source)
    total = at.add(source)
    if reduce in ("sum", "add"):
        return total
    count = jnp.full(x.shape, int(include_self), jnp.int32).at[place].add(1)
    count = jnp.maximum(count, 1)
    return total // count if jnp.issubdtype(x.dtype, jnp.integer) else total / count


_NEUTRAL = {"prod": lambda _: 1, "amax": lowest, "amin": highest}


def _of_numbers(lowering: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Sums and products of booleans, which are those of integers, other than 0."""

    @functools.wraps(lowering)
    def of_numbers(x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        if x.dtype != jnp.bool_:
            return lowering(x, *args, **kwargs)
        args = tuple(jnp.asarray(v, jnp.int32) if _is_bool(v) else v for v in args)
        return lowering(x.astype(jnp.int32), *args, **kwargs) != 0

    return of_numbers


def _is_bool(value: object) -> bool:
    return getattr(value, "dtype", type(value)) in (jnp.bool_, bool)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    x: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array, accumulate: bool = False
) -> jax.Array:
    place = _place(indices)
    *before, mask = place
    if not isinstance(mask, slice) and mask.dtype == jnp.bool_ and not any(map(_is_array, before)):
        return _put_behind(x, len(before), mask, values, accumulate)
    if accumulate:
        return _of_numbers(lambda x, values: x.at[place].add(values))(x, values)
    return _overwritten(x, values, lambda x, v: x.at[place].set(v), lambda x, v: x.at[place].add(v))


def _is_array(index: Any) -> bool:
    return not isinstance(index, slice)


def _put_behind(
    x: jax.Array, axis: int, mask: jax.Array, values: jax.Array, accumulate: bool
) -> jax.Array:
    """`x[:, mask] = values`, the mask's first axis being `axis`."""
    if not axis:
        return _put_where(x, mask, values, accumulate)
    places, front = tuple(range(axis, axis + mask.ndim)), tuple(range(mask.ndim))
    rank = x.ndim - mask.ndim + 1
    if values.ndim >= rank - axis:
        values = values.reshape(*[1] * (rank - values.ndim), *values.shape)
        values = jnp.moveaxis(values, axis, 0)
    moved = _put_where(jnp.moveaxis(x, places, front), mask, values, accumulate)
    return jnp.moveaxis(moved, front, places)


def _put_where(x: jax.Array, mask: jax.Array, values: jax.Array, accumulate: bool) -> jax.Array:
    """`x[mask] = values` where only the program knows how many rows the mask selects."""
    row_ndim = x.ndim - mask.ndim
    if values.ndim > row_ndim:
        if not values.shape[0]:
            return x
        # A row for each: the first of them, the second, and so on.
        order = jnp.cumsum(mask.reshape(-1), dtype=jnp.int32).reshape(mask.shape) - 1
        values = values[0] if values.shape[0] == 1 else values[jnp.maximum(order, 0)]
    mask = mask.reshape(*mask.shape, *[1] * row_ndim)
    return jnp.where(mask, x + values if accumulate else values, x)


@lowers(aten.masked_scatter.default)
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    return _put_where(x, mask, source.reshape(-1), False)


def _overwritten(x: jax.Array, values: jax.Array, write: _Write, add: _Write) -> jax.Array:
    """`write(x, values)` with torch's gradient, the transpose of a sum.

    It is read where values were written, even if a later write to the same index replaced them.
    """

    x, values = jnp.asarray(x), jnp.asarray(values)  # outside of jit they may be literals
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return write(x, values)
    written = write(jnp.zeros(x.shape, bool), jnp.ones(values.shape, bool))
    return straight_through(add(jnp.where(written, 0, x), values), write(x, values))


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: ArrayLike) -> jax.Array:
    """torch's gradient of the value counts an index once, however often it stands there."""
    if not x.ndim:
        return index_fill(x[None], 0, index, value)[0]
    axis = dim % x.ndim
    chosen = jnp.zeros(x.shape[axis], bool).at[index.reshape(-1)].set(True)
    others = [other for other in range(x.ndim) if other != axis]
    return jnp.where(jnp.expand_dims(chosen, others), jnp.asarray(value).astype(x.dtype), x)


@lowers(aten.index_copy.default)
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    if not x.ndim:
        return source.reshape(())
    places = [None] * (dim % x.ndim) + [index.reshape(-1)]
    shape = [index.size if axis == dim % x.ndim else n for axis, n in enumerate(x.shape)]
    return index_put(x, places, source.reshape(shape))


@lowers(aten.scatter.src)
def scatter(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    if not x.ndim:
        return scatter(x[None], 0, index.reshape(1), source.reshape(1))[0]
    source, place = _scattered(source, dim, index)
    return _overwritten(x, source, lambda x, v: x.at[place].set(v), lambda x, v: x.at[place].add(v))


@lowers(aten.scatter.value)
def scatter_number(x: jax.Array, dim: int, index: jax.Array, value: complex) -> jax.Array:
    number = np.asarray(value).astype(x.dtype)
    if not x.ndim:
        return jnp.where(index.size > 0, number, x)
    return x.at[_places(dim, index)].set(number, wrap_negative_indices=False)


@lowers(aten.put.default)
def put(x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    flat = index_put(x.reshape(-1), [index], source.reshape(index.shape), accumulate)
    return flat.reshape(x.shape)


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_by(
    x: jax.Array, dim: int, index: jax.Array, source: ArrayLike, *, reduce: str
) -> jax.Array:
    source = jnp.asarray(source, x.dtype)
    source = jnp.broadcast_to(source, index.shape) if source.ndim == 0 else source
    return _of_numbers(_reduced)(x, dim, index, source, reduce)


@lowers(aten.scatter_add.default)
def scatter_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    if not x.ndim:
        return scatter_add(x[None], 0, index.reshape(-1), source.reshape(-1))[0]
    source, place = _scattered(source, dim, index)
    return _of_numbers(lambda x, source: x.at[place].add(source, wrap_negative_indices=False))(
        x, source
    )


def _scattered(
    source: jax.Array, dim: int, index: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The elements of `source` that are scattered, and the places that they go to."""
    return source[tuple(slice(0, n) for n in index.shape)], _places(dim, index)


def _places(dim: int, index: jax.Array) -> tuple[jax.Array, ...]:
    """Where `gather` reads and `scatter` writes: at `index` along `dim`, and each in its row."""
    indices = list(jnp.indices(index.shape, sparse=True))
    if indices:
        indices[dim] = index
    return tuple(indices)


def _scatter_prod(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, include_self: bool
) -> jax.Array:
    """Products; the gradient of an element is the product of the others, even if there are zeros.

    Zeros are multiplied apart: one is their sum; the product of two is half the difference of the
    sum's square and the squares.
    """
    source, place = _scattered(source, dim, index)
    source = source.astype(x.dtype)
    takes_part = jnp.ones(x.shape, bool)
    if not include_self:
        takes_part = takes_part.at[place].set(False)
    x_is_zero, source_is_zero = takes_part & (x == 0), source == 0
    factors = jnp.where(takes_part & ~x_is_zero, x, 1), jnp.where(source_is_zero, 1, source)
    product = _nonzero_product(*factors, place)

    def over_zeros(of_x: jax.Array, of_source: jax.Array) -> jax.Array:
        added = jnp.where(source_is_zero, of_source, 0)
        return jnp.where(x_is_zero, of_x, 0).at[place].add(added)

    count = lax.stop_gradient(over_zeros(jnp.ones_like(x), jnp.ones_like(source)))
    one = over_zeros(x, source)
    two = (one * one - over_zeros(x * x, source * source)) / 2
    zeros = jnp.where(count == 0, 1, jnp.where(count == 1, one, jnp.where(count == 2, two, 0)))
    return product * zeros


@jax.custom_jvp
def _nonzero_product(x: jax.Array, source: jax.Array, place: tuple[jax.Array, ...]) -> jax.Array:
    return x.at[place].multiply(source)


@_nonzero_product.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (x, source, place), (dx, dsource, _) = primals, tangents
    product = _nonzero_product(x, source, place)
    return product, product * (dx / x).at[place].add(dsource / source)


@decomposes(aten.index_reduce.default)
def index_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    if x.dim() == 0:
        row = index_reduce(
            x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self=include_self
        )
        return row.reshape(())
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.reshape(shape).expand_as(source)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


@lowers(aten.nonzero_static.default)
def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    if not x.size:
        return jnp.full((size, x.ndim), fill_value)
    places = jnp.nonzero(x, size=size, fill_value=fill_value) if x.ndim else ()
    return jnp.stack(places, -1) if places else jnp.zeros((size, 0), jnp.int32)
