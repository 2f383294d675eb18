"""Torch's view operations as pairs of pure functions: read from the parent, write into it.

`read(parent)` gives the view's value; `write(parent, new)` gives the parent with the view's
elements replaced. Operators without a form here go through an index map: torch takes the same
strided window of an `arange` that is laid out with the root's strides.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from jaxsr.interop._core.accumulation import broadcast
from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import views
from jaxsr.interop._core.schema import Call, call_by_name
from jaxsr.interop._core.tensor import JaxTensor, View, stop_gradient, straight_through
from jaxsr.interop._core.trace_scope import Region, plain_torch

Metas = list[torch.Tensor]
Form = Callable[[JaxTensor, Call, Metas], list[View] | None]


def _reshape(parent: JaxTensor, shape: tuple[int, ...]) -> View:
    before = tuple(parent.shape)
    return View(parent, lambda p: p.reshape(shape), lambda p, new: new.reshape(before))


def _permute(parent: JaxTensor, order: tuple[int, ...]) -> View:
    order = tuple(d % len(order) for d in order) if order else ()
    back = tuple(int(i) for i in np.argsort(order)) if order else ()
    return View(parent, lambda p: p.transpose(order), lambda p, new: new.transpose(back))


def _slice(parent: JaxTensor, dim: int, start: int, stop: int, step: int = 1) -> View:
    def read(p: jax.Array) -> jax.Array:
        return lax.slice_in_dim(p, start, max(stop, start), step, dim)

    def write(p: jax.Array, new: jax.Array) -> jax.Array:
        return new if new.shape == p.shape else updated(p, new, dim, slice(start, stop, step))

    return View(parent, read, write)


class _Parts:
    """An array in parts along an axis, for views that read one each.

    The gradient of one `lax.split` is a concatenation; that of slices a sum of as many paddings.
    """

    def __init__(self, dim: int, sizes: Sequence[int]) -> None:
        self._dim, self._sizes = dim, tuple(sizes)
        self._made: tuple[jax.Array, Region | None, Sequence[jax.Array]] | None = None

    def part(self, index: int, p: jax.Array) -> jax.Array:
        """One of the parts of `p`, which are made once."""
        made = self._made
        if made is None or made[0] is not p or not Region.alive(made[1]):
            parts = lax.split(p, self._sizes, self._dim)
            self._made = made = (p, Region.current(), parts)
        return made[2][index]


def _select(parent: JaxTensor, dim: int, index: int) -> View:
    def write(p: jax.Array, new: jax.Array) -> jax.Array:
        return updated(p, jnp.expand_dims(new, dim), dim, slice(index, index + 1))

    return View(parent, lambda p: lax.index_in_dim(p, index, dim, keepdims=False), write)


def updated(p: jax.Array, new: jax.Array, dim: int, window: slice) -> jax.Array:
    """`p` with a window along `dim` replaced by `new`.

    CPU programs join the parts before, within and after the window. XLA would write the window in
    place, and read `p` for `new` in the same loop: `y[1:] = y[:-1]` together with a reshape makes
    every row the first (openxla/xla#49176).
    """
    start, stop, step = window.indices(p.shape[dim])
    place = (slice(None),) * dim + (window,)

    def joined(p: jax.Array, new: jax.Array) -> jax.Array:
        before = lax.slice_in_dim(p, 0, start, axis=dim)
        after = lax.slice_in_dim(p, stop, None, axis=dim)
        return lax.concatenate([before, new, after], dim)

    def written(p: jax.Array, new: jax.Array) -> jax.Array:
        return p.at[place].set(new)

    new = new.astype(p.dtype)
    if step != 1:
        return written(p, new)  # a scatter, which XLA does not fuse so
    return lax.platform_dependent(p, new, cpu=joined, default=written)


def _strided(root: JaxTensor, meta: torch.Tensor, parent: torch.Tensor) -> View:
    """Any window of the root's memory, by torch's own strides."""
    with plain_torch():
        logical = torch.arange(root.meta.numel()).reshape(root.meta.shape)
        laid = torch.empty_strided(root.meta.size(), root.meta.stride(), dtype=torch.int64)
        laid.copy_(logical)

        def places(shown: torch.Tensor) -> np.ndarray:
            window = laid.as_strided(shown.size(), shown.stride(), shown.storage_offset())
            return window.contiguous().numpy()

        index, of_parent = places(meta), places(parent)
    shape, flat = tuple(meta.shape), index.reshape(-1)
    in_parent = np.zeros(root.meta.numel(), bool)
    in_parent[of_parent.reshape(-1)] = True
    outside = ~in_parent[index]
    occupied = np.zeros(root.meta.numel(), bool)
    occupied[flat] = True
    unique = np.count_nonzero(occupied) == flat.size

    def read(p: jax.Array) -> jax.Array:
        values = p.reshape(-1)[flat].reshape(shape)
        # `as_strided` may leave the view that it is taken of: torch then loses the gradient.
        return jnp.where(outside, stop_gradient(values), values) if outside.any() else values

    def write(p: jax.Array, new: jax.Array) -> jax.Array:
        return p.reshape(-1).at[flat].set(new.reshape(-1), unique_indices=True).reshape(p.shape)

    return View(root, read, write if unique else None)


def make_views(
    func: torch._ops.OpOverload,
    form: Form | None,
    parent: JaxTensor,
    args: tuple,
    kwargs: dict,
    metas: Metas,
) -> list[View]:
    """The views that `func(parent, ...)` returns, by the form registered for it, if any.

    Raises:
      NotImplementedError: it reinterprets memory in a way that JAX arrays cannot.
    """
    result = None if form is None else form(parent, call_by_name(func, args, kwargs), metas)
    return _strided_views(parent, metas) if result is None else result


def _strided_views(parent: JaxTensor, metas: Metas) -> list[View]:
    root, steps = parent, list[View]()
    while root.view_of is not None:
        steps.append(root.view_of)
        root = root.view_of.parent
    if any(step.dynamic for step in steps) or any(m.dtype != root.meta.dtype for m in metas):
        raise NotImplementedError
    windows = [_strided(root, m, parent.meta) for m in metas]
    # A detach between the parent and the root holds for a window taken on the root.
    return [without_grad(w) for w in windows] if any(s.detached for s in steps) else windows


def without_grad(view: View) -> View:
    """The same window as a detached alias, as is a view taken under no_grad."""
    read, write = view.read, view.write
    if write is None:
        return View(view.parent, lambda p: stop_gradient(read(p)), None, detached=True)

    def write_through(p: jax.Array, new: jax.Array) -> jax.Array:
        value = write(p, new)
        return straight_through(p, value) if jnp.issubdtype(p.dtype, jnp.inexact) else value

    return View(view.parent, lambda p: stop_gradient(read(p)), write_through, detached=True)


# ---- forms: the parent, all arguments by name and the results on the meta device


@views(
    aten.view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
def _reshaped(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    return [_reshape(parent, tuple(metas[0].shape))]


@views(aten.transpose.int)
def _transposed(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    order = list(range(parent.dim()))
    if order:
        a, b = (arguments[name] % len(order) for name in ("dim0", "dim1"))
        order[a], order[b] = order[b], order[a]
    return [_permute(parent, tuple(order))]


def _axis(parent: JaxTensor, arguments: dict) -> int:
    return arguments["dim"] % parent.dim() if parent.dim() else 0


@views(aten.slice.Tensor)
def _sliced(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    dim = _axis(parent, arguments)
    low, high, _ = slice(arguments["start"], arguments["end"]).indices(parent.shape[dim])
    return [_slice(parent, dim, low, high, arguments["step"] or 1)]


@views(aten.select.int)
def _selected(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    dim = _axis(parent, arguments)
    return [_select(parent, dim, arguments["index"] % parent.shape[dim])]


@views(aten.unbind.int)
def _unbound(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    dim = _axis(parent, arguments)
    parts = _Parts(dim, [1] * parent.shape[dim])

    def row(i: int) -> View:
        view = _select(parent, dim, i)
        return View(parent, lambda p: parts.part(i, p).squeeze(dim), view.write)

    return [row(i) for i in range(parent.shape[dim])]


@views(aten.split.Tensor, aten.split_with_sizes.default)
def _split(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    dim = _axis(parent, arguments)
    sizes = [m.shape[dim] for m in metas]
    parts = _Parts(dim, sizes)
    views = []
    for i, (start, stop) in enumerate(itertools.pairwise(itertools.accumulate(sizes, initial=0))):
        view = _slice(parent, dim, start, stop)
        views.append(View(parent, functools.partial(parts.part, i), view.write))
    return views


@views(aten.expand.default)
def _expanded(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View]:
    shape = tuple(metas[0].shape)
    if math.prod(shape) == parent.numel():
        return [_reshape(parent, shape)]
    return [View(parent, lambda p: broadcast(p, shape), None)]


@views(aten.view.dtype)
def _reinterpreted(parent: JaxTensor, arguments: dict, metas: Metas) -> list[View] | None:
    itemsize = arguments["dtype"].itemsize
    if itemsize != parent.dtype.itemsize:
        return None
    target, source = to_jax_dtype(arguments["dtype"]), to_jax_dtype(parent.dtype)
    if (target.itemsize, source.itemsize) != (itemsize, itemsize):
        return None
    return [
        View(
            parent,
            lambda p: lax.bitcast_convert_type(p, target),
            lambda p, new: lax.bitcast_convert_type(new, source),
        )
    ]


def _maps(
    func: torch._ops.OpOverload,
    read: Callable[[jax.Array], jax.Array],
    write: Callable[[jax.Array], jax.Array],
) -> None:
    """Registers a view whose functions depend on no argument: `read(p)` and `write(new)`."""
    views(func)(lambda parent, *_: [View(parent, read, lambda p, new: write(new))])


def _pairs(x: jax.Array) -> jax.Array:
    return jnp.stack([x.real, x.imag], -1)


def _complex(x: jax.Array) -> jax.Array:
    return lax.complex(x[..., 0], x[..., 1])


def _same(x: jax.Array) -> jax.Array:
    return x


_maps(aten.alias.default, _same, _same)
_maps(aten.view_as_real.default, _pairs, _complex)
_maps(aten.view_as_complex.default, _complex, _pairs)
_maps(aten._conj.default, jnp.conj, jnp.conj)
_maps(aten._neg_view.default, jnp.negative, jnp.negative)
views(aten.detach.default)(
    lambda parent, *_: [without_grad(View(parent, _same, lambda p, new: new))]
)
views(aten.permute.default)(lambda parent, a, _: [_permute(parent, tuple(a["dims"]))])
views(aten.t.default)(lambda parent, *_: [_permute(parent, tuple(range(parent.dim()))[::-1])])
