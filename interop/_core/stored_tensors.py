"""Tensors that all later readers read from memory, among them those that a decision is made of.

`floor` of a position and its fraction, a maximum and the comparison with it, a quotient and its
remainder belong together, but XLA's fusions make the position anew and may round it otherwise
(`jaxsr/xla_calls/stored.py`). So an operator that decides stores its operand, and whoever reads it
later reads the same stored array.

XLA also makes `x + (c + d)` of `(x + c) + d`, and `x * (c * d)` of `(x * c) * d`, where c and d are
constants. What torch rounds away (`x + 12582912.0 - 12582912.0`) would stay, and a product of
constants may leave the dtype. A barrier keeps such operators apart.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import lax

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
_CHAINED = (aten.add, aten.sub, aten.rsub, aten.mul, aten.div)
_CASTS = {aten._to_copy, aten.to}
_ROUNDING = {aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default}
_COPIES = {aten.clone, aten._to_copy}


class Constants(NamedTuple):
    """The range of the numbers that the last operators add to a tensor, or multiply it by."""

    is_sum: bool
    least: float
    greatest: float

    def and_then(self, later: "Constants", dtype: torch.dtype) -> "Constants | None":
        """Both as one; None where that loses more than a rounding, or a rounding that torch has."""
        least, greatest = self.least * later.least, self.greatest * later.greatest
        limits = torch.finfo(dtype)
        if self.is_sum or greatest > limits.max or 0 < least < limits.tiny:
            return None
        return Constants(False, least, greatest)


def _constants_of(
    func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[int, Constants] | None:
    """Which argument a sum or product with constants changes, and these constants."""
    packet = func.overloadpacket
    if packet not in _CHAINED or kwargs.get("rounding_mode"):
        return None
    place = 0
    if packet not in (aten.div, aten.rsub) and "alpha" not in kwargs:
        place = int(_range_of(args[0]) is not None)
    numbers, tensor = _range_of(args[1 - place]), args[place]
    if numbers is None or not isinstance(tensor, JaxTensor) or not tensor.is_floating_point():
        return None
    if packet not in (aten.mul, aten.div):
        alpha = kwargs.get("alpha", 1) * (-1 if packet is aten.sub else 1)
        least, greatest = sorted(number * alpha for number in numbers)
        return place, Constants(True, least, greatest)
    least, greatest = sorted(map(abs, numbers))
    if min(numbers) <= 0 <= max(numbers):
        least = 0.0
    if packet is aten.div:
        if not least:
            return None
        least, greatest = 1 / greatest, 1 / least
    return place, Constants(False, least, greatest)


def _range_of(value: object) -> tuple[float, float] | None:
    """The least and the greatest of constants; None for a tensor whose values are not known."""
    if isinstance(value, (int, float)):
        return float(value), float(value)
    if not isinstance(value, JaxTensor) or value.const is None or not value.numel():
        return None
    if value.is_complex():
        return None
    least, greatest = value.const.double().aminmax()  # not of every integer
    return float(least), float(greatest)


def separate_constants(
    func: torch._ops.OpOverload, args: tuple, kwargs: dict, arrays: tuple
) -> tuple[tuple, Constants | None]:
    """Keeps an operator from being merged with the one before, where that loses what torch has.

    Args:
      func, args, kwargs: of the call.
      arrays: those of `args`.

    Returns:
      The arrays, and the constants that the result is made with, for `Cell.constants`.
    """
    if func.overloadpacket in _COPIES and isinstance(args[0], JaxTensor):
        return arrays, args[0].cell.constants
    if (operands := _constants_of(func, args, kwargs)) is None:
        return arrays, None
    place, constants = operands
    before = args[place].cell.constants
    if constants in (Constants(True, 0, 0), Constants(False, 1, 1)):
        return arrays, before
    if before is None or before.is_sum != constants.is_sum:
        return arrays, constants
    if (merged := before.and_then(constants, args[place].dtype)) is not None:
        return arrays, merged
    separate = lax.optimization_barrier(arrays[place])
    return (*arrays[:place], separate, *arrays[place + 1 :]), constants


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
    elif func.overloadpacket in (aten.add, aten.sub, aten.rsub) and not kwargs:
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
