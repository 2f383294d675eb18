"""int64 results that int32 may not hold, while JAX's x64 mode is off.

int64 is carried by int32. A product of two such numbers, a power, a shift, a running product or a
large float need not fit. Where the bounds that the trace knows do not exclude it, the result is an
array of 64 bits in the same program; what its numbers are reduced to (`% size`, `clamp`) is carried
by int32 again. Sums of numbers whose bounds are unknown count as positions and counters do: within
32 bits.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxsr.interop._core.dtypes import x64
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.schema import name_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError

Bounds = tuple[int, int]
_INT32 = -(1 << 31), (1 << 31) - 1
_PRODUCTS = {
    aten.mul, aten.pow, aten.square, aten.prod, aten.cumprod, aten.bitwise_left_shift,
    aten.__lshift__, aten.dot, aten.mm, aten.bmm, aten.mv, aten.addmm, aten.baddbmm,
}  # fmt: skip
"""Operators whose results leave 32 bits for numbers well within them."""
_MATRIX_PRODUCTS = {aten.dot, aten.mm, aten.bmm, aten.mv}
_SUMS = {aten.add, aten.sub, aten.rsub, aten.neg, aten.sum, aten.cumsum}
_CASTS = {aten._to_copy}
_CLIPS = {aten.clamp, aten.clamp_min, aten.clamp_max}


def is_wide(arrays: list[Any]) -> bool:
    """Whether one of these is an array of 64-bit integers."""
    return any(isinstance(a, jax.Array) and a.dtype == jnp.int64 for a in arrays)


def widens(func: torch._ops.OpOverload, args: tuple, metas: Any) -> bool:
    """Whether the int64 result of an operator may leave 32 bits."""
    if x64() or not isinstance(metas, torch.Tensor) or metas.dtype != torch.int64:
        return False
    packet = func.overloadpacket
    if packet in _CASTS:
        return isinstance(args[0], JaxTensor) and args[0].dtype.is_floating_point
    if packet in _SUMS:
        known = [bounds_of(arg) for arg in args[:2] if isinstance(arg, (JaxTensor, int))]
        if any(bounds is None for bounds in known):
            return False
        return not _fits(result_bounds(func, args))
    return packet in _PRODUCTS and not _fits(result_bounds(func, args))


def narrows(func: torch._ops.OpOverload, args: tuple) -> bool:
    """Whether the result of wide numbers is within 32 bits for certain."""
    return _fits(result_bounds(func, args))


def result_bounds(func: torch._ops.OpOverload, args: tuple) -> Bounds | None:
    """Least and greatest number that an operator may give; None where the trace does not know."""
    packet = func.overloadpacket
    pair = [bounds_of(arg) for arg in args[:2]]
    first = pair[0] if pair else None
    second = pair[1] if len(pair) > 1 else None
    if packet is aten.remainder and second is not None and second[0] > 0:
        return 0, second[1] - 1
    if packet in _CLIPS:
        limits = [a if isinstance(a, int) else None for a in (*args[1:3], None)][:2]
        if packet is aten.clamp_max:
            limits = [None, limits[0]]
        known = first or (-(1 << 63), (1 << 63) - 1)
        low, high = limits
        return (
            known[0] if low is None else max(low, known[0]),
            known[1] if high is None else min(high, known[1]),
        )
    if first is None:
        return None
    if packet is aten.neg:
        return -first[1], -first[0]
    is_square = packet is aten.square or (packet is aten.pow and second == (2, 2))
    if is_square:
        second = first
    elif second is None:
        return None
    if packet in (aten.add, aten.sub):
        return (
            (first[0] + second[0], first[1] + second[1])
            if packet is aten.add
            else (first[0] - second[1], first[1] - second[0])
        )
    if packet in (aten.mul, aten.square, aten.pow):
        if packet is aten.pow and not is_square:
            return None
        products = [a * b for a in first for b in second]
        return min(products), max(products)
    return None


def bounds_of(value: Any) -> Bounds | None:
    """Of a Python integer, a constant, or a traced tensor whose operator bounds it."""
    if isinstance(value, int):
        return int(value), int(value)
    if not isinstance(value, JaxTensor):
        return None
    if value.const is not None:
        if not value.const.numel() or value.const.dtype.is_floating_point:
            return None
        return int(value.const.min()), int(value.const.max())
    if value.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16):
        kind = np.iinfo(np.uint8 if value.dtype == torch.bool else str(value.dtype)[6:])
        return int(kind.min), int(kind.max)
    return value.cell.bounds if value.view_of is None else None


def _fits(bounds: Bounds | None) -> bool:
    return bounds is not None and _INT32[0] <= bounds[0] and bounds[1] <= _INT32[1]


def wide_call(
    func: Callable,
    function: Any,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    widens: bool,
    narrow: bool,
) -> Any:
    """A lowering with integers of 64 bits for those of 32.

    Args:
      func: the operator.
      function: its lowering.
      args, kwargs: of the lowering.
      widens: whether the result may leave 32 bits where the operands do not.
      narrow: whether the result is within 32 bits for certain.

    Raises:
      UnsupportedTorchError: the lowering computes in 32 bits.
    """
    if getattr(func, "overloadpacket", None) in _MATRIX_PRODUCTS:
        function = jnp.matmul

    def widened(x: Any) -> Any:
        is_int32 = isinstance(x, jax.Array) and x.dtype == jnp.int32
        return x.astype(jnp.int64) if is_int32 else x

    def fitted(x: Any) -> Any:
        is_int64 = isinstance(x, jax.Array) and x.dtype == jnp.int64
        return x.astype(jnp.int32) if narrow and is_int64 else x

    with jax.enable_x64(True):
        result = function(*map(widened, args), **kwargs)
        if widens and any(x.dtype == jnp.int32 for x in jax.tree.leaves(result)):
            raise UnsupportedTorchError(
                f"{name_of(func)} of int64 may leave 32 bits, in which it is computed; call "
                "jax.config.update('jax_enable_x64', True)"
            )
        return jax.tree.map(fitted, result)
