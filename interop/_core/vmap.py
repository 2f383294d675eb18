"""`torch.vmap` in forward, as `jax.vmap`."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError

TORCH = importlib.import_module("torch._functorch.vmap")


def vmapped(
    trace: Trace,
    function: Callable,
    in_dims: PyTree,
    out_dims: PyTree,
    randomness: str,
    chunk_size: int | None,
    *args: Any,
    **kwargs: Any,
) -> PyTree:
    """`torch.vmap(function, in_dims, out_dims)(*args, **kwargs)` in a trace.

    Raises:
      ValueError: torch's own, for axes that do not fit the arguments.
      UnsupportedTorchError: the function draws random numbers, or writes to a tensor from outside.
    """
    del randomness, chunk_size
    with plain_torch():
        _, axes, leaves, tree = TORCH._process_batched_inputs(in_dims, args, function)
    places = [i for i, axis in enumerate(axes) if axis is not None]
    tensors = {i: trace.as_jax_tensor(leaves[i]) for i in places}
    draws = trace.draws
    returned: dict[str, Any] = {}

    def run(*arrays: jax.Array) -> list[jax.Array]:
        with Region(writable=False).entered():
            inner = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                inner[i] = trace.wrap(array, tensors[i].dtype)
                inner[i].needs_grad = tensors[i].needs_grad
            flat, returned["tree"] = pytree.tree_flatten(
                function(*pytree.tree_unflatten(inner, tree), **kwargs)
            )
            results = [trace.as_jax_tensor(leaf) for leaf in flat]
            returned["needs_grad"] = [result.needs_grad for result in results]
            returned["dtypes"] = [result.dtype for result in results]
            written = {i: inner[i] for i in places if inner[i].cell.version}
            returned["written"] = {i: tensor.needs_grad for i, tensor in written.items()}
            return [tensor.array() for tensor in (*results, *written.values())]

    batched = jax.vmap(run, in_axes=[axes[i] for i in places])
    arrays = batched(*(tensors[i].array() for i in places))
    if trace.draws != draws:
        raise UnsupportedTorchError(
            "random numbers under torch.vmap; draw them before, and map over them"
        )
    count = len(returned["dtypes"])
    # Writes into an argument are writes into its rows.
    for array, (i, needs_grad) in zip(arrays[count:], returned["written"].items(), strict=True):
        trace.write(tensors[i], jnp.moveaxis(array, 0, axes[i]), needs_grad)
    out_axes = TORCH._broadcast_to_and_flatten(out_dims, returned["tree"])
    outputs: list[JaxTensor] = []
    for array, axis, dtype, needs_grad in zip(
        arrays[:count], out_axes, returned["dtypes"], returned["needs_grad"], strict=True
    ):
        moved = jnp.moveaxis(array, 0, axis)
        with plain_torch():
            meta = torch.empty(moved.shape, dtype=dtype, device="meta")
        outputs.append(trace.wrap_like(moved, meta, needs_grad))
    return pytree.tree_unflatten(outputs, returned["tree"])
