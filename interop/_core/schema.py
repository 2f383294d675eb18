"""Torch's operator schemas: which arguments are written, which results are views; values that fit.

`fit` and `fitting_scalars` enforce torch's shapes, dtypes and ranges on a lowering.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike
from torch.utils import _pytree as pytree

from jaxsr.interop._core.dtypes import cast, check_range, to_jax_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop.errors import UnsupportedTorchError

Call = dict[str, Any]
"""An operator's arguments by name."""
_ELEMENTWISE = (aten.floor_divide, aten.rsub)
"""Operators that torch does not mark as elementwise."""
_UNROUNDED = (aten.mul, aten.div)
"""Operators whose second argument torch reads before it is rounded to half precision."""


class Schema:
    """The aliasing in an aten overload's schema."""

    def __init__(self, func: torch._ops.OpOverload) -> None:
        schema = func._schema
        self.mutated = [
            (i, a.name, a.kwarg_only)
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.is_out = any(kw for _, _, kw in self.mutated)
        self.is_view = not self.mutated and any(r.alias_info is not None for r in schema.returns)
        self.needs_value = bool(schema.returns) and not any(
            "Tensor" in str(r.type) for r in schema.returns
        )
        self.random = any("Generator" in str(a.type) for a in schema.arguments)


schema_of = functools.cache(Schema)


@functools.cache
def functional_of(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload that returns the values `func` would write."""
    name, overload = func._schema.name.split("::")[1], func._overloadname
    schema = schema_of(func)
    base = name
    if not schema.is_out:
        base = name[:-1] if name.endswith("_") else name
        base = {"__iand": "__and__", "__ior": "__or__", "__ixor": "__xor__"}.get(base, base)
        base = {"__ilshift_": "__lshift__", "__irshift_": "__rshift__"}.get(base, base)
    packet = getattr(torch.ops.aten, base.replace("__i", "__") if "__i" in base else base, None)
    if packet is None:
        return None
    arguments = [
        (a.name, str(a.type))
        for a in func._schema.arguments
        if not (schema.is_out and a.alias_info is not None and a.alias_info.is_write)
    ]
    for candidate in packet.overloads():
        op = getattr(packet, candidate)
        if op is not func and [(a.name, str(a.type)) for a in op._schema.arguments] == arguments:
            return op
    # Last among equal names: `pow_.Scalar` takes a tensor and a number, `pow.Scalar` the reverse.
    is_named_alike = not schema.is_out and overload in packet.overloads()
    named = getattr(packet, overload) if is_named_alike else None
    return None if named is func else named


def in_order_of(
    functional: object, func: torch._ops.OpOverload, args: tuple, kwargs: Call
) -> tuple[tuple, Call]:
    """Arguments of `func` for its functional form: `polygamma_` takes them in another order."""
    if not isinstance(functional, torch._ops.OpOverload):
        return args, kwargs
    names = [a.name for a in func._schema.arguments]
    order = [a.name for a in functional._schema.arguments]
    if names == order or sorted(names) != sorted(order):
        return args, kwargs
    return (), {**dict(zip(names, args, strict=False)), **kwargs}


def call_by_name(func: torch._ops.OpOverload, args: tuple, kwargs: Call) -> Call:
    """All arguments of a call by name, defaults included."""
    names = [a.name for a in func._schema.arguments]
    bound = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    bound.update(zip(names, args, strict=False))
    bound.update(kwargs)
    return bound


@functools.cache
def is_composite(func: torch._ops.OpOverload) -> bool:
    return func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def name_of(func: object) -> str:
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name).replace("aten::", "aten.")
    return getattr(func, "__qualname__", None) or getattr(func, "__name__", str(func))


def fit(func: Callable, value: ArrayLike, meta: torch.Tensor) -> jax.Array:
    """A lowering's result as torch has it: same shape or an error, same dtype by a cast."""
    value = value if isinstance(value, jax.Array) else jnp.asarray(value)
    if tuple(value.shape) != tuple(meta.shape):
        raise UnsupportedTorchError(
            f"{name_of(func)}: the lowering gives shape {tuple(value.shape)}, torch "
            f"{tuple(meta.shape)}; please report it"
        )
    dtype = to_jax_dtype(meta.dtype)
    if jnp.issubdtype(value.dtype, jnp.integer) and jnp.issubdtype(dtype, jnp.inexact):
        raise UnsupportedTorchError(
            f"{name_of(func)}: the lowering computes {value.dtype} where torch computes "
            f"{meta.dtype}; convert the input with .float() first"
        )
    if value.dtype == jnp.int64 and meta.dtype == torch.int64:
        return value  # may leave 32 bits (`wide_integers.py`)
    return cast(value, dtype)


def promoted_scalars(
    func: torch._ops.OpOverload, tensors: tuple, arrays: tuple, result: Any
) -> tuple:
    """Arrays of an elementwise operator; those without axes get the dtype of the others' kind.

    torch promotes in this way, except for the second argument of `_UNROUNDED`, and integers of
    which it makes floats.
    """
    if torch.Tag.pointwise not in func.tags and func.overloadpacket not in _ELEMENTWISE:
        return arrays
    values = [t for t in pytree.tree_leaves(tensors) if isinstance(t, torch.Tensor)]
    dtypes = {t.dtype for t in values if t.ndim}
    if not dtypes or all(t.ndim for t in values):
        return arrays
    common = functools.reduce(torch.promote_types, dtypes)
    is_float = common.is_floating_point or common.is_complex
    if not is_float and isinstance(result, torch.Tensor) and result.is_floating_point():
        return arrays
    unrounded = tensors[0][1] if is_float and func.overloadpacket in _UNROUNDED else None

    def promoted(tensor: object, array: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim or tensor.dtype == common:
            return array
        is_kept = tensor is unrounded or not _of_kind(tensor, common)
        return array if is_kept else array.astype(to_jax_dtype(common))

    return pytree.tree_map(promoted, tensors, arrays)


def _of_kind(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether both are booleans, integers, floats, or complex."""
    kinds = [(d == torch.bool, d.is_floating_point, d.is_complex) for d in (tensor.dtype, dtype)]
    return kinds[0] == kinds[1]


def fitting_scalars(func: Callable, args: tuple) -> tuple:
    """Arguments of an operation, whose large Python integers are floats next to floats.

    Raises:
      UnsupportedTorchError: the integers of the operation cannot hold one of these.
    """
    dtypes = [a.dtype for a in args if isinstance(a, jax.Array)]
    is_whole = dtypes and not any(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes)

    def fitting(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if abs(value) >= 1 << 63:
            raise UnsupportedTorchError(f"{name_of(func)}: {value} does not fit an integer")
        if is_whole:
            check_range(np.asarray(value), f"{name_of(func)} with a Python number")
        return float(value) if dtypes and not is_whole and abs(value) >= 1 << 31 else value

    return tuple(map(fitting, args))
