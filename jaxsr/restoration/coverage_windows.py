"""Effects on ranges of operators that read a window of pixels: the rules of `coverage_rules`.

Padding, convolution, pooling and interpolation, along each axis of an image by itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from jaxsr.restoration.coverage_ranges import (
    EMPTY,
    amin,
    each_end,
    reduced,
    squeezed,
    union_of,
    union_of_taps,
    union_of_windows,
)
from jaxsr.restoration.covered_tensor import CoveredTensor, OperatorCall, aten


def unfolded(call: OperatorCall) -> Any:
    """im2col, on int32, which torch has it for in no integer dtype."""
    source = call.args[0]
    call.by_position()

    def move(values: Tensor) -> Tensor:
        # One channel stands for all where they are alike: the blocks of a channel lie together.
        varies = values.shape[1] > 1
        channels = values.expand(source.shape) if varies else values.expand(
            source.shape[0], 1, *source.shape[2:])  # fmt: skip
        padding = _pairs(call.args[3], 2)
        ahead = torch.nn.functional.pad(
            channels.float(), (padding[1], padding[1], padding[0], padding[0]), value=EMPTY
        )
        blocks = aten.im2col(ahead, call.args[1], call.args[2], [0, 0], call.args[4])
        blocks = blocks.to(torch.int16)
        if not varies:
            blocks = blocks.repeat(1, source.shape[1], 1)
        return squeezed(blocks)

    return each_end(source.range, move)


def padded(call: OperatorCall) -> Any:
    """Padding with a number, by reflection or by repetition."""
    source, pads = call.args[0], call.args[1]
    mode = {
        "constant_pad_nd": "constant", "reflection_pad1d": "reflect", "reflection_pad2d": "reflect",
        "replication_pad1d": "replicate", "replication_pad2d": "replicate",
    }[call.func.overloadpacket.__name__]  # fmt: skip
    ranges = source.range
    for index in range(len(pads) // 2):
        axis, (left, right) = source.ndim - 1 - index, pads[2 * index : 2 * index + 2]
        size = source.shape[axis]
        if ranges[0].shape[axis] == 1 or not (left or right):
            continue
        call.coverage.widest = max(call.coverage.widest, left, right)
        taps = torch.arange(-left, size + right)
        if mode == "reflect":
            taps = (size - 1) - ((size - 1) - taps.abs()).abs()
        if mode != "constant":
            ranges = each_end(ranges, lambda r, a=axis, t=taps, n=size: r.index_select(
                a, t.clamp(0, n - 1)))  # fmt: skip
            continue
        ranges = union_of_taps(ranges, axis, taps[:, None])
    return ranges


def _pairs(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def convolution(call: OperatorCall) -> Any:
    """Convolution and transposed convolution, in groups."""
    source, weight = call.args[0], call.args[1]
    stride, padding, dilation, transposed, _, groups = call.args[3:9]
    if not isinstance(source, CoveredTensor):
        return call.everything()
    spatial = source.ndim - 2
    ranges = source.range
    if ranges[0].shape[1] > 1:
        in_group = source.shape[1] // groups

        def gather(values: Tensor) -> Tensor:
            grouped = values.reshape(values.shape[0], groups, in_group, *values.shape[2:])
            return amin(grouped, 2).squeeze(2).repeat_interleave(call.meta.shape[1] // groups, 1)

        ranges = each_end(ranges, gather) if groups > 1 else reduced(ranges, [1])
    for index in range(spatial):
        axis = 2 + index
        kernel = weight.shape[2 + index]
        s, p, d = (_pairs(v, spatial)[index] for v in (stride, padding, dilation))
        if ranges[0].shape[axis] == 1:
            continue
        call.coverage.widest = max(call.coverage.widest, d * (kernel - 1))
        results = call.meta.shape[axis]
        if transposed:
            reached = torch.arange(results)[:, None] + p - torch.arange(kernel) * d
            taps = torch.where(reached % s == 0, reached // s, -1)
            ranges = union_of_taps(ranges, axis, taps)
        else:
            ranges = union_of_windows(
                ranges, axis, results, kernel=kernel, stride=s, padding=p, dilation=d
            )
        if s > 1:
            call.by_position()
    dynamic = [v for v in call.covered if v is not source]
    return union_of([ranges, *(each_end(v.range, lambda r: r.amin().reshape(1, 1, *([1] * spatial)))
                             for v in dynamic)])  # fmt: skip


def pool(call: OperatorCall) -> Any:
    """Largest values and means of windows of one size."""
    source = call.args[0]
    spatial = len(_pairs(call.args[1], 2))
    meta = call.meta[0] if isinstance(call.meta, tuple) else call.meta
    is_max = "max" in call.func.overloadpacket.__name__
    kernels = _pairs(call.args[1], spatial)
    strides = _pairs(call.argument(2, "stride") or kernels, spatial)
    paddings = _pairs(call.argument(3, "padding", 0), spatial)
    dilations = _pairs(call.argument(4, "dilation", 1) if is_max else 1, spatial)
    ranges = source.range
    for index in range(spatial):
        axis = source.ndim - spatial + index
        if ranges[0].shape[axis] == 1:
            continue
        ranges = union_of_windows(
            ranges, axis, meta.shape[axis], kernel=kernels[index], stride=strides[index],
            padding=paddings[index], dilation=dilations[index],
        )  # fmt: skip
        if strides[index] > 1:
            call.by_position()
    return [ranges] * len(call.meta) if isinstance(call.meta, tuple) else ranges


def adaptive_pool(call: OperatorCall) -> Any:
    """Pooling to a number of results: windows of sizes that differ."""
    source = call.args[0]
    meta = call.meta[0] if isinstance(call.meta, tuple) else call.meta
    ranges = source.range
    for axis in range(2, source.ndim):
        size, results = source.shape[axis], meta.shape[axis]
        start = torch.arange(results) * size // results
        end = -(-(torch.arange(results) + 1) * size // results)
        longest = int((end - start).max())
        taps = start[:, None] + torch.arange(longest)
        if ranges[0].shape[axis] > 1:
            call.by_position()
        ranges = union_of_taps(ranges, axis, torch.where(taps < end[:, None], taps, -1))
    return [ranges] * len(call.meta) if isinstance(call.meta, tuple) else ranges


_KERNELS = {"nearest": 1, "bicubic": 4, "linear": 2}
"""Pixels that an interpolation reads along each axis, by a part of its operator's name."""


