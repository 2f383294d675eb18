"""Tensors that all later readers read from memory, among them those that a decision is made of.

`floor` of a position and its fraction, a maximum and the comparison with it, a quotient and its
remainder belong together, but XLA's fusions make the position anew and may round it otherwise
(`jaxsr/xla_calls/stored.py`). So an operator that decides stores its operand, and whoever reads it
later reads the same stored array.
"""

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace_scope import Region
from jaxsr.xla_calls.stored import stored

DECIDING = {
    getattr(aten, name)
    for name in (
        "floor", "ceil", "round", "trunc", "frac", "fmod", "remainder", "floor_divide",
        "bucketize", "searchsorted", "argmax", "argmin", "amax", "amin", "aminmax", "max", "min",
        "median", "nanmedian", "kthvalue", "mode", "topk", "sort", "cummax", "cummin",
        "histc",
    )
}  # fmt: skip
"""Operators whose result jumps where their operand moves a little."""
_CASTS = {aten._to_copy, aten.to}
_ROUNDING = {aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default}


def store_decided(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    """Stores the operands of an operator that decides."""
    if func.overloadpacket in _CASTS:
        dtype = kwargs.get("dtype")
        decides = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    else:
        rounds = func.overloadpacket is aten.div and kwargs.get("rounding_mode") is not None
        decides = rounds or func.overloadpacket in DECIDING
    for tensor in args if decides else ():
        if isinstance(tensor, JaxTensor):
            store(tensor)


def mark_whole(func: torch._ops.OpOverload, args: tuple, kwargs: dict, result: JaxTensor) -> None:
    """Notes results that are whole numbers, made of whole or stored ones: they round alike."""
    if func in _ROUNDING:
        result.cell.is_whole = True
    elif func.overloadpacket in (aten.add, aten.sub) and not kwargs:
        result.cell.is_whole = all(
            isinstance(a, int) or (isinstance(a, JaxTensor) and a.cell.is_whole) for a in args
        )


def store(tensor: JaxTensor) -> None:
    """Stores the memory of a tensor of floats that this part of the trace has computed."""
    cell, region = tensor.cell, Region.current()
    if cell.const is not None or cell.deferred is not None or cell.region is not region:
        return
    if cell.is_whole:
        return
    # Inside of a region a new version of an argument would count as a write.
    if tensor.view_of is not None and region is not None:
        return
    array = cell.value
    if not isinstance(array, jax.core.Tracer) or not jnp.issubdtype(array.dtype, jnp.floating):
        return
    if cell.stored is array:
        return
    cell.value = cell.stored = stored(array)
    if tensor.view_of is not None:
        cell.version += 1  # views read it anew
