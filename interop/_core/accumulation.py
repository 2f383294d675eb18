"""Sums of many terms inside an operator or its gradient, which are as exact as torch's.

In half precision XLA's programs for CPUs round a sum many times, where torch adds in float32 and
rounds once. So running sums, pools and scattered values are computed on float32 numbers. The
gradient of a value that is broadcast is a sum of as many terms as it is copied to: such values are
broadcast as float32.

XLA's programs for CPUs add up numbers over several axes one after another: in float32 the mean of
1.5 million squares is off by 8e-5, and so are gradients of learned numbers that are broadcast.
`total` and `copies`, which are each other's transpose, add up one axis after the other there.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.interpreters import ad, batching

from jaxsr.interop._core.dtypes import to_jax_dtype, wide_dtype, widened, widened_floats
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.annotations import PyTree
from jaxsr.xla_calls.primitives import cpu_primitive

_SPREADING = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_MANY = 1 << 8
"""Terms from which on a sum over several axes is computed axis by axis."""
_LEAST_TOGETHER = 32
"""Terms that may be added one after another."""
_COPYING = (aten.repeat.default, aten.gather.default, aten.index_select.default, aten.index.Tensor)
"""Operators that copy elements of their first argument."""
_WITH_FACTORS = (aten.mul, aten.div)
"""Operators whose numbers torch keeps in float32 beside half precision."""
_ADDING = (
    aten.cumsum.default, aten.cumprod.default, aten.avg_pool1d.default, aten.avg_pool2d.default,
    aten.avg_pool3d.default, aten.scatter_add.default, aten.index_add.default,
    aten.scatter_reduce.two, aten.segment_reduce.default,
)  # fmt: skip
"""Operators that add up, or multiply, elements of their arguments."""


def total(
    x: jax.Array, axes: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> jax.Array:
    """`jnp.sum`, as exact as torch's where many terms lie on several axes."""
    places = _places(x, axes)
    long = [place for place in places if x.shape[place] > 1]
    if len(long) < 2 or terms(x, axes) < _MANY or not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.sum(x, axes, keepdims=keepdims)
    out = total_p.bind(x, axes=places)
    return jnp.expand_dims(out, places) if keepdims else out


def mean(
    x: jax.Array, axes: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> jax.Array:
    """`jnp.mean` with the sums of `total`."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.mean(x, axes, keepdims=keepdims)
    wide = widened(x)
    return (total(wide, axes, keepdims=keepdims) / terms(x, axes)).astype(x.dtype)


def terms(x: jax.Array, axes: int | Sequence[int] | None) -> int:
    """Elements of each sum over these axes."""
    return math.prod(x.shape[place] for place in _places(x, axes))


def _places(x: jax.Array, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(x.ndim))
    return tuple(sorted({axis % x.ndim for axis in ([axes] if isinstance(axes, int) else axes)}))


def copies(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`jnp.broadcast_to`, whose gradient is a `total`."""
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    axes = tuple(
        axis for axis, (n, size) in enumerate(zip(padded, shape, strict=True)) if n != size
    )
    kept = array.reshape([n for axis, n in enumerate(padded) if axis not in axes])
    return copies_p.bind(kept, shape=shape, axes=axes) if axes else jnp.broadcast_to(array, shape)


def _plain_total(x: jax.Array, *, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sum(x, axes)


def _total_on_cpu(x: jax.Array, *, axes: tuple[int, ...]) -> jax.Array:
    out, together = widened(x), 1
    group: list[int] = []
    for axis in reversed(axes):
        group, together = [*group, axis], together * x.shape[axis]
        if together >= _LEAST_TOGETHER or axis == axes[0]:
            # XLA would make one sum of them again.
            out = lax.optimization_barrier(out.sum(group))
            group, together = [], 1
    return out.astype(x.dtype)


def _plain_copies(x: jax.Array, *, shape: tuple[int, ...], axes: tuple[int, ...]) -> jax.Array:
    return lax.broadcast_in_dim(x, shape, [i for i in range(len(shape)) if i not in axes])


total_p = cpu_primitive("jaxsr_total", _plain_total, _total_on_cpu, calls=False)
copies_p = cpu_primitive("jaxsr_copies", _plain_copies, shape_of=lambda *_, shape, **__: shape)
ad.deflinear2(total_p, lambda ct, x, *, axes: [copies_p.bind(ct, shape=x.aval.shape, axes=axes)])
ad.deflinear2(copies_p, lambda ct, x, *, shape, axes: [total_p.bind(ct, axes=axes)])


def _batched_total(
    operands: Sequence[jax.Array], batch: Sequence[int], *, axes: tuple[int, ...]
) -> tuple[jax.Array, int]:
    x = jnp.moveaxis(operands[0], batch[0], 0)
    return total_p.bind(x, axes=tuple(axis + 1 for axis in axes)), 0


def _batched_copies(
    operands: Sequence[jax.Array],
    batch: Sequence[int],
    *,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
) -> tuple[jax.Array, int]:
    x = jnp.moveaxis(operands[0], batch[0], 0)
    out = copies_p.bind(x, shape=(x.shape[0], *shape), axes=tuple(axis + 1 for axis in axes))
    return out, 0


batching.primitive_batchers[total_p] = _batched_total
batching.primitive_batchers[copies_p] = _batched_copies


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

    Half precision is also widened beside factors that it does not hold, which torch does not round.

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
    shape = tuple(result.shape)

    def prepared(arg: object, array: jax.Array) -> jax.Array:
        if not isinstance(arg, JaxTensor) or arg.const is not None or array.shape == shape:
            return array
        # Also of inputs, whose `needs_grad` is False: `jax.grad` may be of them.
        if arg.dtype == result.dtype and wide_dtype(array.dtype) != array.dtype:
            return broadcast(array, shape)
        if func in _SPREADING and arg.needs_grad and result.numel() >= _MANY * array.size > 0:
            return copies(array, shape)
        return array

    arrays = tuple(map(prepared, args, arrays))
    if func.overloadpacket in _WITH_FACTORS:
        numbers = [v for v in arrays if isinstance(v, float)]
        with np.errstate(over="ignore"):
            rounded = np.asarray(numbers, np.float32).astype(to_jax_dtype(result.dtype))
            if np.any(rounded != np.asarray(numbers, np.float32)):
                return jax.tree.map(widened_floats, arrays)
    return arrays
