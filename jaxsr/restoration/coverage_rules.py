"""The effect of each of torch's operators on the ranges of its arguments.

A rule takes an `OperatorCall` and returns the range of its result, a list of ranges where there are
several results, or `Scores`. The rules of convolution, pooling and the like are in
`coverage_windows`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from jaxsr.restoration import coverage_windows as windows
from jaxsr.restoration.coverage_ranges import (
    EMPTY,
    Range,
    aligned,
    compact,
    each_end,
    is_constant,
    reduced,
    reshape_values,
    squeezed,
    union_of,
    without_hidden,
)
from jaxsr.restoration.covered_tensor import CoveredTensor, OperatorCall, Scores, aten

_HIDDEN_SCORE = -50.0
"""Attention scores at or below this leave a weight under 2e-22."""


def _unknown(call: OperatorCall) -> Any:
    """An operator without a rule."""
    coverage, name = call.coverage, call.func.overloadpacket.__name__
    coverage.unknown_operations.append(coverage.place(name))
    return call.everything()


def _pointwise(call: OperatorCall) -> Any:
    ndim = call.meta.ndim
    ranges = [aligned(value.range, ndim) for value in call.covered]
    union = union_of(ranges)
    packet, hidden = call.func.overloadpacket, None
    source = call.covered[0]
    keep = (aten.mul, aten.mul_, aten.div, aten.div_) if source.weights else _KEEP_SCORES
    if len(call.covered) == 1 and source.hidden is not None and packet in keep:
        hidden = source.hidden.reshape((1,) * (ndim - source.hidden.ndim) + source.hidden.shape)
    for value in pytree.tree_leaves((call.args, call.kwargs)):
        if isinstance(value, CoveredTensor) or not isinstance(value, Tensor):
            continue
        constant = value.reshape((1,) * (ndim - value.ndim) + value.shape)
        if any(c > 1 and r > 1 for c, r in zip(constant.shape, union[0].shape, strict=True)):
            call.by_position()
        if packet in (aten.add, aten.add_) and constant.is_floating_point():
            hidden = _hide(hidden, constant <= _HIDDEN_SCORE)
        fill = call.args[2] if packet in _FILLS else 0
        if isinstance(fill, int | float) and fill <= _HIDDEN_SCORE:
            hidden = _hide(hidden, constant)
    return Scores(union, hidden, source.weights)


_FILLS = (aten.masked_fill, aten.masked_fill_)


_KEEP_SCORES = (aten.add, aten.add_, *_FILLS)


def _hide(hidden: Tensor | None, more: Tensor) -> Tensor | None:
    if not bool(more.any()):
        return hidden
    return more if hidden is None else hidden | more


def _beside_others(hidden: Tensor, axis: int) -> Tensor | None:
    """The hidden scores of a softmax: not those that are all low alike, which it does not see."""
    hidden = hidden & ~hidden.all(axis, keepdim=True)
    return hidden if bool(hidden.any()) else None


def _same(call: OperatorCall) -> Any:
    """The same element of the first argument, with the tensors that broadcast to it."""
    source = call.args[0]
    ranges = [aligned(value.range, call.covered[0].ndim) for value in call.covered]
    union = union_of(ranges)
    if isinstance(call.meta, tuple | list):
        return [union] * len(call.meta)
    if len(call.covered) > 1 or not isinstance(source, CoveredTensor):
        return union
    return Scores(union, source.hidden, source.weights)


def _nothing(call: OperatorCall) -> Any:
    """Only the shape of the argument counts."""
    empty = torch.full((1,) * call.meta.ndim, EMPTY, dtype=torch.int16)
    return empty, empty


def _moved(call: OperatorCall) -> Any:
    """A view that is not a reshape: the operator itself, on ranges expanded without memory."""
    source = call.args[0]

    def move(values: Tensor) -> Any:
        expanded = values.expand(source.shape)
        moved = call.func(expanded, *call.args[1:], **call.kwargs)
        return compact(moved) if isinstance(moved, Tensor) else [compact(m) for m in moved]

    first, last = (move(values) for values in source.range)
    if isinstance(first, list):
        return list(zip(first, last, strict=True))
    hidden = move(source.hidden) if source.hidden is not None else None
    return Scores((first, last), hidden, source.weights)


def _reshaped(call: OperatorCall) -> Any:
    source, shape = call.args[0], call.meta.shape

    def reshape(values: Tensor) -> Tensor:
        return reshape_values(values, source.shape, shape)

    before = source.range[0]
    ranges = each_end(source.range, reshape)
    if sum(size > 1 for size in before.shape) != sum(size > 1 for size in ranges[0].shape):
        call.by_position()
    hidden = reshape(source.hidden) if source.hidden is not None else None
    return Scores(ranges, hidden, source.weights)


def _shifted(call: OperatorCall) -> Any:
    """Roll, flip, repeat and indices: the operator itself, on expanded ranges."""
    source = call.args[0]
    if not isinstance(source, CoveredTensor) or len(call.covered) > 1:
        return call.everything()

    def move(values: Tensor) -> Tensor:
        return squeezed(call.func(values.expand(source.shape), *call.args[1:], **call.kwargs))

    if is_constant(source.range):
        return aligned(each_end(source.range, lambda r: r.reshape(())), call.meta.ndim)
    call.by_position()
    return each_end(source.range, move)


def _reduction(call: OperatorCall) -> Any:
    source = call.args[0]
    axes = call.argument(1, "dim")
    keep = bool(call.argument(2, "keepdim", False))
    if call.func.overloadpacket is aten.linalg_vector_norm:
        axes, keep = call.argument(2, "dim"), bool(call.argument(3, "keepdim", False))
    if call.func.overloadpacket in (aten.var, aten.std, aten.var_mean, aten.std_mean):
        keep = bool(call.kwargs.get("keepdim", False))
    if axes is None or isinstance(axes, bool) or axes == []:
        axes = range(source.ndim)
    axes = [a % max(source.ndim, 1) for a in ([axes] if isinstance(axes, int) else axes)]
    ranges = reduced(source.range, axes)
    if not keep:
        for axis in sorted(axes, reverse=True):
            ranges = each_end(ranges, lambda r, axis=axis: r.squeeze(axis))
    return [ranges] * len(call.meta) if isinstance(call.meta, tuple) else ranges


def _along(call: OperatorCall) -> Any:
    """Softmax, sorts and Fourier transforms: each element depends on all of its axes."""
    source, axis = call.args[0], call.argument(1, "dim", -1)
    if call.func.overloadpacket in (aten.topk, aten.kthvalue):
        axis = call.argument(2, "dim", -1)
    is_softmax = call.func.overloadpacket in (aten._softmax, aten.softmax)
    hidden = source.hidden if is_softmax and not source.weights else None
    axes = [axis] if isinstance(axis, int) else axis
    if hidden is not None:
        hidden = _beside_others(hidden, axis)
    ranges = reduced(without_hidden(source.range, hidden), [a % source.ndim for a in axes])
    if isinstance(call.meta, Tensor):
        return Scores(ranges, hidden, weights=True)
    return [ranges] * len(call.meta)


def _layer_norm(call: OperatorCall) -> Any:
    source, normalized = call.args[0], call.args[1]
    ranges = reduced(source.range, range(source.ndim - len(normalized), source.ndim))
    return [ranges, ranges, ranges]


def _group_norm(call: OperatorCall) -> Any:
    source = call.args[0]
    ranges = reduced(source.range, range(1, source.ndim))
    flat = each_end(ranges, lambda r: r.reshape(-1, 1))
    return [ranges, flat, flat]


def _batch_norm(call: OperatorCall) -> Any:
    source = call.args[0]
    trained = call.func.overloadpacket is aten.native_batch_norm and call.args[5]
    ranges = source.range
    if trained:  # also how instance_norm is computed
        ranges = reduced(ranges, [0, *range(2, source.ndim)])
    flat = each_end(ranges, lambda r: r.amin().reshape(1))
    return [ranges, *[flat] * (len(call.meta) - 1)]


def _product(call: OperatorCall) -> Any:
    """Matrix products: (…, n, k) × (…, k, m)."""
    if call.func.overloadpacket in (aten.addmm, aten.baddbmm):
        bias, left, right = call.args[:3]
    else:
        (left, right), bias = call.args[:2], None
    if call.func.overloadpacket is aten.mv:
        right = right.unsqueeze(-1)
    if call.func.overloadpacket is aten.linear:
        right, bias = right.t(), call.argument(2, "bias")
    hidden = left.hidden if isinstance(left, CoveredTensor) and left.weights else None
    ranges: list[Range] = []
    ndim = max(left.ndim, right.ndim)
    if isinstance(left, CoveredTensor):
        seen = reduced(without_hidden(left.range, hidden), [left.ndim - 1])
        ranges.append(aligned(seen, ndim))
    if isinstance(right, CoveredTensor):
        seen = right.range
        if hidden is not None:
            # Rows of the right side that a hidden score keeps out.
            seen = reduced(seen, [right.ndim - 1])
            turned = each_end(seen, lambda r: r.transpose(-1, -2))
            seen = reduced(without_hidden(turned, hidden), [right.ndim - 1])
        else:
            seen = reduced(seen, [right.ndim - 2])
        ranges.append(aligned(seen, ndim))
    for one, other in ((left, right), (right, left)):
        if not isinstance(one, CoveredTensor) and isinstance(other, CoveredTensor):
            contracted = other.ndim - 1 if other is left else other.ndim - 2
            if other.range[0].shape[contracted] > 1:
                call.by_position()
    if isinstance(bias, CoveredTensor):
        ranges.append(aligned(bias.range, ndim))
    union = union_of(ranges)
    return each_end(union, lambda r: r.squeeze(-1)) if call.meta.ndim < ndim else union


def _attention(call: OperatorCall) -> Any:
    query, key, value = call.args[:3]
    mask = call.kwargs.get("attn_mask", call.argument(5, "attn_mask"))
    hidden = None
    if isinstance(mask, Tensor) and not isinstance(mask, CoveredTensor):
        hidden = _beside_others(~mask if mask.dtype == torch.bool else mask <= _HIDDEN_SCORE, -1)
    read = [each_end(reduced(v.range, [v.ndim - 1]), lambda r: r.transpose(-1, -2))
            for v in (key, value) if isinstance(v, CoveredTensor)]  # fmt: skip
    read = [reduced(without_hidden(r, hidden), [query.ndim - 1]) for r in read]
    asked = [reduced(query.range, [query.ndim - 1])] if isinstance(query, CoveredTensor) else []
    ranges = union_of([*asked, *read])
    if isinstance(call.meta, Tensor):
        return ranges
    return [ranges if m.ndim == query.ndim else each_end(ranges, lambda r: r.squeeze(-1))
            for m in call.meta]  # fmt: skip


def _concatenated(call: OperatorCall) -> Any:
    parts = [v for v in call.args[0] if v.numel()]
    stacks = call.func.overloadpacket is aten.stack
    ndim = call.meta.ndim
    axis = call.argument(1, "dim", 0) % ndim
    ranges = []
    for part in parts:
        if isinstance(part, CoveredTensor):
            ranges.append(
                each_end(part.range, lambda r: r.unsqueeze(axis)) if stacks else part.range
            )
        else:
            empty = torch.full((1,) * ndim, EMPTY, dtype=torch.int16)
            ranges.append((empty, empty))
    sizes = [1 if stacks else part.shape[axis] for part in parts]
    alike = all(r[0].shape[axis] == 1 for r in ranges)
    if alike and all(
        torch.equal(a, b) for r in ranges[1:] for a, b in zip(r, ranges[0], strict=True)
    ):
        return ranges[0]
    if not alike and axis != 1:  # channels may well reach differently far
        call.by_position()

    def join(side: int) -> Tensor:
        shapes = [r[side].shape for r in ranges]
        common = [max(s[d] for s in shapes) for d in range(ndim)]
        return torch.cat(
            [r[side].expand([*common[:axis], n, *common[axis + 1 :]])
             for r, n in zip(ranges, sizes, strict=True)], axis
        )  # fmt: skip

    return join(0), join(1)


def _shuffled(call: OperatorCall) -> Any:
    """pixel_shuffle and pixel_unshuffle."""
    source, factor = call.args[0], call.args[1]
    *lead, c, h, w = source.shape
    if call.func.overloadpacket is aten.pixel_shuffle:
        split, order = [*lead, c // factor**2, factor, factor, h, w], (0, 3, 1, 4, 2)
    else:
        split = [*lead, c, h // factor, factor, w // factor, factor]
        order = (0, 2, 4, 1, 3)
    axes = [*range(len(lead)), *(len(lead) + o for o in order)]

    def move(values: Tensor) -> Tensor:
        parts = reshape_values(values, source.shape, split).permute(axes)
        sizes = [split[a] for a in axes]
        return reshape_values(parts, sizes, call.meta.shape)

    varies = source.range[0].shape
    if varies[-3] > 1 or call.func.overloadpacket is aten.pixel_unshuffle:
        call.by_position()
    return each_end(source.range, move)


def _rules(
    names: str, rule: Callable[[OperatorCall], Any]
) -> dict[torch._ops.OpOverloadPacket, Callable[[OperatorCall], Any]]:
    packets = (getattr(aten, name, None) for name in names.split())
    return {packet: rule for packet in packets if packet is not None}


_RULES: dict[torch._ops.OpOverloadPacket, Callable[[OperatorCall], Any]] = {
    **_rules("clone contiguous _to_copy to detach alias lift_fresh dropout native_dropout "
             "_prelu_kernel prelu copy_ hardtanh hardtanh_ relu6 relu relu_ leaky_relu_ "
             "type_as rrelu_with_noise", _same),
    **_rules("zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones "
             "new_full new_empty zero_ fill_ size", _nothing),
    **_rules("permute transpose t unsqueeze squeeze expand slice select narrow split "
             "split_with_sizes chunk unbind swapaxes movedim unfold diagonal view_as_real "
             "unsafe_split unsafe_split_with_sizes unsafe_chunk", _moved),
    **_rules("view _unsafe_view reshape _reshape_alias flatten unflatten", _reshaped),
    **_rules("roll flip repeat index index_select repeat_interleave gather tril triu "
             "channel_shuffle native_channel_shuffle rot90", _shifted),
    **_rules("im2col", windows.unfolded),
    **_rules("constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d "
             "replication_pad2d", windows.padded),
    **_rules("convolution _convolution", windows.convolution),
    **_rules("max_pool1d max_pool2d max_pool2d_with_indices avg_pool1d avg_pool2d", windows.pool),
    **_rules("adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d",
             windows.adaptive_pool),
    **_rules("upsample_nearest1d upsample_nearest2d _upsample_nearest_exact2d upsample_linear1d "
             "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
             "_upsample_bicubic2d_aa", windows.upsample),
    **_rules("sum mean amax amin max min prod any all var std var_mean std_mean logsumexp "
             "linalg_vector_norm norm argmax argmin count_nonzero median", _reduction),
    **_rules("_softmax _log_softmax softmax sort topk cumsum cumprod argsort _fft_r2c _fft_c2c "
             "_fft_c2r", _along),
    **_rules("native_layer_norm", _layer_norm),
    **_rules("native_group_norm", _group_norm),
    **_rules("native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit",
             _batch_norm),
    **_rules("mm bmm addmm baddbmm linear mv", _product),
    **_rules("_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
             "_scaled_dot_product_attention_math scaled_dot_product_attention", _attention),
    **_rules("cat stack", _concatenated),
    **_rules("pixel_shuffle pixel_unshuffle", _shuffled),
}  # fmt: skip


def rule_of(func: torch._ops.OpOverload) -> Callable[[OperatorCall], Any]:
    """The rule of an overload of an operator."""
    default = _pointwise if torch.Tag.pointwise in func.tags else _unknown
    return _RULES.get(func.overloadpacket, default)
