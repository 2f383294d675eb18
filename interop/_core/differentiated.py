"""Whether JAX differentiates by inputs of a tensor: torch's `requires_grad`.

Torch's inputs are marked before the call. JAX's are not: `jax.grad` around `apply` shows itself in
the value where it is not jitted, and otherwise only when the compiled function is differentiated,
long after the code has got its answer. So a value that is asked about goes through a function whose
derivative speaks up, then or later.
"""

import linecache
import sys
from functools import partial
from typing import Any

import jax

from jaxsr.interop._core.stack_frames import code_around, is_outside_frameworks, users_frame
from jaxsr.interop._core.trace_scope import Region
from jaxsr.interop.errors import UnsupportedTorchError


class _Question:
    """One that code has asked, and where."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.is_differentiated = False
        self.is_answered = False


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _probe(question: _Question, value: jax.Array) -> jax.Array:
    del question
    return value


@_probe.defjvp
def _probe_jvp(question: _Question, primals: tuple, tangents: tuple) -> tuple:
    if question.is_answered and not question.is_differentiated:
        raise UnsupportedTorchError(
            f"{question.place} asks for requires_grad of a tensor that a gradient is now taken by; "
            "within jax.jit the answer was False: mark the tensor with requires_grad_() before, or "
            "jit the function that takes the gradient instead of the one that is differentiated"
        )
    question.is_differentiated = True
    return primals[0], tangents[0]


def asked_by_user() -> bool:
    """Whether the code that reads the property of a tensor is neither torch's nor ours."""
    return is_outside_frameworks(code_around().f_code.co_filename)


def is_differentiated(tensor: Any) -> bool:
    """Whether torch would say that a tensor requires a gradient which is marked nowhere.

    Raises:
      UnsupportedTorchError: it is asked within a region whose values do not show it. Where a
        compiled function is differentiated later, JAX raises it then.
    """
    if (
        tensor.is_frozen
        or tensor.const is not None
        or not (tensor.is_floating_point() or tensor.is_complex())
    ):
        return False
    if (region := Region.current()) is not None and not region.writable:
        raise UnsupportedTorchError(
            f"{_place()} asks for requires_grad inside an autograd.Function, torch.vmap or "
            "torch.func, which JAX does not tell there; ask outside"
        )
    question = _Question(_place())
    _probe(question, tensor.array())
    question.is_answered = True
    return question.is_differentiated


def _place() -> str:
    if (frame := users_frame(sys._getframe(1))) is None:
        return "the code"
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{file}:{line} `{linecache.getline(file, line).strip()}`"
