"""Torch's view operations as pairs of pure functions: read from the parent, write into it.

`read(parent)` gives the view's value; `write(parent, new)` gives the parent with the view's
elements replaced. Operations without a fast form go through an index map that torch itself
computes, by laying out `arange` with the root's strides and taking the same strided window.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.tensor import JaxTensor, View, stop_gradient, straight_through

aten = torch.ops.aten

_RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
_IDENTITIES = {aten.alias.default, aten.view_as.default, aten.lift_fresh.default}


def _reshape(parent: JaxTensor, shape: tuple[int, ...]) -> View:
    before = tuple(parent.shape)
    return View(parent, lambda p: p.reshape(shape), lambda p, new: new.reshape(before))


def _permute(parent: JaxTensor, order: tuple[int, ...]) -> View:
    order = tuple(d % len(order) for d in order) if order else ()
    back = tuple(int(i) for i in np.argsort(order)) if order else ()
    return View(parent, lambda p: p.transpose(order), lambda p, new: new.transpose(back))


def _slice(parent: JaxTensor, dim: int, start: int, stop: int, step: int = 1) -> View:
    window = (slice(None),) * dim + (slice(start, stop, step),)

    def read(p: jax.Array) -> jax.Array:
        return lax.slice_in_dim(p, start, max(stop, start), step, dim)

    def write(p: jax.Array, new: jax.Array) -> jax.Array:
        return new if new.shape == p.shape else p.at[window].set(new)

    return View(parent, read, write)


def _select(parent: JaxTensor, dim: int, index: int) -> View:
    where = (slice(None),) * dim + (index,)
    return View(
        parent,
        lambda p: lax.index_in_dim(p, index, dim, keepdims=False),
        lambda p, new: p.at[where].set(new),
    )


def _strided(root: JaxTensor, meta: torch.Tensor) -> View:
    """Any window of the root's memory, by torch's own strides."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        logical = torch.arange(root.meta.numel()).reshape(root.meta.shape)
        laid = torch.empty_strided(root.meta.size(), root.meta.stride(), dtype=torch.int64)
        laid.copy_(logical)
        window = laid.as_strided(meta.size(), meta.stride(), meta.storage_offset())
        index = window.contiguous().numpy()
    shape, flat = tuple(meta.shape), index.reshape(-1)
    unique = np.unique(flat).size == flat.size

    def read(p: jax.Array) -> jax.Array:
        return p.reshape(-1)[flat].reshape(shape)

    def write(p: jax.Array, new: jax.Array) -> jax.Array:
        return p.reshape(-1).at[flat].set(new.reshape(-1), unique_indices=True).reshape(p.shape)

    return View(root, read, write if unique else None)


def root_of(tensor: JaxTensor) -> JaxTensor:
    while tensor.view_of is not None:
        tensor = tensor.view_of.parent
    return tensor


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    lo, hi, _ = slice(start, end).indices(size)
    return lo, hi


def make_views(
    func: Any, parent: JaxTensor, args: tuple, kwargs: dict, metas: list[torch.Tensor]
) -> list[View]:
    """The views that `func(parent, ...)` returns; `metas` are its results on the shadow."""
    bound = _bind(func, args, kwargs)
    ndim = parent.dim()
    dim = bound.get("dim")
    dim = dim % ndim if isinstance(dim, int) and ndim else 0
    meta = metas[0] if metas else None
    if func in _RESHAPES and meta is not None:
        return [_reshape(parent, tuple(meta.shape))]
    if func in _IDENTITIES:
        return [View(parent, lambda p: p, lambda p, new: new)]
    if func is aten.detach.default:
        return [without_grad(View(parent, lambda p: p, lambda p, new: new))]
    if func is aten.permute.default:
        return [_permute(parent, tuple(bound["dims"]))]
    if func is aten.t.default or func is aten.numpy_T.default:
        return [_permute(parent, tuple(reversed(range(ndim))))]
    if func is aten.transpose.int:
        order = list(range(ndim))
        if ndim:
            a, b = bound["dim0"] % ndim, bound["dim1"] % ndim
            order[a], order[b] = order[b], order[a]
        return [_permute(parent, tuple(order))]
    if func is aten.slice.Tensor:
        lo, hi = _bounds(parent.shape[dim], bound.get("start"), bound.get("end"))
        return [_slice(parent, dim, lo, hi, bound.get("step") or 1)]
    if func is aten.select.int:
        return [_select(parent, dim, bound["index"] % parent.shape[dim])]
    if func is aten.unbind.int:
        return [_select(parent, dim, i) for i in range(parent.shape[dim])]
    if func in (aten.split.Tensor, aten.split_with_sizes.default):
        starts = np.cumsum([0] + [m.shape[dim] for m in metas])
        return [_slice(parent, dim, int(a), int(b)) for a, b in itertools.pairwise(starts)]
    if func is aten.expand.default and meta is not None:
        shape = tuple(meta.shape)
        if math.prod(shape) == parent.numel():
            return [_reshape(parent, shape)]
        return [View(parent, lambda p: jnp.broadcast_to(p, shape), None)]
    special = _reinterpret(func, parent, bound)
    if special is not None:
        return [special]
    root = root_of(parent)
    step = parent
    while step.view_of is not None:
        if step.view_of.dynamic:
            raise NotImplementedError
        step = step.view_of.parent
    if any(m.dtype != root.meta.dtype for m in metas):
        raise NotImplementedError
    return [_detached_like(parent, root, _strided(root, m)) for m in metas]


def _detached_like(parent: JaxTensor, root: JaxTensor, view: View) -> View:
    """Keeps a detach between the parent and the root in force for a window taken on the root."""
    step = parent
    while step.view_of is not None:
        if step.view_of.detached:
            return without_grad(view)
        step = step.view_of.parent
    return view


def without_grad(view: View) -> View:
    """The same window as a detached alias, which is also what a view taken under no_grad is."""
    read, write = view.read, view.write
    if write is None:
        return View(view.parent, lambda p: stop_gradient(read(p)), None, detached=True)

    def write_through(p: jax.Array, new: jax.Array) -> jax.Array:
        value = write(p, new)
        return straight_through(p, value) if jnp.issubdtype(p.dtype, jnp.inexact) else value

    return View(view.parent, lambda p: stop_gradient(read(p)), write_through, detached=True)


def _reinterpret(func: Any, parent: JaxTensor, bound: dict) -> View | None:
    if func is aten.view_as_real.default:
        return View(
            parent,
            lambda p: jnp.stack([p.real, p.imag], -1),
            lambda p, new: lax.complex(new[..., 0], new[..., 1]),
        )
    if func is aten.view_as_complex.default:
        return View(
            parent,
            lambda p: lax.complex(p[..., 0], p[..., 1]),
            lambda p, new: jnp.stack([new.real, new.imag], -1),
        )
    if func is aten._conj.default:
        return View(parent, jnp.conj, lambda p, new: jnp.conj(new))
    if func is aten._neg_view.default:
        return View(parent, jnp.negative, lambda p, new: -new)
    if func is aten.view.dtype and bound["dtype"].itemsize == parent.dtype.itemsize:
        target, source = to_jax_dtype(bound["dtype"]), to_jax_dtype(parent.dtype)
        if target.itemsize == bound["dtype"].itemsize and source.itemsize == target.itemsize:
            return View(
                parent,
                lambda p: lax.bitcast_convert_type(p, target),
                lambda p, new: lax.bitcast_convert_type(new, source),
            )
    return None


def _bind(func: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments]
    bound = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    bound.update(zip(names, args, strict=False))
    bound.update(kwargs)
    return bound
