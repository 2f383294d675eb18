"""Arguments and results of a lowering, with torch's shapes, dtypes and ranges enforced."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import cast, check_range, to_jax_dtype
from jaxsr.interop._core.schema import name_of
from jaxsr.interop.errors import UnsupportedTorchError


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
