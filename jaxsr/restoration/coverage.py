"""Which rows of a picture each value inside a network depends on, read from its operations.

A torch module runs on `CoveredTensor`s. They hold no values, only shapes (torch's meta device) and,
for every element, the first and last row of the input picture that it depends on. Each operation
combines these ranges: a convolution takes the union over its taps, a sum over its axes, a view
moves them. The result is an upper bound, exact for the usual layers. What is computed from
constants alone has values, so that attention masks count: a score of -50 or less is no influence.

Ranges are pairs of int16 tensors (first, -last) that broadcast to the tensor's shape, so that a
union is a minimum. An operator without a rule makes its result depend on all that went in.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree

EMPTY = 2**15 - 1
"""The range of a value that depends on no row."""
_MOST_CHECKED = 2**16
"""Entries of a range that are looked at for global operations; those have few."""
_HIDDEN_SCORE = -50.0
"""Attention scores at or below this leave a weight under 2e-22."""

aten = torch.ops.aten
Range = tuple[Tensor, Tensor]
"""First row, and the negative of the last."""


class NotAnalysedError(Exception):
    """The network does what ranges cannot follow: it branches on values, or writes into views."""


@dataclass(eq=False)
class Coverage:
    """What one run found."""

    rows: int
    """Height of the picture."""
    global_operation: str | None = None
    """The first operation whose every result depends on all rows, and no input on a quarter."""
    position_operations: list[str] = field(default_factory=list)
    """Operations that may treat rows by their position, in order of execution."""
    unknown_operations: list[str] = field(default_factory=list)
    """Operators without a rule."""
    largest: int = 0
    """Values of the largest tensor that a submodule returned."""
    path: list[str] = field(default_factory=list)
    """Submodules that are running, by name and class."""
    versions: dict[int, int] = field(default_factory=dict)

    def place(self, operation: str) -> str:
        """An operation as messages name it."""
        return f"{operation} in {self.path[-1]}" if self.path else operation


class CoveredTensor(Tensor):
    """A tensor without values; `range` broadcasts to its shape."""

    meta: Tensor
    range: Range
    hidden: Tensor | None
    """Where it is so low a score that softmax makes it 0, or that 0; broadcasts to the shape."""
    weights: bool
    """Whether softmax has made weights of the scores."""
    coverage: Coverage
    version: int

    @staticmethod
    def __new__(cls, meta: Tensor, range: Range, coverage: Coverage) -> "CoveredTensor":
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, meta.shape, strides=meta.stride(), storage_offset=meta.storage_offset(),
            dtype=meta.dtype, device=torch.device("cpu"),
        )  # fmt: skip
        made.meta, made.range, made.coverage = meta, range, coverage
        made.hidden, made.weights = None, False
        made.version = coverage.versions.setdefault(_storage(meta), 0)
        return made

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"CoveredTensor{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, tuple(args), dict(kwargs or {}))


def cover(network: nn.Module, *, channels: int, rows: int, columns: int, axis: int) -> Any:
    """Runs a network on a picture that it is not shown.

    Args:
      network: takes (1, `channels`, height, width), on the CPU, in evaluation mode.
      channels: of the picture.
      rows: of the picture along `axis`; at most 2**14.
      columns: along the other axis.
      axis: 2 follows rows, 3 follows columns.

    Returns:
      The network's output, and the `Coverage` of the run.

    Raises:
      NotAnalysedError: see the class.
      Exception: whatever the network raises.
    """
    size = (rows, columns) if axis == 2 else (columns, rows)
    meta = torch.empty((1, channels, *size), device="meta")
    shape = [1, 1, 1, 1]
    shape[axis] = rows
    index = torch.arange(rows, dtype=torch.int16).reshape(shape)
    coverage = Coverage(rows=rows)
    with torch.no_grad(), _names(network, coverage):
        output = network(CoveredTensor(meta, (index, -index), coverage))
    if isinstance(output, CoveredTensor):
        _check_version(output)
    return output, coverage


@contextmanager
def _names(network: nn.Module, coverage: Coverage) -> Iterator[None]:
    names = {
        module: f"{name!r} ({type(module).__name__})" if name else type(module).__name__
        for name, module in network.named_modules()
    }

    def enter(module: nn.Module, _inputs: tuple) -> None:
        coverage.path.append(names.get(module, type(module).__name__))

    def leave(_module: nn.Module, _inputs: tuple, output: object) -> None:
        coverage.path.pop()
        if isinstance(output, Tensor):
            coverage.largest = max(coverage.largest, output.numel())

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
        yield


def _storage(meta: Tensor) -> int:
    return meta.untyped_storage()._cdata


def _dispatch(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    flat = pytree.tree_leaves((args, kwargs))
    covered = [value for value in flat if isinstance(value, CoveredTensor)]
    coverage = covered[0].coverage
    for value in covered:
        _check_version(value)
    try:
        meta = func(*pytree.tree_map(_to_meta, args), **pytree.tree_map(_to_meta, kwargs))
    except (NotImplementedError, RuntimeError) as error:
        if func in (aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default):
            raise NotAnalysedError("a branch on a value") from error
        raise
    packet = func.overloadpacket
    rule = _RULES.get(packet)
    if rule is None and torch.Tag.pointwise in func.tags:
        rule = _pointwise
    if rule is None:
        rule = _unknown
        coverage.unknown_operations.append(coverage.place(packet.__name__))
    call = _Call(func, args, kwargs, meta, coverage, covered)
    result = rule(call)
    scores = result if isinstance(result, _Scores) else None
    ranges: Any = scores.range if scores else result
    if func._schema.is_mutable:
        return _written(call, args[0], ranges, scores)
    if isinstance(meta, Tensor):
        made = CoveredTensor(meta, ranges, coverage)
        if scores:
            made.hidden, made.weights = scores.hidden, scores.weights
        _note_global(call, made)
        return made
    if isinstance(ranges, tuple) and len(ranges) == 2 and isinstance(ranges[0], Tensor):
        ranges = [ranges] * len(meta)  # one range for each of several results
    results = [
        CoveredTensor(m, r, coverage) if isinstance(m, Tensor) else m
        for m, r in zip(meta, ranges, strict=True)
    ]
    if isinstance(results[0], CoveredTensor):
        _note_global(call, results[0])
    return type(meta)(results) if isinstance(meta, tuple | list) else results


def _check_version(value: CoveredTensor) -> None:
    if value.coverage.versions[_storage(value.meta)] != value.version:
        raise NotAnalysedError("a write through a view")


def _to_meta(value: Any) -> Any:
    if isinstance(value, CoveredTensor):
        return value.meta
    if isinstance(value, Tensor):
        return value.to("meta") if value.ndim else value
    return torch.device("meta") if isinstance(value, torch.device) else value


def _written(call: "_Call", target: Any, ranges: Any, scores: "_Scores | None") -> Any:
    """An operation in place: other views of the same memory may not be read any more."""
    if not isinstance(target, CoveredTensor):
        raise NotAnalysedError("a write into a constant")
    before, after = target.range, ranges
    if any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        storage = _storage(target.meta)
        call.coverage.versions[storage] += 1
        target.version = call.coverage.versions[storage]
    target.range = ranges
    target.hidden, target.weights = (scores.hidden, scores.weights) if scores else (None, False)
    return target


def _note_global(call: "_Call", made: CoveredTensor) -> None:
    coverage = call.coverage
    if coverage.global_operation is None and _is_everything(made.range, coverage.rows):
        spans = (-(v.range[1].numpy() + v.range[0].numpy()) for v in call.covered)
        if all(span.max() < coverage.rows // 4 for span in spans):
            name = call.func.overloadpacket.__name__
            coverage.global_operation = f"{coverage.place(name)} depends on the whole picture"


def _is_everything(range: Range, rows: int) -> bool:
    first, last = range
    if first.numel() > _MOST_CHECKED:
        return False
    return bool(first.numpy().max() == 0 and last.numpy().max() == 1 - rows)


@dataclass(frozen=True, eq=False)
class _Call:
    """One operator with its arguments and the shapes of its results."""

    func: Any
    args: tuple
    kwargs: dict[str, Any]
    meta: Any
    coverage: Coverage
    covered: list[CoveredTensor]

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if index < len(self.args):
            return self.args[index]
        return self.kwargs.get(name, default)

    def by_position(self) -> None:
        """Notes that the operation may treat rows by their position."""
        name = self.func.overloadpacket.__name__
        self.coverage.position_operations.append(self.coverage.place(name))


@dataclass(frozen=True, eq=False)
class _Scores:
    range: Range
    hidden: Tensor | None
    weights: bool = False


def _union(ranges: Sequence[Range]) -> Range:
    first, last = ranges[0]
    for other_first, other_last in ranges[1:]:
        first, last = torch.minimum(first, other_first), torch.minimum(last, other_last)
    return first, last


def _each(range: Range, change: Callable[[Tensor], Tensor]) -> Range:
    return change(range[0]), change(range[1])


def _reduced(range: Range, axes: Sequence[int]) -> Range:
    """The union along axes, which stay with size 1."""
    for axis in axes:
        if range[0].shape[axis] > 1:
            range = _each(range, lambda r, axis=axis: _amin(r, axis))
    return range


def _amin(values: Tensor, axis: int) -> Tensor:
    """By NumPy, which is ten times as fast as torch at minima of int16."""
    return torch.from_numpy(values.numpy().min(axis, keepdims=True))


def _aligned(range: Range, ndim: int) -> Range:
    """With leading axes of size 1, up to `ndim` of them."""
    return _each(range, lambda r: r.reshape((1,) * (ndim - r.ndim) + r.shape))


def _unknown(call: _Call) -> Any:
    """Depends on all of all arguments."""
    whole = _union([_each(v.range, lambda r: r.amin().reshape(())) for v in call.covered])
    metas = [call.meta] if isinstance(call.meta, Tensor) else call.meta
    call.by_position()
    ranges = [_aligned(whole, m.ndim) if isinstance(m, Tensor) else whole for m in metas]
    return ranges[0] if isinstance(call.meta, Tensor) else ranges


def _pointwise(call: _Call) -> Any:
    ndim = call.meta.ndim
    ranges = [_aligned(value.range, ndim) for value in call.covered]
    union = _union(ranges)
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
    return _Scores(union, hidden, source.weights)


_FILLS = (aten.masked_fill, aten.masked_fill_)
_KEEP_SCORES = (aten.add, aten.add_, *_FILLS)


def _hide(hidden: Tensor | None, more: Tensor) -> Tensor | None:
    if not bool(more.any()):
        return hidden
    return more if hidden is None else hidden | more


def _same(call: _Call) -> Any:
    """The same element of the first argument, with what broadcasts to it."""
    source = call.args[0]
    ranges = [_aligned(value.range, call.covered[0].ndim) for value in call.covered]
    union = _union(ranges)
    if isinstance(call.meta, tuple | list):
        return [union] * len(call.meta)
    if len(call.covered) > 1 or not isinstance(source, CoveredTensor):
        return union
    return _Scores(union, source.hidden, source.weights)


def _nothing(call: _Call) -> Any:
    """Only the shape of the argument counts."""
    empty = torch.full((1,) * call.meta.ndim, EMPTY, dtype=torch.int16)
    return empty, empty


def _unfolded(call: _Call) -> Any:
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
        return _squeezed(blocks)

    return _each(source.range, move)


def _moved(call: _Call) -> Any:
    """A view that is no reshape: the operator itself, on ranges expanded without memory."""
    source = call.args[0]

    def move(values: Tensor) -> Any:
        expanded = values.expand(source.shape)
        moved = call.func(expanded, *call.args[1:], **call.kwargs)
        return _compact(moved) if isinstance(moved, Tensor) else [_compact(m) for m in moved]

    first, last = (move(values) for values in source.range)
    if isinstance(first, list):
        return list(zip(first, last, strict=True))
    hidden = move(source.hidden) if source.hidden is not None else None
    return _Scores((first, last), hidden, source.weights)


def _compact(values: Tensor) -> Tensor:
    """Size 1 along axes that repeat."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1 and values.stride(axis) == 0:
            values = values.narrow(axis, 0, 1)
    return values


