"""Learned numbers over arrays: their gradient is a sum of as many terms as the array has elements.

XLA adds such a sum up with a hundred times torch's error on CPUs, which shows where terms cancel.
So the sum is that of a channel, which torch computes in programs for CPUs.
"""

import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.annotations import PyTree

_SPREADING = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_LEAST = 1 << 15
"""Elements from which on torch sums them."""


def spread_numbers(
    func: torch._ops.OpOverload, args: tuple, arrays: tuple, result: PyTree
) -> tuple:
    """Arguments of an operator, with learned numbers spread over its result's shape.

    Args:
      func: the operator; others than sums and products keep their arguments.
      args: its arguments.
      arrays: the same with JAX arrays for tensors.
      result: what torch returns on the meta device.
    """
    if func not in _SPREADING or result.numel() < _LEAST:
        return arrays
    from jaxsr.interop.lowerings.channel_moments import spread

    shape = (*result.shape, 1)
    return tuple(
        spread(array.reshape(1), shape, axis=-1).reshape(result.shape)
        if isinstance(arg, JaxTensor) and arg.needs_grad and arg.numel() == 1
        else array
        for arg, array in zip(args, arrays, strict=True)
    )
