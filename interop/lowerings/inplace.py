"""Operators that change a tensor itself: copies into it, a new shape, a detachment.

Ordinary in-place operators (`add_`, `relu_`) need no entry: the dispatcher writes the result of the
functional form.
"""

from collections.abc import Callable

import torch
from jax import lax

from jaxsr.interop._core.dtypes import is_differentiable
from jaxsr.interop._core.integer_bounds import bounds_of
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles, overrides
from jaxsr.interop._core.schema import name_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError


@handles(aten.copy_.default)
def _copy_(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> JaxTensor:
    target, source = args[0], args[1]
    if target.const is not None and source.const is not None:
        target.cell.before_write()
        target.const.copy_(source.const)
        target.cell.version += 1
        return target
    trace.meta_result(func, args, kwargs)
    trace.write(target, source.array(), source.needs_grad, bounds_of(source))
    return target


_OVERLOADS = {
    aten.squeeze_.default: "default",
    aten.squeeze_.dim: "dim",
    aten.squeeze_.dims: "dims",
    aten.unsqueeze_.default: "default",
    aten.transpose_.default: "int",
    aten.t_.default: "default",
    aten.as_strided_.default: "default",
}


@handles(*_OVERLOADS)
def _reshape_in_place(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> JaxTensor:
    """A new shape for the same tensor object: it becomes a view of its old value."""
    target = args[0]
    if target.views:
        raise UnsupportedTorchError(
            f"{name_of(func)} on a tensor that has views; use the form without underscore"
        )
    before = target.twin()
    packet = getattr(aten, func.overloadpacket.__name__.rstrip("_"))
    viewed = trace.dispatch(getattr(packet, _OVERLOADS[func]), (before, *args[1:]), kwargs)
    with torch._C._DisableTorchDispatch():
        func(target, *args[1:], **kwargs)
    target.become(viewed)
    return target


@overrides(torch.Tensor.detach_)
def _detach_(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    # torch implements it above its dispatcher, where the dispatch mode does not see it.
    (x,) = args
    if isinstance(x, JaxTensor):
        if is_differentiable(x.meta) and x.const is None:
            x.assign(lax.stop_gradient(x.array()))
        x.needs_grad = False
    return x
