"""Broadcast values: their gradient is a sum of as many terms as they are copied to.

In half precision XLA's programs for CPUs round such a sum many times, where torch adds in float32
and rounds once: ten to a hundred times torch's error, and more where terms cancel. So values in
half precision are broadcast as float32 numbers, whose sum XLA computes, too, in float32.

A sum of float32 numbers is added up with a hundred times torch's error where it has many terms. So
that of one learned number is the sum of a channel, which torch computes in programs for CPUs.
"""

import math

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.annotations import PyTree

_SPREADING = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_LEAST = 1 << 15
"""Elements from which on torch sums them."""
HALF = (jnp.bfloat16, jnp.float16)
"""Dtypes whose sums torch adds in float32."""
_COPYING = (aten.repeat.default, aten.gather.default, aten.index_select.default, aten.index.Tensor)
"""Operators that copy elements of their first argument."""


def broadcast(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`jnp.broadcast_to` whose gradient is summed in float32 where the array is narrower.

    A gradient of two terms is rounded once in either way.
    """
    if array.dtype not in HALF or math.prod(shape) <= 2 * array.size:
        return jnp.broadcast_to(array, shape)
    return jnp.broadcast_to(array.astype(jnp.float32), shape).astype(array.dtype)


def broadcast_arguments(
    func: torch._ops.OpOverload, args: tuple, arrays: tuple, result: PyTree
) -> tuple:
    """Arguments of an operator, with those broadcast that need a gradient.

    Args:
      func: the operator. Others than those that are computed element by element, or that copy
        elements, keep their arguments.
      args: its arguments.
      arrays: the same with JAX arrays for tensors.
      result: what torch returns on the meta device.
    """
    if func in _COPYING and arrays[0].dtype in HALF and result.numel() > 2 * arrays[0].size:
        return (arrays[0].astype(jnp.float32), *arrays[1:])
    if torch.Tag.pointwise not in func.tags or not isinstance(result, torch.Tensor):
        return arrays
    from jaxsr.interop.lowerings.channel_moments import spread

    shape = tuple(result.shape)
    single = func in _SPREADING and result.numel() >= _LEAST

    def of(arg: object, array: jax.Array) -> jax.Array:
        if not isinstance(arg, JaxTensor) or not arg.needs_grad or array.shape == shape:
            return array
        if arg.dtype == result.dtype and array.dtype in HALF:
            return broadcast(array, shape)
        if single and array.size == 1:
            return spread(array.reshape(1), (*shape, 1), axis=-1).reshape(shape)
        return array

    return tuple(map(of, args, arrays))
