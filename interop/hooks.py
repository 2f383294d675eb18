"""Watches the torch code of a converted module while it is traced; runs torch code on arrays.

A watcher is entered around the module's method, innermost of all modes: it sees the calls of the
torch code before this package redirects anything, and must not change them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)

from jaxsr.interop._core import index_bounds
from jaxsr.interop._core.attributes import holds_inputs
from jaxsr.interop._core.dtypes import constant_to_jax
from jaxsr.interop._core.stack_frames import users_frame
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace_scope import Region, Watch, running_trace, watched, watching
from jaxsr.interop.annotations import PyTree

__all__ = [
    "Watch",
    "collecting_indices",
    "holds_inputs",
    "users_frame",
    "value_of",
    "watched",
    "watching",
]

collecting_indices = index_bounds.collecting_indices
"""Gathers the worst index of every operation that takes indices, for the program to return."""


def value_of(tensor: torch.Tensor) -> jax.Array | None:
    """The array that a tensor met under a watcher holds now, traced or not.

    None inside `jax.checkpoint` or an `autograd.Function`: such a value may not leave it.
    """
    if Region.current() is not None:
        return None
    return tensor.array() if isinstance(tensor, JaxTensor) else constant_to_jax(tensor)


def constant_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The torch tensor behind it where its value depends on no input, else None."""
    return tensor.const if isinstance(tensor, JaxTensor) else tensor


def version_of(tensor: torch.Tensor) -> float:
    """How often a tensor has been written; NaN where torch does not count, in inference mode."""
    if isinstance(tensor, JaxTensor):
        return tensor.cell.version
    return math.nan if tensor.is_inference() else tensor._version


def random_state() -> object:
    """A value that every draw changes: of the trace that runs, or of torch's generators."""
    if (trace := running_trace()) is not None:
        return trace.draws
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *cuda)]


def run_torch(function: Callable[..., Any], *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Runs torch code on JAX arrays as `apply` would run it inside a module.

    Args:
      function: takes torch tensors where it is given arrays; usable under `jax.jit`.
      *args: pytrees of arrays; torch tensors among them are constants of the program.
      **kwargs: likewise.

    Returns:
      Returns its result, with arrays for tensors.

    Raises:
      UnsupportedTorchError: JAX would compute something else.
    """
    from jaxsr.interop._core import registry
    from jaxsr.interop._core.arguments import to_arrays, to_tensor
    from jaxsr.interop._core.containers import map_leaves
    from jaxsr.interop._core.dispatch import Dispatcher
    from jaxsr.interop._core.trace_context import session

    registry.load()
    trace = Dispatcher(None)

    def as_tensor(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return trace.adopt(value)
        return to_tensor(trace, value, None)

    # A watcher of another trace may call this; that trace's modes would take this one's operations.
    with _disable_current_modes(), session(trace):
        tensors: tuple[tuple[Any, ...], dict[str, Any]]
        tensors = map_leaves(as_tensor, (args, kwargs))
        return to_arrays(trace, function(*tensors[0], **tensors[1]))
