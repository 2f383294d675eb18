"""Arguments and results of a module's method: arrays outside, tensors within a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxsr.interop._core.containers import map_leaves, private_copy
from jaxsr.interop._core.dtypes import check_range, x64
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import InputTypeError, UnsupportedTorchError


def to_tensor(trace: Trace, x: Any, compute: np.dtype | None) -> Any:
    """An argument as the module's code sees it."""
    if isinstance(x, torch.Tensor):
        raise InputTypeError(
            "apply takes JAX or NumPy arrays, got a torch.Tensor; convert it with .numpy()"
        )
    if isinstance(x, (np.ndarray, np.generic)):
        if x.dtype in (np.float64, np.complex128) and not x64():
            raise UnsupportedTorchError(
                f"an input is {x.dtype} while x64 is off; convert it with .astype(np.float32)"
            )
        if x.dtype in (np.int64, np.uint64):
            check_range(np.asarray(x), "an input")
        x = jnp.asarray(x)
    if not isinstance(x, jax.Array):
        return private_copy(x)
    if compute is not None and jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(compute)
    tensor = trace.wrap(x)
    tensor.is_marked_leaf = True
    return tensor


def to_arrays(trace: Trace, result: Any) -> Any:
    """The method's result with arrays for tensors, whatever containers hold them."""

    def to_array(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return trace.as_jax_tensor(leaf).array()
        return tuple(leaf) if isinstance(leaf, torch.Size) else leaf

    return map_leaves(to_array, result)
