"""Which operators work row by row, and how others reduce rows, for `row_operators.py`.

A rule gets the call's arguments by name, defaults included, and the first tensor with rows: whether
its rows are left apart.
"""

import math
from collections.abc import Callable

import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.schema import Call
from jaxsr.interop._core.selections import selected
from jaxsr.interop._core.tensor import JaxTensor


def _other_dims(call: Call, first: JaxTensor) -> bool:
    dims = call["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    return bool(dims) and first.ndim > 1 and all(dim % first.ndim for dim in dims)


def _new_dim(call: Call, first: JaxTensor) -> bool:
    return call["dim"] % (first.ndim + 1) != 0


def _all_rows(call: Call, first: JaxTensor) -> bool:
    return _other_dims(call, first) or (
        call["start"] in (None, 0) and call["end"] in (None, 2**63 - 1)
    )


def _same_rows(call: Call, first: JaxTensor) -> bool:
    size = call["size"]
    if not size or (size[0] not in (-1, first.shape[0])) or not first.shape[0]:
        return False
    rest = math.prod(first.shape[1:])
    if -1 in size[1:]:
        known = math.prod(n for n in size[1:] if n != -1)
        return size[0] != -1 and known > 0 and rest % known == 0
    return math.prod(size[1:]) == rest


def _padded(call: Call, first: JaxTensor) -> bool:
    return len(call["pad"]) < 2 * first.ndim


def _expanded(call: Call, first: JaxTensor) -> bool:
    size = call["size"]
    return len(size) == first.ndim and size[0] in (-1, first.shape[0])


def _matrix(call: Call, first: JaxTensor) -> bool:
    return selected(call["mat2"]) is None


def _matrix_and_bias(call: Call, first: JaxTensor) -> bool:
    bias = call["self"]
    return _matrix(call, first) and selected(bias) is None and bias.ndim == 1


def _of_table(call: Call, first: JaxTensor) -> bool:
    return selected(call["weight"]) is None


def _joined(call: Call, first: JaxTensor) -> bool:
    return all(t.selection is not None for t in call["tensors"]) and _other_dims(call, first)


def _normalised(call: Call, first: JaxTensor) -> bool:
    return len(call["normalized_shape"]) < first.ndim


LIKE_POINTWISE = (
    aten.detach.default, aten.alias.default, aten._to_copy.default, aten.zeros_like.default,
    aten.ones_like.default, aten.full_like.default, aten.glu.default, aten._prelu_kernel.default,
    aten.log_sigmoid_forward.default, aten.copy_.default, aten.copy.default, aten.fill.Scalar,
    aten.fill.Tensor, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default,
)  # fmt: skip
LOSSES = (
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default,
    aten.binary_cross_entropy.default, aten.binary_cross_entropy_with_logits.default,
    aten.soft_margin_loss.default,
)  # fmt: skip
WITH_WEIGHTS = (
    aten.mm.default, aten.addmm.default, aten.embedding.default, aten.native_layer_norm.default,
)  # fmt: skip
"""Operators that also take tensors without rows."""
ROWWISE: dict[torch._ops.OpOverload, Callable[[Call, JaxTensor], bool]] = {
    **dict.fromkeys(
        (
            aten._softmax.default, aten._log_softmax.default, aten.softmax.int,
            aten.log_softmax.int, aten.sum.dim_IntList, aten.mean.dim, aten.amax.default,
            aten.amin.default, aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default,
            aten.any.dim, aten.all.dim, aten.prod.dim_int, aten.logsumexp.default,
            aten.linalg_vector_norm.default, aten.cumsum.default, aten.cumprod.default,
            aten.sort.default, aten.topk.default, aten.select.int, aten.unbind.int,
            aten.split.Tensor, aten.split_with_sizes.default, aten.squeeze.dim, aten.squeeze.dims,
            aten.gather.default, aten.var.correction, aten.std.correction, aten.norm.ScalarOpt_dim,
        ),
        _other_dims,
    ),
    aten.unsqueeze.default: _new_dim,
    aten.slice.Tensor: _all_rows,
    aten.view.default: _same_rows,
    aten._unsafe_view.default: _same_rows,
    aten.expand.default: _expanded,
    aten.constant_pad_nd.default: _padded,
    aten.mm.default: _matrix,
    aten.addmm.default: _matrix_and_bias,
    aten.embedding.default: _of_table,
    aten.cat.default: _joined,
    aten.native_layer_norm.default: _normalised,
}  # fmt: skip


def _least(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _most(dtype: torch.dtype) -> float:
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


MEANS = (aten.mean.default, aten.mean.dim)
REDUCTIONS: dict[torch._ops.OpOverload, Callable[[torch.dtype], float]] = {
    aten.sum.default: lambda _: 0, aten.sum.dim_IntList: lambda _: 0,
    aten.mean.default: lambda _: 0, aten.mean.dim: lambda _: 0,
    aten.any.default: lambda _: 0, aten.any.dim: lambda _: 0,
    aten.all.default: lambda _: 1, aten.all.dim: lambda _: 1,
    aten.amax.default: _least, aten.amin.default: _most,
    aten.max.default: _least, aten.min.default: _most,
}  # fmt: skip
