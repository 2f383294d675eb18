"""`torch.autograd.grad` inside a module's code, and tensors that it marks with `requires_grad_`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.forward_gradients import GradCall
from jaxsr.interop._core.registry import overrides
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop.errors import UnsupportedTorchError


@overrides(torch.autograd.grad)
def _grad(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> tuple:
    return _gradients(trace, *args, **kwargs)


def _gradients(
    trace: Trace,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """torch's function of that name, with its errors."""
    del retain_graph, only_inputs
    if Region.current() is not None:
        raise UnsupportedTorchError(
            "torch.autograd.grad inside torch.utils.checkpoint (or remat=), torch.vmap, "
            "torch.func, control flow or an autograd.Function; call it outside"
        )
    ends = [_tensor(trace, t, "output", i) for i, t in enumerate(_as_tuple(outputs))]
    starts = [_tensor(trace, t, "input", i) for i, t in enumerate(_as_tuple(inputs))]
    gradients = (None,) * len(ends) if grad_outputs is None else _as_tuple(grad_outputs)
    if len(gradients) != len(ends):
        raise RuntimeError(
            f"torch.autograd.grad got {len(ends)} outputs and {len(gradients)} grad_outputs; pass "
            "one for each, or none"
        )
    cotangents = [
        _cotangent(trace, end, gradient, is_grads_batched)
        for end, gradient in zip(ends, gradients, strict=True)
    ]
    call = GradCall(
        outputs=[t.array() for t in ends],
        cotangents=[t.array() for t in cotangents],
        inputs=[t.array() for t in starts],
        batched=is_grads_batched,
    )
    arrays = trace.gradients.compute(
        call, allow_unused=bool(allow_unused) and not materialize_grads
    )
    results: list[torch.Tensor | None] = []
    for i, (start, array) in enumerate(zip(starts, arrays, strict=True)):
        if array is None and not (materialize_grads or allow_unused):
            raise RuntimeError(
                f"input {i} of torch.autograd.grad, of shape {tuple(start.shape)}, has no "
                "gradient: the output was not computed from this tensor, or under no_grad(), after "
                "detach(), or in another method (as `share` of an objective); allow_unused=True "
                "returns None"
            )
        if array is None and materialize_grads:
            array = jnp.zeros_like(start.array())  # noqa: PLW2901
        results.append(None if array is None else _result(trace, start, array, create_graph))
    return dict(zip(inputs, results, strict=True)) if type(inputs) is dict else tuple(results)


def _result(trace: Trace, start: JaxTensor, array: jax.Array, create_graph: bool) -> torch.Tensor:
    with plain_torch():
        meta = torch.empty(tuple(array.shape), dtype=start.dtype, device="meta")
    value = array.conj() if start.is_complex() else array
    with torch.set_grad_enabled(create_graph):
        return trace.wrap_like(value, meta, needs_grad=True)


def _as_tuple(tensors: Any) -> Sequence[Any]:
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    return tuple(tensors.values() if type(tensors) is dict else tensors)


def _tensor(trace: Trace, tensor: Any, role: str, index: int) -> JaxTensor:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedTorchError(
            f"{role} {index} of torch.autograd.grad is a {type(tensor).__name__}; pass the tensor"
        )
    return trace.as_jax_tensor(tensor)


def _cotangent(
    trace: Trace, output: JaxTensor, gradient: torch.Tensor | None, batched: bool
) -> JaxTensor:
    if gradient is None:
        if output.numel() != 1:
            raise RuntimeError(
                "grad can be implicitly created only for scalar outputs, got shape "
                f"{tuple(output.shape)}; pass grad_outputs="
            )
        gradient = torch.ones_like(output)
    shape = tuple(gradient.shape)[1 if batched else 0 :]
    if shape != tuple(output.shape):
        raise RuntimeError(
            f"grad_outputs has shape {tuple(gradient.shape)} for an output of shape "
            f"{tuple(output.shape)}; make them equal"
        )
    gradient = gradient.to(output.dtype)
    return trace.as_jax_tensor(gradient.conj() if gradient.is_complex() else gradient)
