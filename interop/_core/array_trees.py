"""Trees of torch tensors as lists of arrays, for JAX transformations of torch functions."""

from collections.abc import Callable, Sequence

import jax
import torch
from torch.utils import _pytree as pytree

from jaxsr.interop._core.dtypes import is_differentiable
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.annotations import PyTree

Arrays = Sequence[jax.Array]
Wrap = Callable[[Arrays], PyTree]
"""Puts arrays into tensors, and these into the tree that the tensors came from."""


def flat_arrays(trace: Trace, tree: PyTree) -> tuple[list[jax.Array], Wrap]:
    """The arrays of a tree of tensors, and its `Wrap`; other leaves stay unchanged."""
    leaves, spec = pytree.tree_flatten(tree)
    tensors = {
        i: trace.as_jax_tensor(leaf)
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    }

    def wrap(arrays: Arrays) -> PyTree:
        wrapped = list(leaves)
        for (i, tensor), array in zip(tensors.items(), arrays, strict=True):
            with plain_torch():
                meta = torch.empty(tuple(array.shape), dtype=tensor.dtype, device="meta")
            wrapped[i] = trace.wrap_like(array, meta, is_differentiable(meta))
        return pytree.tree_unflatten(wrapped, spec)

    return [tensor.array() for tensor in tensors.values()], wrap
