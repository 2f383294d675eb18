"""Tensors that know which rows of an image each of their elements depends on, but no values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from jaxsr.restoration.coverage_ranges import (
    EMPTY,
    Range,
    aligned,
    each_end,
    squeezed,
    union_of,
)
from jaxsr.restoration.live_values import LiveValues

_MOST_CHECKED = 2**16
"""Entries of a range that are looked at for global operations; those have few."""

aten = torch.ops.aten


class NotAnalysedError(Exception):
    """Ranges cannot follow the network, for example a branch on a value."""


@dataclass(eq=False)
class Coverage:
    """The findings of one run."""

    rows: int
    """Height of the image."""
    rule_of: "Callable[[torch._ops.OpOverload], Callable[[OperatorCall], Any]]"
    """The rule of an operator."""
    global_operation: str | None = None
    """The first operation whose every result depends on all rows, and no input on a quarter."""
    surely_global: bool = False
    """Whether an operation with a rule is that, before any without."""
    position_operations: list[str] = field(default_factory=list)
    """Operations that may treat rows by their position, in order of execution."""
    unknown_operations: list[str] = field(default_factory=list)
    """Operators without a rule."""
    widest: int = 0
    """Pixels between the outermost taps of a window or a padding; shorter images hide some."""
    live: LiveValues = field(default_factory=LiveValues)
    """Values that were alive at once."""
    path: list[str] = field(default_factory=list)
    """Submodules that are running, by name and class."""
    versions: dict[int, int] = field(default_factory=dict)
    """How often each memory was written, by its address."""
    hidden: set[int] = field(default_factory=set)
    """Addresses of memory in which a mask hid scores."""
    written_constants: "dict[int, tuple[Tensor, CoveredTensor]]" = field(default_factory=dict)
    """Constants that results were written into, and their memory, by the address of the first."""

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
    """Version of its memory when `range` was found."""
    base: "CoveredTensor | None"
    """The tensor whose memory this one views."""
    elements: Range | None
    """The range of each element of the memory, once a part of it was written; of a base alone."""

    @staticmethod
    def __new__(
        cls,
        meta: Tensor,
        range: Range,
        coverage: Coverage,
        *,
        base: "CoveredTensor | None" = None,
    ) -> "CoveredTensor":
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, meta.shape, strides=meta.stride(), storage_offset=meta.storage_offset(),
            dtype=meta.dtype, device=torch.device("cpu"),
        )  # fmt: skip
        made.meta, made.range, made.coverage = meta, range, coverage
        made.hidden, made.weights = None, False
        made.base, made.elements = base, None
        made.version = coverage.versions.setdefault(_storage(meta), 0)
        coverage.live.hold(made, meta)
        return made

    if TYPE_CHECKING:  # torch's stubs give Tensor an __init__ of other arguments

        def __init__(
            self,
            meta: Tensor,
            range: Range,
            coverage: Coverage,
            *,
            base: "CoveredTensor | None" = None,
        ) -> None: ...

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"CoveredTensor{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _dispatch(func, tuple(args), dict(kwargs or {}))


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """One operator with its arguments and the shapes of its results."""

    func: torch._ops.OpOverload
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

    def everything(self) -> Any:
        """The ranges of results each of which depends on all of all arguments, by its position."""
        union = union_of([each_end(v.range, lambda r: r.amin().reshape(())) for v in self.covered])
        metas = [self.meta] if isinstance(self.meta, Tensor) else self.meta
        self.by_position()
        ranges = [aligned(union, m.ndim) if isinstance(m, Tensor) else union for m in metas]
        return ranges[0] if isinstance(self.meta, Tensor) else ranges


@dataclass(frozen=True, eq=False)
class Scores:
    range: Range
    hidden: Tensor | None
    weights: bool = False


def _storage(meta: Tensor) -> int:
    return meta.untyped_storage()._cdata


def _dispatch(func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
    flat = pytree.tree_leaves((args, kwargs))
    covered = [value for value in flat if isinstance(value, CoveredTensor)]
    coverage = covered[0].coverage
    for value in covered:
        refresh(value)
    try:
        meta = func(*pytree.tree_map(_to_meta, args), **pytree.tree_map(_to_meta, kwargs))
    except (NotImplementedError, RuntimeError) as error:
        if func in (aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default):
            raise NotAnalysedError("a branch on a value") from error
        raise
    call = OperatorCall(func, args, kwargs, meta, coverage, covered)
    result = coverage.rule_of(func)(call)
    scores = result if isinstance(result, Scores) else None
    ranges: Any = scores.range if scores else result
    if func._schema.is_mutable:
        return _written(call, args[0], ranges, scores)
    if isinstance(meta, Tensor):
        made = CoveredTensor(meta, ranges, coverage, base=_viewed(meta, covered))
        if scores:
            _take_scores(made, scores)
        _note_global(call, made)
        return made
    if isinstance(ranges, tuple) and len(ranges) == 2 and isinstance(ranges[0], Tensor):
        ranges = [ranges] * len(meta)  # one range for each of several results
    results = [
        CoveredTensor(m, r, coverage, base=_viewed(m, covered)) if isinstance(m, Tensor) else m
        for m, r in zip(meta, ranges, strict=True)
    ]
    if isinstance(results[0], CoveredTensor):
        _note_global(call, results[0])
    return type(meta)(results) if isinstance(meta, tuple | list) else results


def _viewed(meta: Tensor, covered: Sequence[CoveredTensor]) -> CoveredTensor | None:
    """Whose memory a result has."""
    source = next((v for v in covered if _storage(v.meta) == _storage(meta)), None)
    return source if source is None or source.base is None else source.base


def refresh(value: CoveredTensor) -> None:
    """Reads the ranges again where something was written into the tensor's memory."""
    version = value.coverage.versions[_storage(value.meta)]
    if value.version != version:
        value.range = each_end(_elements(value), lambda r: squeezed(_view(r, value.meta)))
        value.hidden, value.weights, value.version = None, False, version


