"""`x[i]` and `x[i] = v` where `i` is a traced integer: torch would read `i` into Python."""

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dtypes import is_differentiable
from jaxsr.interop._core.index_bounds import Use, look_at_index
from jaxsr.interop._core.registry import overrides
from jaxsr.interop._core.tensor import JaxTensor, View
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop._core.views import without_grad


def _is_traced_scalar(item: object) -> bool:
    return (
        isinstance(item, JaxTensor)
        and item.dim() == 0
        and item.const is None
        and not item.dtype.is_floating_point
        and item.dtype not in (torch.bool, torch.uint8)
    )


def _is_basic(item: object) -> bool:
    return item is None or item is Ellipsis or isinstance(item, (int, slice))


def _numbers_apart(trace: Trace, x: torch.Tensor, key: Any) -> tuple[Any, Any] | None:
    """The view that traced integers of a key select, and the rest of the key.

    None where there are none: torch's own indexing does.
    """
    items = key if isinstance(key, tuple) else (key,)
    if not any(_is_traced_scalar(i) for i in items) or any(isinstance(i, bool) for i in items):
        return None
    array = trace.as_jax_tensor(x)
    if all(_is_basic(i) or _is_traced_scalar(i) for i in items):
        return _selected(trace, array, items), ()
    numbers: list[Any] = []
    for item in items:
        if _is_traced_scalar(item) or item is Ellipsis:
            numbers.append(item)
        elif item is not None:
            is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
            numbers += [slice(None)] * (item.dim() if is_mask else 1)
    rest = tuple(i for i in items if not _is_traced_scalar(i))
    return _selected(trace, array, tuple(numbers)), rest


def _selected(trace: Trace, x: JaxTensor, items: tuple[Any, ...]) -> JaxTensor:
    """The view that a key of numbers, slices and new axes means."""
    view: Any = x[tuple(slice(None) if _is_traced_scalar(i) else i for i in items)]
    taken = sum(i is not None and i is not Ellipsis for i in items)
    dim, places = 0, []
    for item in items:
        if item is Ellipsis:
            dim += x.dim() - taken
        elif _is_traced_scalar(item):
            places.append((dim, item))
            dim += 1
        elif not isinstance(item, int):
            dim += 1
    for place, index in reversed(places):
        look_at_index(torch.Tensor.select, Use(index, view.shape[place], negative=True))
        number = index.array()  # JAX adds the length to a negative one in its dtype
        number = number.astype(jnp.promote_types(number.dtype, jnp.int32))
        view = _select(trace, view, place, number)
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
    parent.views.append(weakref.ref(view))
    needs = parent.needs_grad and torch.is_grad_enabled() and is_differentiable(meta)
    return JaxTensor(meta, parent.cell, view, needs)


@overrides(torch.Tensor.__getitem__)
def _getitem(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    x, key = args
    apart = _numbers_apart(trace, x, key) if isinstance(x, torch.Tensor) else None
    if apart is not None:
        selected, rest = apart
        return selected[rest] if rest else selected
    return func(*args, **kwargs)


@overrides(torch.Tensor.__setitem__)
def _setitem(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> None:
    x, key, value = args
    apart = _numbers_apart(trace, x, key) if isinstance(x, torch.Tensor) else None
    if apart is not None:
        target, rest = apart
        target[rest or ...] = value
        return None
    return func(*args, **kwargs)
