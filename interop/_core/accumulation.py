"""Sums of many terms inside an operator or its gradient, which are as exact as torch's.

In half precision XLA's programs for CPUs round a sum many times, where torch adds in float32 and
rounds once. So running sums, pools and scattered values are computed on float32 numbers. The
gradient of a value that is broadcast is a sum of as many terms as it is copied to: such values are
broadcast as float32.

A sum of float32 numbers is added up with a hundred times torch's error where it has many terms. The
gradient of one learned number is therefore the sum of a channel, which torch computes in programs
for CPUs.
"""

import math

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.dtypes import wide_dtype, widened_floats
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.annotations import PyTree

_SPREADING = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_LEAST = 1 << 15
"""Elements from which on torch sums them."""
_COPYING = (aten.repeat.default, aten.gather.default, aten.index_select.default, aten.index.Tensor)
"""Operators that copy elements of their first argument."""
_ADDING = (
    aten.cumsum.default, aten.cumprod.default, aten.avg_pool1d.default, aten.avg_pool2d.default,
    aten.avg_pool3d.default, aten.scatter_add.default, aten.index_add.default,
    aten.scatter_reduce.two, aten.segment_reduce.default,
)  # fmt: skip
"""Operators that add up, or multiply, elements of their arguments."""


def broadcast(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`jnp.broadcast_to` whose gradient is summed in float32 where the array is narrower.

    A gradient of two terms is rounded once in either way.
    """
    if math.prod(shape) <= 2 * array.size:
        return jnp.broadcast_to(array, shape)
    return jnp.broadcast_to(widened_floats(array), shape).astype(array.dtype)


def widen_arguments(
    func: torch._ops.OpOverload, args: tuple, arrays: tuple, result: PyTree
) -> tuple:
    """Arguments of an operator, widened or broadcast for the sums in it and in its gradient.

    Args:
      func: the operator. Operations keep their arguments unless they are elementwise, or only copy
        or add elements.
      args: its arguments.
      arrays: the same with JAX arrays for tensors.
      result: torch's result on the meta device.
    """
    if func in _COPYING and result.numel() > 2 * arrays[0].size:
        return (widened_floats(arrays[0]), *arrays[1:])
    if func in _ADDING:
        return jax.tree.map(widened_floats, arrays)
    if torch.Tag.pointwise not in func.tags or not isinstance(result, torch.Tensor):
        return arrays
    from jaxsr.interop.lowerings.channel_moments import spread

    shape = tuple(result.shape)
    spreads = func in _SPREADING and result.numel() >= _LEAST

    def prepared(arg: object, array: jax.Array) -> jax.Array:
        if not isinstance(arg, JaxTensor) or arg.const is not None or array.shape == shape:
            return array
        # Also of inputs, whose `needs_grad` is False: `jax.grad` may be of them.
        if arg.dtype == result.dtype and wide_dtype(array.dtype) != array.dtype:
            return broadcast(array, shape)
        if spreads and arg.needs_grad and array.size == 1:
            return spread(array.reshape(1), (*shape, 1), axis=-1).reshape(shape)
        return array

    return tuple(map(prepared, args, arrays))
