"""The buffers after a call, and refusals of calls that change parameters and buffers otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike

from jaxsr.interop._core import module_checks
from jaxsr.interop._core.attributes import holds_inputs
from jaxsr.interop._core.dtypes import cast
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.wide_integers import carried_by_buffer
from jaxsr.interop.errors import UnsupportedTorchError

if TYPE_CHECKING:
    from jaxsr.interop._core.functionalize import FunctionalModule


def buffers_after(
    functional: FunctionalModule,
    trace: Trace,
    tensors: Mapping[str, JaxTensor],
    buffers: Mapping[str, ArrayLike],
) -> dict[str, jax.Array]:
    """The buffers by name, as a call has left them.

    Args:
      functional: the module that was called; its copy still has the tensors of the call.
      trace: of the call.
      tensors: parameters and buffers that the call began with, by name.
      buffers: the arrays of the latter.

    Raises:
      UnsupportedTorchError: the call replaced a parameter, or a buffer under one of its names, or
        changed their attributes, or wrote a value that Python code needs.
    """
    after: dict[str, jax.Array] = {}
    if made := module_checks.tensors_made(
        functional.module, {*functional.slots, *functional.aliases}
    ):
        raise UnsupportedTorchError(made)
    module_checks.refuse_backward_hooks(functional.module)
    is_mixed = any(tensors[n].dtype != slot.dtype for n, slot in functional.slots.items())
    for name, slot in functional.slots.items():
        everywhere = [
            getattr(functional.module.get_submodule(path), kind).get(key)
            for path, kind, key in slot.places
        ]
        current = everywhere[0]
        if any(other is not current for other in everywhere):
            raise UnsupportedTorchError(
                f"forward replaces {name} under one of its names alone; write into it"
            )
        if isinstance(current, JaxTensor) and not current.has_set(functional.set_on[name]):
            raise UnsupportedTorchError(
                f"forward changes attributes of the tensor {name}, which the next call would "
                "not see; keep them in a buffer"
            )
        if slot.trainable:
            if current is not tensors[name] or current.is_moved:
                raise UnsupportedTorchError(
                    f"forward replaces the parameter {name}, which would keep the value in "
                    "torch and lose it here; register a buffer, or requires_grad_(False)"
                )
            if not current.needs_grad:
                raise UnsupportedTorchError(
                    f"forward leaves requires_grad of {name} False, which the next call would "
                    "not see; set it before to_jax, or back to True"
                )
            continue
        original = jnp.asarray(buffers[name])
        if current is tensors[name] and current.cell.version == 0 and not current.is_moved:
            after[name] = original
            continue
        has_shape = isinstance(current, torch.Tensor) and current.shape == original.shape
        if not has_shape and name in functional.non_persistent and not holds_inputs(current):
            after[name] = original  # a cache of constants, which every trace makes anew
            continue
        functional.buffers_written.add(name)
        module_checks.refuse_old_mentions(functional.mentions, name, current, tensors[name])
        module_checks.refuse_other_form(name, current, tensors[name], is_mixed=is_mixed)
        after[name] = cast(carried_by_buffer(trace.as_jax_tensor(current), name), original.dtype)
    for name, constant in functional.constants:
        is_read = isinstance(constant, np.ndarray) or id(constant) in trace.adopted
        if name in functional.buffers_written and is_read:
            raise UnsupportedTorchError(
                f"forward writes the buffer {name}, and reads another tensor over the same "
                "memory, which would keep its first values; read the buffer itself"
            )
    for name in functional.numbers_read & functional.buffers_written:
        raise UnsupportedTorchError(
            f"forward writes the buffer {name}, and needs its value in Python (.item(), a "
            "branch or size); a compiled function would see one value for ever: make it an "
            "argument, or use torch.where"
        )
    return after