def _elements(value: CoveredTensor) -> Range:
    """The ranges of all elements of its memory."""
    base = value if value.base is None else value.base
    if base.elements is None:
        count = base.meta.untyped_storage().nbytes() // base.meta.element_size()
        base.elements = _empty(count), _empty(count)
        for elements, ends in zip(base.elements, base.range, strict=True):
            _view(elements, base.meta).copy_(ends)
    return base.elements


def _empty(count: int) -> Tensor:
    return torch.full((count,), EMPTY, dtype=torch.int16)


def _view(elements: Tensor, like: Tensor) -> Tensor:
    return elements.as_strided(like.shape, like.stride(), like.storage_offset())


def _to_meta(value: object) -> Any:
    if isinstance(value, CoveredTensor):
        return value.meta
    if isinstance(value, Tensor):
        return value.to("meta") if value.ndim else value
    return torch.device("meta") if isinstance(value, torch.device) else value


def _written(
    call: "OperatorCall", target: Tensor, ranges: Any, scores: "Scores | None"
) -> CoveredTensor:
    """An operation in place; other tensors in the same memory are refreshed when they are read."""
    if not isinstance(target, CoveredTensor):
        target = _written_constant(call.coverage, target)
    before, after, storage = target.range, ranges, _storage(target.meta)
    # Other tensors in the memory may have been hidden before, for the same ranges.
    if storage in call.coverage.hidden or any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(before, after, strict=True)
    ):
        if target.base is not None or target.elements is not None:
            for elements, ends in zip(_elements(target), after, strict=True):
                _view(elements, target.meta).copy_(ends)
        call.coverage.versions[storage] += 1
        target.version = call.coverage.versions[storage]
    target.range = ranges
    target.hidden, target.weights = None, False
    if scores:
        _take_scores(target, scores)
    return target


def _take_scores(tensor: CoveredTensor, scores: Scores) -> None:
    tensor.hidden, tensor.weights = scores.hidden, scores.weights
    if scores.hidden is not None:
        tensor.coverage.hidden.add(_storage(tensor.meta))


def _written_constant(coverage: Coverage, constant: Tensor) -> CoveredTensor:
    """A constant from where on it depends on the image."""
    if _storage(constant) not in coverage.written_constants:
        storage = constant.untyped_storage()
        count = storage.nbytes() // constant.element_size()
        meta = torch.empty(count, dtype=constant.dtype, device="meta")
        memory = CoveredTensor(meta, (_empty(1), _empty(1)), coverage)
        coverage.written_constants[_storage(constant)] = constant, memory  # kept: an address
    return covered_constant(coverage, constant)


def covered_constant(coverage: Coverage, value: Any) -> Any:
    """A constant that results were written into, as a tensor with ranges; else the value itself."""
    plain = isinstance(value, Tensor) and not isinstance(value, CoveredTensor)
    if not plain or _storage(value) not in coverage.written_constants:
        return value
    memory = coverage.written_constants[_storage(value)][1]
    ranges = each_end(_elements(memory), lambda r: squeezed(_view(r, value)))
    return CoveredTensor(_view(memory.meta, value), ranges, coverage, base=memory)


def _note_global(call: "OperatorCall", made: CoveredTensor) -> None:
    coverage = call.coverage
    if coverage.global_operation is None and _is_everything(made.range, coverage.rows):
        spans = (-(v.range[1].numpy() + v.range[0].numpy()) for v in call.covered)
        if all(span.max() < coverage.rows // 4 for span in spans):
            name = call.func.overloadpacket.__name__
            coverage.global_operation = f"{coverage.place(name)} depends on the whole image"
            coverage.surely_global = not coverage.unknown_operations


def _is_everything(range: Range, rows: int) -> bool:
    first, last = range
    if first.numel() > _MOST_CHECKED:
        return False
    return bool(first.numpy().max() == 0 and last.numpy().max() == 1 - rows)
