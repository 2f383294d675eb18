"""`x[i]` and `x[i] = v` where `i` is a traced integer: torch would read it into Python."""

from typing import Any

import jax
import torch
from jax import lax

from jaxsr.interop._core.dispatch import Trace, handles_function, is_differentiable
from jaxsr.interop._core.tensor import JaxTensor, View
from jaxsr.interop._core.views import without_grad


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
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        meta = parent.meta.select(dim, 0)
    parent.viewed = True
    needs = parent.needs_grad and torch.is_grad_enabled() and is_differentiable(meta)
    return JaxTensor(meta, parent.cell, view, needs)


@handles_function(torch.Tensor.__getitem__)
def _getitem(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, key = args
    if isinstance(x, torch.Tensor):
        found = _selected(trace, trace._ours(x), key)
        if found is not None:
            return found
    return func(*args, **kwargs)


@handles_function(torch.Tensor.__setitem__)
def _setitem(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, key, value = args
    if isinstance(x, torch.Tensor):
        target = _selected(trace, trace._ours(x), key)
        if target is not None:
            target.copy_(value) if isinstance(value, torch.Tensor) else target.fill_(value)
            return None
    return func(*args, **kwargs)


@handles_function(torch.Tensor.detach_)
def _detach_(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    # torch implements it above its dispatcher, where the dispatch mode does not see it.
    (x,) = args
    if isinstance(x, JaxTensor):
        if is_differentiable(x.meta) and x.const is None:
            x.assign(lax.stop_gradient(x.array()))
        x.needs_grad = False
    return x
