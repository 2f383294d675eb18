"""Ranges of rows, and how they move: unions, windows, reshapes.

A range is a pair of int16 tensors, the first row and the negative of the last, that broadcast to
the shape of the tensor whose elements depend on those rows. A union is a minimum.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EMPTY = 2**15 - 1
"""The range of a value that depends on no row."""

Range = tuple[Tensor, Tensor]
"""First row, and the negative of the last."""


def union_of(ranges: Sequence[Range]) -> Range:
    first, last = ranges[0]
    for other_first, other_last in ranges[1:]:
        first, last = torch.minimum(first, other_first), torch.minimum(last, other_last)
    return first, last


def each_end(range: Range, change: Callable[[Tensor], Tensor]) -> Range:
    return change(range[0]), change(range[1])


def reduced(range: Range, axes: Sequence[int]) -> Range:
    """The union along axes, which stay with size 1."""
    for axis in axes:
        if range[0].shape[axis] > 1:
            range = each_end(range, lambda r, axis=axis: amin(r, axis))
    return range


def amin(values: Tensor, axis: int) -> Tensor:
    """By NumPy, which is ten times as fast as torch at minima of int16."""
    return torch.from_numpy(values.numpy().min(axis, keepdims=True))


def aligned(range: Range, ndim: int) -> Range:
    """With leading axes of size 1, up to `ndim` of them."""
    return each_end(range, lambda r: r.reshape((1,) * (ndim - r.ndim) + r.shape))


def compact(values: Tensor) -> Tensor:
    """Size 1 along axes that repeat."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1 and values.stride(axis) == 0:
            values = values.narrow(axis, 0, 1)
    return values


def squeezed(values: Tensor) -> Tensor:
    """Size 1 along axes whose entries are all the same."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1:
            one = values.narrow(axis, 0, 1)
            if bool((values == one).all()):
                values = one
    return values.clone()


def is_constant(range: Range) -> bool:
    return range[0].numel() == 1


def reshape_values(values: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Reshapes `values`, which broadcasts to `before`, so that it broadcasts to `after`.

    Axes are matched in groups of equal products; only groups that vary are expanded.
    """
    expanded, reshaped = [], []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while math.prod(before[start_i:i]) != math.prod(after[start_j:j]):
            if math.prod(before[start_i:i]) < math.prod(after[start_j:j]):
                i += 1
            else:
                j += 1
        varies = any(size > 1 for size in values.shape[start_i:i])
        expanded += before[start_i:i] if varies else [1] * (i - start_i)
        reshaped += after[start_j:j] if varies else [1] * (j - start_j)
    return values.expand(expanded).reshape(reshaped)


def union_of_taps(range: Range, axis: int, taps: Tensor) -> Range:
    """The union over `taps` (results, taps) of indices along an axis; those outside are empty."""
    size = range[0].shape[axis]
    if size == 1:
        return range
    inside = (taps >= 0) & (taps < size)

    def take(values: Tensor) -> Tensor:
        taken = None
        for index, valid in zip(taps.clamp(0, size - 1).unbind(1), inside.unbind(1), strict=True):
            one = values.index_select(axis, index)
            shape = [1] * one.ndim
            shape[axis] = -1
            one = one.masked_fill(~valid.reshape(shape), EMPTY)
            taken = one if taken is None else torch.minimum(taken, one)
        assert taken is not None
        return taken

    return each_end(range, take)


def union_of_windows(
    range_: Range, axis: int, results: int, *, kernel: int, stride: int, padding: int, dilation: int
) -> Range:
    start = torch.arange(results)[:, None] * stride - padding
    return union_of_taps(range_, axis, start + torch.arange(kernel) * dilation)


def without_hidden(range: Range, hidden: Tensor | None) -> Range:
    """The range without hidden elements."""
    return range if hidden is None else each_end(range, lambda r: r.masked_fill(hidden, EMPTY))