def upsample(call: OperatorCall) -> Any:
    """Interpolation, by its taps; at other than whole multiples it depends on the position."""
    source = call.args[0]
    name = call.func.overloadpacket.__name__
    mode = next(kind for kind in _KERNELS if kind in name)
    antialias = name.endswith("_aa")
    corners = mode != "nearest" and bool(call.args[2])
    reads = _KERNELS[mode]
    ranges = source.range
    for axis in range(2, source.ndim):
        size, results = source.shape[axis], call.meta.shape[axis]
        if ranges[0].shape[axis] == 1 or size == results:
            continue
        step = (size - 1) / max(results - 1, 1) if corners else size / results
        at = torch.arange(results, dtype=torch.float64)
        position = at * step if corners else (at + 0.5) * step - 0.5
        if mode == "nearest":
            taps = (at * step).floor().long()[:, None]
        else:
            half = reads // 2 * (max(step, 1.0) if antialias else 1)
            low = (position - half + 1e-6).ceil().long()
            count = int(2 * half) + 1
            taps = low[:, None] + torch.arange(count)
            taps = torch.where(taps <= (position + half)[:, None], taps, low[:, None])
        ranges = union_of_taps(ranges, axis, taps.clamp(0, size - 1))
        if results % size or corners:
            call.by_position()
    return ranges
