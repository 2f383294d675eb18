"""int64 results that int32 may not hold, while JAX's x64 mode is off.

int64 is carried by int32. Where the bounds of an arithmetic result (`integer_bounds.py`) leave it,
the result is an array of 64 bits in the same program; the numbers that result from reducing it (`%
size`, `clamp`, a comparison) are carried by int32 again, and so are the values that they index.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.utils import _pytree as pytree

from jaxsr.interop._core.dtypes import as_int32, as_int64, x64
from jaxsr.interop._core.index_bounds import OPERATIONS
from jaxsr.interop._core.integer_bounds import Bounds, bounds_of, fits, hull, result_bounds
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.schema import Call, name_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError

_ARITHMETIC = {
    aten.add, aten.sub, aten.rsub, aten.neg, aten.abs, aten.sum, aten.nansum, aten.cumsum,
    aten.trace, aten.mul, aten.pow, aten.square, aten.prod, aten.cumprod, aten.div,
    aten.floor_divide, aten.bitwise_left_shift, aten.__lshift__, aten.dot, aten.mm, aten.bmm,
    aten.mv, aten.addmm, aten.baddbmm, aten.scatter_add, aten.index_add, aten.index_put,
    aten.addbmm, aten.addmv, aten.addr, aten.lcm, aten.scatter_reduce, aten.scatter,
    aten.index_reduce,
}  # fmt: skip
"""Operators whose results are not elements of their arguments, and may be greater."""


def _first_of(extreme: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`argmax` and `argmin`: XLA's programs of JAX's own ones take no 64 bits without x64."""

    def place(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        shape = [1 if dim is None or i == dim % x.ndim else n for i, n in enumerate(x.shape)]
        x, axis = (x.reshape(-1), 0) if dim is None or not x.ndim else (x, dim % x.ndim)
        index = lax.argmax(x == extreme(x, axis=axis, keepdims=True), axis, jnp.int32)
        return index.reshape(shape) if keepdim else index

    return place


def _with_place(extreme: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """`max(dim)` and `min(dim)`, likewise."""

    def both(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        values = extreme(x, axis=dim, keepdims=keepdim) if x.ndim else x
        return values, _first_of(extreme)(x, dim, keepdim)

    return both


_INSTEAD: dict[Any, Callable] = {
    **dict.fromkeys(
        (aten.dot.default, aten.mm.default, aten.bmm.default, aten.mv.default), jnp.matmul
    ),
    aten.argmax.default: _first_of(jnp.max),
    aten.argmin.default: _first_of(jnp.min),
    aten.max.dim: _with_place(jnp.max),
    aten.min.dim: _with_place(jnp.min),
}
"""Functions that compute an operator in 64 bits in place of its lowering."""


def is_wide(arrays: list[Any]) -> bool:
    """Whether one of these is an array of 64-bit integers."""
    return any(isinstance(a, jax.Array) and a.dtype == jnp.int64 for a in arrays)


def bounds_of_results(func: Any, args: tuple, kwargs: Call, metas: Any) -> list[Bounds | None]:
    """For each result the bounds of its integers; None for other results and where x64 is on."""
    metas = metas if isinstance(metas, (list, tuple)) else [metas]
    return [
        result_bounds(func, args, kwargs, meta, number)
        if isinstance(meta, torch.Tensor) and meta.dtype in (torch.int64, torch.int32) and not x64()
        else None
        for number, meta in enumerate(metas)
    ]


def widens(func: torch._ops.OpOverload, args: tuple, metas: Any, bounds: Bounds | None) -> bool:
    """Whether the int64 result of an operator, within these bounds, may leave 32 bits."""
    if x64() or not isinstance(metas, torch.Tensor) or metas.dtype != torch.int64:
        return False
    packet = func.overloadpacket
    if packet is aten._to_copy:
        return isinstance(args[0], JaxTensor) and args[0].dtype.is_floating_point
    return packet in _ARITHMETIC and not fits(bounds)


def note_bounds(results: Any, bounds: Sequence[Bounds | None]) -> None:
    """Notes the bounds of an operator's results in their cells."""
    results = results if isinstance(results, (list, tuple)) else [results]
    for out, limits in zip(results, bounds, strict=False):
        if isinstance(out, JaxTensor):
            # Values outside torch.int32 wrap, as in torch.
            out.cell.bounds = limits if out.dtype == torch.int64 or fits(limits) else None


def arrays_of(func: Any, args: tuple, kwargs: Call) -> tuple[tuple, Call]:
    """The arguments with arrays for tensors. 32 bits hold every index that is in range."""
    uses_of = None if x64() else OPERATIONS.get(getattr(func, "overloadpacket", func))
    indices = set() if uses_of is None else {id(use.index) for use in uses_of(*args, **kwargs)}
    return pytree.tree_map_only(
        JaxTensor, lambda t: as_int32(t.array()) if id(t) in indices else t.array(), (args, kwargs)
    )


def wide_call(
    func: Callable,
    function: Any,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    widens: bool,
    narrow: Sequence[bool] = (),
) -> Any:
    """A lowering with integers of 64 bits for those of 32.

    Args:
      func: the operator.
      function: its lowering.
      args, kwargs: of the lowering.
      widens: whether the result may leave 32 bits where the operands do not.
      narrow: which results are within 32 bits for certain.

    Raises:
      UnsupportedTorchError: the lowering computes in 32 bits.
    """
    function = _INSTEAD.get(func, function)

    def widened(x: Any) -> Any:
        return as_int64(x) if isinstance(x, jax.Array) else x

    with jax.enable_x64(True):
        args, kwargs = jax.tree.map(widened, (args, dict(kwargs)))
        result = function(*args, **kwargs)
        if widens and any(x.dtype == jnp.int32 for x in jax.tree.leaves(result)):
            raise UnsupportedTorchError(
                f"{name_of(func)} of int64 may leave 32 bits, in which it is computed; call "
                "jax.config.update('jax_enable_x64', True)"
            )
        if not any(narrow):
            return result
        if not isinstance(result, (list, tuple)):
            return as_int32(result)
        fitted = [as_int32(x) if n else x for x, n in zip(result, narrow, strict=False)]
        return type(result)(fitted) if type(result) in (list, tuple) else fitted


def assign(target: JaxTensor, value: jax.Array, bounds: Bounds | None) -> None:
    """Writes integers into a tensor of torch.int64, whose memory gets 64 bits where they need it.

    Args:
      target: where to write.
      value: of the target's shape, carried by int32 or int64.
      bounds: of these numbers, where they are known.
    """
    root = target.root
    if root is target:
        target.assign(value)
        target.cell.bounds = bounds
        return
    bounds = hull(bounds_of(root), bounds)
    if is_wide([value, root.array()]):
        value = as_int64(value)
        if not is_wide([root.array()]):
            root.assign(as_int64(root.array()))
        with jax.enable_x64(True):
            target.assign(value)
    else:
        target.assign(value)
    target.cell.bounds = bounds


def carried_by_buffer(value: JaxTensor, name: str) -> jax.Array:
    """The value of an int64 buffer after a call: 32 bits, for the next call to find its dtype.

    Raises:
      UnsupportedTorchError: it is not a counter, but numbers that may need far more than 32 bits.
    """
    array = value.array()
    if x64() or not is_wide([array]):
        return array
    bounds = bounds_of(value)
    if bounds is None or max(-bounds[0], bounds[1]) > 1 << 32:
        raise UnsupportedTorchError(
            f"forward writes numbers into the buffer {name} that may need 64 bits, and 32 carry "
            "it; reduce them first (`%`, clamp), or call "
            "jax.config.update('jax_enable_x64', True)"
        )
    return array.astype(jnp.int32)