def _reshaped(call: _Call) -> Any:
    source, shape = call.args[0], call.meta.shape

    def reshape(values: Tensor) -> Tensor:
        return _reshape(values, source.shape, shape)

    before = source.range[0]
    ranges = _each(source.range, reshape)
    if sum(size > 1 for size in before.shape) != sum(size > 1 for size in ranges[0].shape):
        call.by_position()
    hidden = reshape(source.hidden) if source.hidden is not None else None
    return _Scores(ranges, hidden, source.weights)


def _reshape(values: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """`values`, which broadcasts to `before`, as what broadcasts to `after`.

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


def _shifted(call: _Call) -> Any:
    """Roll, flip, repeat and indices: the operator itself, on expanded ranges."""
    source = call.args[0]
    if not isinstance(source, CoveredTensor) or len(call.covered) > 1:
        return _unknown(call)

    def move(values: Tensor) -> Tensor:
        return _squeezed(call.func(values.expand(source.shape), *call.args[1:], **call.kwargs))

    if _is_constant(source.range):
        return _aligned(_each(source.range, lambda r: r.reshape(())), call.meta.ndim)
    call.by_position()
    return _each(source.range, move)


def _squeezed(values: Tensor) -> Tensor:
    """Size 1 along axes whose entries are all the same."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1:
            one = values.narrow(axis, 0, 1)
            if bool((values == one).all()):
                values = one
    return values.clone()


def _is_constant(range: Range) -> bool:
    return range[0].numel() == 1


def _padded(call: _Call) -> Any:
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
        taps = torch.arange(-left, size + right)
        if mode == "reflect":
            taps = (size - 1) - ((size - 1) - taps.abs()).abs()
        if mode != "constant":
            ranges = _each(ranges, lambda r, a=axis, t=taps, n=size: r.index_select(
                a, t.clamp(0, n - 1)))  # fmt: skip
            continue
        ranges = _taps(ranges, axis, taps[:, None])
    return ranges


def _taps(range: Range, axis: int, taps: Tensor) -> Range:
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

    return _each(range, take)


def _pairs(value: Any, count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _windows(
    range_: Range, axis: int, results: int, *, kernel: int, stride: int, padding: int, dilation: int
) -> Range:
    start = torch.arange(results)[:, None] * stride - padding
    return _taps(range_, axis, start + torch.arange(kernel) * dilation)


def _convolution(call: _Call) -> Any:
    source, weight = call.args[0], call.args[1]
    stride, padding, dilation, transposed, _, groups = call.args[3:9]
    if not isinstance(source, CoveredTensor):
        return _unknown(call)
    spatial = source.ndim - 2
    ranges = source.range
    if ranges[0].shape[1] > 1:
        in_group = source.shape[1] // groups

        def gather(values: Tensor) -> Tensor:
            grouped = values.reshape(values.shape[0], groups, in_group, *values.shape[2:])
            return _amin(grouped, 2).squeeze(2).repeat_interleave(call.meta.shape[1] // groups, 1)

        ranges = _each(ranges, gather) if groups > 1 else _reduced(ranges, [1])
    for index in range(spatial):
        axis = 2 + index
        kernel = weight.shape[2 + index]
        s, p, d = (_pairs(v, spatial)[index] for v in (stride, padding, dilation))
        if ranges[0].shape[axis] == 1:
            continue
        results = call.meta.shape[axis]
        if transposed:
            reached = torch.arange(results)[:, None] + p - torch.arange(kernel) * d
            taps = torch.where(reached % s == 0, reached // s, -1)
            ranges = _taps(ranges, axis, taps)
        else:
            ranges = _windows(ranges, axis, results, kernel=kernel, stride=s, padding=p, dilation=d)
        if s > 1:
            call.by_position()
    dynamic = [v for v in call.covered if v is not source]
    return _union([ranges, *(_each(v.range, lambda r: r.amin().reshape(1, 1, *([1] * spatial)))
                             for v in dynamic)])  # fmt: skip


def _pool(call: _Call) -> Any:
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
        ranges = _windows(
            ranges, axis, meta.shape[axis], kernel=kernels[index], stride=strides[index],
            padding=paddings[index], dilation=dilations[index],
        )  # fmt: skip
        if strides[index] > 1:
            call.by_position()
    return [ranges] * len(call.meta) if isinstance(call.meta, tuple) else ranges


def _adaptive_pool(call: _Call) -> Any:
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
        ranges = _taps(ranges, axis, torch.where(taps < end[:, None], taps, -1))
    return [ranges] * len(call.meta) if isinstance(call.meta, tuple) else ranges


_KERNELS = {"nearest": 1, "bicubic": 4, "linear": 2}
"""Pixels that an interpolation reads along each axis, by what its operator's name contains."""


def _upsample(call: _Call) -> Any:
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
        ranges = _taps(ranges, axis, taps.clamp(0, size - 1))
        if results % size or corners:
            call.by_position()
    return ranges


def _reduction(call: _Call) -> Any:
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
    ranges = _reduced(source.range, axes)
    if not keep:
        for axis in sorted(axes, reverse=True):
            ranges = _each(ranges, lambda r, axis=axis: r.squeeze(axis))
    return [ranges] * len(call.meta) if isinstance(call.meta, tuple) else ranges


def _along(call: _Call) -> Any:
    """Softmax and sorts: each element depends on all of its axis."""
    source, axis = call.args[0], call.argument(1, "dim", -1)
    if call.func.overloadpacket in (aten.topk, aten.kthvalue):
        axis = call.argument(2, "dim", -1)
    is_softmax = call.func.overloadpacket in (aten._softmax, aten.softmax)
    hidden = source.hidden if is_softmax and not source.weights else None
    ranges = _reduced(_visible(source.range, hidden), [axis % source.ndim])
    if isinstance(call.meta, Tensor):
        return _Scores(ranges, hidden, weights=True)
    return [ranges] * len(call.meta)


def _visible(range: Range, hidden: Tensor | None) -> Range:
    """Without what is hidden."""
    return range if hidden is None else _each(range, lambda r: r.masked_fill(hidden, EMPTY))


def _layer_norm(call: _Call) -> Any:
    source, normalized = call.args[0], call.args[1]
    ranges = _reduced(source.range, range(source.ndim - len(normalized), source.ndim))
    return [ranges, ranges, ranges]


def _group_norm(call: _Call) -> Any:
    source = call.args[0]
    ranges = _reduced(source.range, range(1, source.ndim))
    flat = _each(ranges, lambda r: r.reshape(-1, 1))
    return [ranges, flat, flat]


def _batch_norm(call: _Call) -> Any:
    source = call.args[0]
    trained = call.func.overloadpacket is aten.native_batch_norm and call.args[5]
    ranges = source.range
    if trained:  # also how instance_norm is computed
        ranges = _reduced(ranges, [0, *range(2, source.ndim)])
    flat = _each(ranges, lambda r: r.amin().reshape(1))
    return [ranges, *[flat] * (len(call.meta) - 1)]


def _product(call: _Call) -> Any:
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
        seen = _reduced(_visible(left.range, hidden), [left.ndim - 1])
        ranges.append(_aligned(seen, ndim))
    if isinstance(right, CoveredTensor):
        seen = right.range
        if hidden is not None:
            # Rows of the right side that a hidden score keeps out.
            seen = _reduced(seen, [right.ndim - 1])
            turned = _each(seen, lambda r: r.transpose(-1, -2))
            seen = _reduced(_visible(turned, hidden), [right.ndim - 1])
        else:
            seen = _reduced(seen, [right.ndim - 2])
        ranges.append(_aligned(seen, ndim))
    for one, other in ((left, right), (right, left)):
        if not isinstance(one, CoveredTensor) and isinstance(other, CoveredTensor):
            contracted = other.ndim - 1 if other is left else other.ndim - 2
            if other.range[0].shape[contracted] > 1:
                call.by_position()
    if isinstance(bias, CoveredTensor):
        ranges.append(_aligned(bias.range, ndim))
    union = _union(ranges)
    return _each(union, lambda r: r.squeeze(-1)) if call.meta.ndim < ndim else union


def _attention(call: _Call) -> Any:
    query, key, value = call.args[:3]
    mask = call.kwargs.get("attn_mask", call.argument(5, "attn_mask"))
    hidden = None
    if isinstance(mask, Tensor) and not isinstance(mask, CoveredTensor):
        hidden = ~mask if mask.dtype == torch.bool else mask <= _HIDDEN_SCORE
    read = [_each(_reduced(v.range, [v.ndim - 1]), lambda r: r.transpose(-1, -2))
            for v in (key, value) if isinstance(v, CoveredTensor)]  # fmt: skip
    read = [_reduced(_visible(r, hidden), [query.ndim - 1]) for r in read]
    own = [_reduced(query.range, [query.ndim - 1])] if isinstance(query, CoveredTensor) else []
    ranges = _union([*own, *read])
    if isinstance(call.meta, Tensor):
        return ranges
    return [ranges if m.ndim == query.ndim else _each(ranges, lambda r: r.squeeze(-1))
            for m in call.meta]  # fmt: skip


def _concatenated(call: _Call) -> Any:
    parts = [v for v in call.args[0] if v.numel()]
    stacks = call.func.overloadpacket is aten.stack
    ndim = call.meta.ndim
    axis = call.argument(1, "dim", 0) % ndim
    ranges = []
    for part in parts:
        if isinstance(part, CoveredTensor):
            ranges.append(_each(part.range, lambda r: r.unsqueeze(axis)) if stacks else part.range)
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


def _shuffled(call: _Call) -> Any:
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
        parts = _reshape(values, source.shape, split).permute(axes)
        sizes = [split[a] for a in axes]
        return _reshape(parts, sizes, call.meta.shape)

    varies = source.range[0].shape
    if varies[-3] > 1 or call.func.overloadpacket is aten.pixel_unshuffle:
        call.by_position()
    return _each(source.range, move)


def _rules(names: str, rule: Callable[[_Call], Any]) -> dict[Any, Callable[[_Call], Any]]:
    packets = (getattr(aten, name, None) for name in names.split())
    return {packet: rule for packet in packets if packet is not None}


_RULES: dict[Any, Callable[[_Call], Any]] = {
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
    **_rules("im2col", _unfolded),
    **_rules("constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d "
             "replication_pad2d", _padded),
    **_rules("convolution _convolution", _convolution),
    **_rules("max_pool1d max_pool2d max_pool2d_with_indices avg_pool1d avg_pool2d", _pool),
    **_rules("adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d",
             _adaptive_pool),
    **_rules("upsample_nearest1d upsample_nearest2d _upsample_nearest_exact2d upsample_linear1d "
             "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
             "_upsample_bicubic2d_aa", _upsample),
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
