"""Checks of values, where torch raises and a compiled program cannot.

They are those of matrices, assertions, and the arguments of torch's distributions. Failures are
collected (`index_bounds.py`). Code that catches the error decides by it. Such code is refused,
where its `try` can be seen.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import torch

from jaxsr.interop._core.index_bounds import check_values, place_in_code
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.recipes import known_value
from jaxsr.interop._core.registry import handles, lowers, overrides
from jaxsr.interop._core.stack_frames import code_around, try_around
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.lowerings.torch_functions import value_in_python

_CATCHING = frozenset({"LinAlgError", "RuntimeError", "Exception", "BaseException", ""})


@handles(aten._linalg_check_errors.default)
def _check_matrix(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    (info, name), is_matrix = args, kwargs["is_matrix"]
    if info.const is not None:
        with plain_torch():
            func(info.const, name, is_matrix=is_matrix)
    elif place := try_around(_CATCHING):
        raise UnsupportedTorchError(
            f"{name} inside `try` at {place}: whether it raises depends on values, and a compiled "
            "program cannot; use the function whose name ends in _ex (cholesky_ex, inv_ex, "
            "solve_ex), and torch.where(info > 0, …)"
        )
    else:
        check_values(
            f"{name}{place_in_code()} takes a matrix that is singular or not positive-definite",
            info.array() != 0,
        )


@lowers(aten._assert_scalar.default, aten._assert_tensor_metadata.default)
def _nothing(*_: object, **__: object) -> None:
    """Python numbers, sizes and dtypes, which torch itself knows while it is traced."""


@handles(aten._assert_async.default, aten._assert_async.msg)
def _assert(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    condition, *message = args
    if condition.const is not None:
        with plain_torch():
            func(condition.const, *message)
        return
    text = f": {message[0]}" if message and isinstance(message[0], str) else ""
    check_values(f"an assertion{place_in_code()} fails{text}", ~condition.array().astype(bool))


_VALIDATION = {
    (f"{folder}/{file}.py", function)
    for folder in [str(Path(torch.distributions.__file__).parent)]
    for file, function in (
        ("distribution", "__init__"), ("distribution", "_validate_sample"),
        ("constraints", "check"), ("uniform", "__init__"), ("geometric", "__init__"),
        ("continuous_bernoulli", "__init__"),
    )
}  # fmt: skip
"""Where torch's distributions ask whether all values are valid, and raise where one is not."""


@overrides(torch.Tensor.__bool__)
def _truth(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> bool:
    frame = code_around()
    if frame.f_code.co_name == "_all_true_or_runtime_assert" and frame.f_back is not None:
        frame = frame.f_back  # where torch 2.15 asks for a distribution
    place = (frame.f_code.co_filename, frame.f_code.co_name)
    if place not in _VALIDATION or known_value(trace.as_jax_tensor(args[0])) is not None:
        return value_in_python(trace, func, args, kwargs)
    valid = args[0].array()
    if not isinstance(valid, jax.core.Tracer):
        return bool(valid)
    name = type(frame.f_locals["self"]).__name__
    check_values(f"{name}{place_in_code()} takes values outside of its constraints", ~valid)
    return True
