"""Refusals: operators and torch functions that JAX would compute differently, and workarounds.

Also lists operators that torch itself computes, of known values only, and torchax's lowerings that
are not used. A new refusal is one line of a table here.
"""

import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import computes_known, refuse, skip_torchax
from jaxsr.interop._core.tensor import BACKWARD_IN_FORWARD
from jaxsr.interop.errors import GradientInForwardError

_MEMORY = "{} changes a tensor's memory; make a new tensor instead"
_HOOK = (
    "Tensor.register_hook changes gradients, which JAX would not see; "
    "write a torch.autograd.Function with that backward"
)

refuse(
    {
        aten.as_strided_scatter: "as_strided_scatter has no faithful gradient in JAX; "
        "use select_scatter or slice_scatter",
        aten.embedding_renorm_: "embedding with max_norm rewrites its weights in forward; "
        "normalise the rows before the lookup instead",
        aten.linalg_ldl_factor_ex: "LDL factors, whose pivots JAX does not compute; use "
        "torch.linalg.cholesky_ex or lu_factor",
        aten._pack_padded_sequence: "packed sequences; pad the batch and mask the loss instead",
        aten.resize_.default: _MEMORY.format("aten.resize_"),
        aten.set_.default: _MEMORY.format("aten.set_"),
        aten.set_.source_Tensor: _MEMORY.format("aten.set_"),
    }
)
refuse(
    {
        torch.autograd.backward: BACKWARD_IN_FORWARD,
        torch.Tensor.backward: BACKWARD_IN_FORWARD,
    },
    error=GradientInForwardError,
)
refuse(
    {
        torch.Tensor.register_hook: _HOOK,
        torch.Tensor.register_post_accumulate_grad_hook: _HOOK,
        torch._pack_padded_sequence: "packed sequences have no fixed shape; "
        "pad the batch and mask the loss instead",
    }
)
skip_torchax(
    "draws from a key of its own, or otherwise than torch",
    aten.bernoulli,
    aten.cauchy_,
    aten.exponential_,
    aten.geometric,
    aten.multinomial,
    aten.normal,
    aten.rand,
    aten.randint,
    aten.randint_like,
    aten.randn,
    aten.randn_like,
    aten.randperm,
    aten.uniform,
)
computes_known(
    "its result's shape depends on values",
    aten._unique,
    aten._unique2,
    aten.bincount,
    aten.linalg_lstsq,
    aten.unique_consecutive,
    aten.unique_dim,
)
computes_known(
    "of others it selects rows of a mask, whose number depends on values",
    aten.masked_select,
    aten.nonzero,
)
computes_known("it takes sparse tensors", aten.sparse_sampled_addmm)
