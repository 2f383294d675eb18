"""Torch dtypes and the JAX dtypes that carry them.

JAX without x64 has no 64-bit types. torch.int64 is carried by int32, with a refusal for values that
do not fit; torch.float64 and complex128 are refused, because their promise is precision.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.typing import ArrayLike, DTypeLike
from torch.utils import _pytree as pytree

from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.host_arrays import to_numpy

_TO_JAX = {
    torch.bool: jnp.bool_,
    torch.int8: jnp.int8,
    torch.int16: jnp.int16,
    torch.int32: jnp.int32,
    torch.int64: jnp.int64,
    torch.uint8: jnp.uint8,
    torch.uint16: jnp.uint16,
    torch.uint32: jnp.uint32,
    torch.uint64: jnp.uint64,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.float32: jnp.float32,
    torch.float64: jnp.float64,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
    torch.float8_e4m3fn: jnp.float8_e4m3fn,
    torch.float8_e5m2: jnp.float8_e5m2,
}
_NARROWED = {torch.int64: jnp.int32, torch.uint64: jnp.uint32}
_TO_TORCH = {jnp.dtype(j): t for t, j in _TO_JAX.items()}


def x64() -> bool:
    return bool(jax.config.jax_enable_x64)


def to_jax_dtype(dtype: torch.dtype) -> np.dtype:
    """The JAX dtype that carries `dtype`.

    Raises:
      UnsupportedTorchError: a 64-bit float without x64, or a dtype that JAX does not have.
    """
    if dtype not in _TO_JAX:
        raise UnsupportedTorchError(f"{dtype} has no JAX dtype; convert the tensor in torch first")
    if not x64():
        if dtype in (torch.float64, torch.complex128):
            raise UnsupportedTorchError(
                f"{dtype} while JAX's x64 mode is off would lose its precision without an error; "
                "call jax.config.update('jax_enable_x64', True), or use a 32-bit dtype "
                "(`module.float()`)"
            )
        dtype_ = _NARROWED.get(dtype)
        if dtype_ is not None:
            return jnp.dtype(dtype_)
    return jnp.dtype(_TO_JAX[dtype])


def to_torch_dtype(dtype: DTypeLike) -> torch.dtype:
    """The torch dtype that a JAX array shows to torch code.

    Without x64, int32 is shown as int64: JAX's default integer stands for torch's, and torch's
    index arguments insist on int64.
    """
    dtype = jnp.dtype(dtype)
    if dtype == jnp.int32 and not x64():
        return torch.int64
    if dtype not in _TO_TORCH:
        raise UnsupportedTorchError(f"{dtype} has no torch dtype; cast the array first")
    return _TO_TORCH[dtype]


def wide_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype of sums and of functions that lose digits: float32 at least."""
    return jnp.promote_types(dtype, jnp.float32)


def widened(x: jax.Array) -> jax.Array:
    """`x` in `wide_dtype`."""
    return x.astype(wide_dtype(x.dtype))


def widened_floats(value: Any) -> Any:
    """`widened` of floating arrays; anything else, such as an index or None, as it is."""
    is_float = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.inexact)
    return widened(value) if is_float else value


def is_nan(x: jax.Array) -> jax.Array:
    """Like `jnp.isnan`, and False for integers."""
    return lax.ne(x, x)


def nan_where(refused: jax.Array | bool, x: jax.Array) -> jax.Array:
    """`x`, and NaN for values that torch refuses: a compiled program cannot raise."""
    return jnp.where(refused, jnp.asarray(jnp.nan, x.dtype), x)


def is_differentiable(meta: torch.Tensor) -> bool:
    """Whether torch gives a tensor like this one a gradient."""
    return meta.dtype.is_floating_point or meta.dtype.is_complex


def cast(value: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """`value` as a JAX array of this dtype; of complex numbers the real part, where it is real."""
    value = jnp.asarray(value)
    if value.dtype == dtype:
        return value
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating):
        value = value.real
    return value.astype(dtype)


def as_autocast(values: Any) -> Any:
    """Arguments of a product, as `torch.autocast` of the CPU hands them on where it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return values
    dtype = torch.get_autocast_dtype("cpu")

    def in_dtype(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x

    return pytree.tree_map_only(torch.Tensor, in_dtype, values)


def as_int32(value: jax.Array) -> jax.Array:
    """Integers of 64 bits in 32, those beyond at the limit; other arrays as they are."""
    if value.dtype != jnp.int64:
        return value
    info = np.iinfo(np.int32)
    with jax.enable_x64(True):
        return lax.clamp(np.int64(info.min), value, np.int64(info.max)).astype(jnp.int32)


def as_int64(value: jax.Array) -> jax.Array:
    """Integers of 32 bits in 64, whether or not x64 is on; other arrays as they are."""
    if value.dtype != jnp.int32:
        return value
    with jax.enable_x64(True):
        return value.astype(jnp.int64)


def as_carried(results: Sequence[jax.Array], carry: Sequence[Any]) -> list[jax.Array]:
    """Results of a round: integers in 64 bits where those carried have them."""
    return [
        as_int64(new) if old.dtype == np.int64 else new
        for new, old in zip(results, carry, strict=False)
    ]


def check_range(values: np.ndarray, what: str) -> None:
    """Refuses integers that int32 cannot carry while x64 is off."""
    if x64() or values.size == 0:
        return
    info = np.iinfo(np.int32 if values.dtype == np.int64 else np.uint32)
    low, high = int(values.min()), int(values.max())
    if low < info.min or high > info.max:
        raise UnsupportedTorchError(
            f"{what} holds {low if low < info.min else high}, beyond {info.dtype}, which carries "
            f"{values.dtype} while x64 is off; call jax.config.update('jax_enable_x64', True)"
        )


def constant_to_numpy(tensor: torch.Tensor, what: str = "a constant tensor") -> np.ndarray:
    """Copies a torch CPU tensor to NumPy in the dtype that carries it in JAX."""
    target = to_jax_dtype(tensor.dtype)
    array = to_numpy(tensor.detach().to_dense())
    if array.dtype in (np.int64, np.uint64):
        check_range(array, what)
    return array.astype(target, copy=True)


def constant_to_jax(tensor: torch.Tensor) -> jax.Array:
    """A torch CPU tensor as a JAX constant."""
    with plain_torch():
        array = constant_to_numpy(tensor)
    return jnp.asarray(array)
