"""Rows that a mask selects, `x[mask]`, where only the program's values know how many there are.

A selection keeps a row for each element of the mask and notes which of them count. What works on
each row by itself works on all of them; reductions over rows leave the others out; a write to
`y[mask]` puts the rows back. So the shape depends on no value. All else is refused, the number of
rows in Python above all.

Rows that do not count hold a copy of the first one that does: what is finite of rows that torch
computes is finite there, and so are gradients, which end in that copy.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch.utils import _pytree as pytree

from jaxsr.interop._core.schema import functional_of, name_of, schema_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError

aten = torch.ops.aten

REFUSAL = (
    "on rows that a mask selects, whose number depends on values; use torch.where(mask, …, 0) and "
    "divide by mask.sum()"
)
_NO_DIM = object()


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Which rows count."""

    origin: Any
    """How its mask was computed (`origin_of`)."""
    valid: jax.Array
    """bool (rows,)."""

    def matches(self, other: "Selection | None") -> bool:
        """Whether another one selects the same rows: by one mask, or by one computed alike."""
        return other is not None and (self is other or self.origin == other.origin)

    def fill(self, rows: jax.Array) -> jax.Array:
        """`rows` with the first that counts in place of those that do not; ones without any."""
        if not rows.shape[0]:
            return rows
        first = jnp.where(self.valid.any(), rows[jnp.argmax(self.valid)], 1).astype(rows.dtype)
        return jnp.where(self.aligned(rows), rows, lax.stop_gradient(first))

    def aligned(self, rows: jax.Array) -> jax.Array:
        """`valid` with an axis for each of `rows`."""
        return self.valid.reshape(-1, *[1] * (rows.ndim - 1))


class RowCount:
    """What `shape[0]` of rows is: arithmetic gives tensors, and Python cannot have the number."""

    def __init__(self, selection: Selection, count: torch.Tensor) -> None:
        self.selection, self.count = selection, count

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowCount) and self.selection.matches(other.selection):
            return True
        return self._refuse()

    def __repr__(self) -> str:
        return "rows"

    def _refuse(self) -> Any:
        raise UnsupportedTorchError(f"shape[0] {REFUSAL}")

    __hash__ = None  # pyright: ignore[reportAssignmentType]
    __index__ = __int__ = __float__ = __bool__ = _refuse


def _arithmetic(name: str) -> Callable[[RowCount, Any], torch.Tensor]:
    return lambda self, other: getattr(self.count, name)(other)


for _operator in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "pow", "rpow", "lt", "le", "gt", "ge",
):  # fmt: skip
    setattr(RowCount, f"__{_operator}__", _arithmetic(f"__{_operator}__"))


def origin_of(tensor: JaxTensor) -> Any:
    """What a tensor's value follows from: equal for equal values, where that is known."""
    cell, meta = tensor.cell, tensor.meta
    computed = cell.origin if cell.version == 0 else None
    place = meta.numel() if meta.is_contiguous() else (meta.size(), meta.stride())
    place = (place, meta.storage_offset())
    return (computed or (cell, cell.version), place)


def note_origin(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Remembers of which tensors a mask was computed, and how."""
    is_mask = isinstance(result, JaxTensor) and result.dtype == torch.bool
    if not is_mask or result.view_of is not None or torch.Tag.pointwise not in func.tags:
        return
    leaves, tree = pytree.tree_flatten((args, kwargs))
    known = all(
        isinstance(a, (JaxTensor, bool, int, float, torch.dtype, type(None))) for a in leaves
    )
    if known and result.cell.version == 0:
        tensors = [a for a in leaves if isinstance(a, JaxTensor)]
        # Where arguments broadcast, their shapes decide, too.
        is_broadcast = any(a.meta.numel() not in (1, result.meta.numel()) for a in tensors)
        sizes = [a.meta.size() for a in tensors] if is_broadcast else []
        parts = (origin_of(a) if isinstance(a, JaxTensor) else (type(a), a) for a in leaves)
        result.cell.origin = (func, str(tree), *sizes, *parts)


def selected(tensor: Any) -> Selection | None:
    """The selection whose rows a tensor holds, if it does."""
    return tensor.selection if isinstance(tensor, JaxTensor) else None


def among(leaves: list[Any]) -> bool:
    """Whether one of these holds rows of a selection."""
    return any(selected(leaf) is not None for leaf in leaves)


def select(trace: Any, func: Any, args: tuple[Any, ...]) -> JaxTensor | None:
    """The rows of `x[mask]`, `masked_select` or `nonzero`; None of any other call."""
    if func is aten.nonzero.default:
        mask, x = args[0], None
    elif func is aten.masked_select.default and args[0].shape == args[1].shape:
        x, mask = args
    elif func is aten.index.Tensor and len(args[1]) == 1:
        x, mask = args[0], args[1][0]
    else:
        return None
    if mask.dtype != torch.bool or not mask.ndim:
        return None
    shape = tuple(mask.shape)
    valid = mask.array().reshape(-1)
    selection = Selection(origin_of(mask), valid)
    if x is None:
        places = jnp.unravel_index(jnp.arange(math.prod(shape)), shape)
        rows, dtype, needs_grad = jnp.stack(places, 1), torch.int64, False
    else:
        rows = x.array().reshape(-1, *x.shape[mask.ndim :])
        dtype, needs_grad = x.dtype, x.needs_grad
    return _new(trace, selection.fill(rows), dtype, needs_grad, selection)


def _new(
    trace: Any, array: jax.Array, dtype: torch.dtype, needs_grad: bool, of: Selection | None
) -> JaxTensor:
    """A new tensor with rows of a selection, or, without one, an ordinary one."""
    tensor = trace.wrap_like(array, trace.wrap(array, dtype).meta, needs_grad)
    tensor.selection = of
    return tensor


def run_function(
    trace: Any, func: Any, override: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """A torch function of which an argument holds rows of a selection.

    Args:
      trace: the trace.
      func: the function.
      override: what computes it instead of torch, or None.
      args: its arguments.
      kwargs: its arguments by name.

    Returns:
      Whether it is done, and the result; else torch may run it.

    Raises:
      UnsupportedTorchError: it is not known to leave the number of rows alone.
    """
    rows: Any
    rows, others = args[0] if args else None, [*args[1:], *kwargs.values()]
    selection = selected(rows)
    if selection is not None and func in (torch.Tensor.shape.__get__, torch.Tensor.size):
        count = trace.wrap(selection.valid.sum(), torch.int64)
        shape = (RowCount(selection, count), *tuple(rows.meta.shape)[1:])
        return True, shape[others[0]] if others else shape
    alone = selection is not None and not among(others)
    if func in _PRODUCTS and alone and rows.ndim > 1 and others[0].ndim <= 2:
        result = override.call(trace, func, (plain_of(rows), *args[1:]), kwargs)
        result.selection = selection
        return True, result
    reads_size = func in _READS_SIZE
    if selection is not None and func in _RESHAPES and others:
        # A number here counts elements of all rows, or is equal to it by chance.
        sizes = others[0] if isinstance(others[0], (tuple, list)) else others
        reads_size = tuple(sizes)[:1] != (-1,)
    if func is F.cross_entropy:  # torch divides by the number of rows
        smoothing = kwargs.get("label_smoothing", args[7] if len(args) > 7 else 0)
        reads_size = others[0].is_floating_point() or smoothing != 0
    known = func in _LEAVES_SIZE_ALONE
    if reads_size or ((override is not None or hasattr(func, "__code__")) and not known):
        raise UnsupportedTorchError(f"{_name(func)} {REFUSAL}")
    return False, None


def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    return func.__self__.__name__ if name == "__get__" else name


_PRODUCTS = (F.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_RESHAPES = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape, torch.Tensor.expand)
_READS_SIZE = (
    torch.Tensor.numel, torch.Tensor.nelement,
    torch.numel, torch.Tensor.__len__, torch.Tensor.nbytes.__get__, torch.Tensor.unbind,
    torch.unbind, torch.Tensor.stride,
)  # fmt: skip
# Python functions of torch whose results would be the same for any number of other rows.
_LEAVES_SIZE_ALONE = (
    F.relu, F.relu6, F.elu, F.selu, F.celu, F.leaky_relu, F.hardtanh, F.silu, F.mish, F.hardswish,
    F.hardsigmoid, F.tanhshrink, F.softsign, F.sigmoid, F.tanh, F.softmax, F.log_softmax,
    F.layer_norm, F.normalize, F.embedding, F.one_hot, F.pad, F.mse_loss, F.l1_loss,
    F.smooth_l1_loss, F.huber_loss,
    F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits,
    torch.Tensor.__rsub__, torch.Tensor.__rdiv__, torch.Tensor.__rpow__, torch.Tensor.__pow__,
    torch.Tensor.__format__, torch.Tensor.norm, torch.norm, torch.split, torch.Tensor.split,
    torch.Tensor.__setitem__, torch.Tensor.__getitem__, torch.Tensor.to, torch.Tensor.cpu,
)  # fmt: skip


def run(trace: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator of which an argument holds rows of a selection.

    Raises:
      UnsupportedTorchError: it is not known to work row by row.
    """
    names = [a.name for a in func._schema.arguments]
    call = dict(zip(names, args, strict=False)) | kwargs
    leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, JaxTensor)]
    with_rows = [t for t in leaves if t.selection is not None]
    selection = with_rows[0].selection
    assert selection is not None
    rows = _Rows(trace, func, call, with_rows[0], selection)
    target = next(iter(call.values()))
    if schema_of(func).mutated and selected(target) is None:
        form = functional_of(func)
        if form is None or not isinstance(target, JaxTensor):
            raise UnsupportedTorchError(f"{name_of(func)} {REFUSAL}")
        result = run(trace, form, args, kwargs)
        trace.write(target, result.array(), result.needs_grad)
        return target
    if func in (aten.index.Tensor, aten.index_put.default):
        return rows.indexed()
    if func is aten.masked_scatter.default:
        return rows.masked_scatter()
    if any(not selection.matches(t.selection) for t in with_rows):
        raise UnsupportedTorchError(f"{name_of(func)} of rows of two masks")
    if func is aten.index_add.default:
        return rows.index_add()
    if func is aten.nll_loss_forward.default and selected(call["target"]) is not None:
        return rows.nll_loss()
    if func in _LOSSES and call.get("reduction", 1) != 0 and rows.is_rowwise(leaves):
        return rows.loss()
    if func in _REDUCTIONS and rows.reduces_rows():
        return rows.reduced(_REDUCTIONS[func])
    if rows.is_rowwise(leaves):
        return rows.each()
    raise UnsupportedTorchError(f"{name_of(func)} {REFUSAL}")


@dataclasses.dataclass
class _Rows:
    """One call of an operator with rows of a selection."""

    trace: Any
    func: Any
    call: dict[str, Any]
    first: JaxTensor
    selection: Selection

    def each(self, **changes: Any) -> Any:
        """The operator on all rows, of which the result has as many."""
        originals: dict[int, JaxTensor] = {}

        def plain(tensor: JaxTensor) -> JaxTensor:
            twin = plain_of(tensor)
            originals[id(twin)] = tensor
            return twin

        result = self.through_trace(
            self.func, pytree.tree_map_only(JaxTensor, plain, self.call | changes)
        )

        def tagged(tensor: JaxTensor) -> JaxTensor:
            if id(tensor) in originals:  # of a write in place
                originals[id(tensor)].needs_grad = tensor.needs_grad
                return originals[id(tensor)]
            tensor.selection = self.selection
            return tensor

        return pytree.tree_map_only(JaxTensor, tagged, result)

    def through_trace(self, func: Any, call: dict[str, Any]) -> Any:
        """Runs an operator on tensors without selections, through the trace."""
        positional = [a.name for a in func._schema.arguments if not a.kwarg_only]
        count = max((i + 1 for i, n in enumerate(positional) if n in call), default=0)
        defaults = {a.name: a.default_value for a in func._schema.arguments}
        args = [call.get(n, defaults[n]) for n in positional[:count]]
        kwargs = {n: v for n, v in call.items() if n not in positional}
        with self.trace.dispatch_mode:
            return func(*args, **kwargs)

    def filled(self, tensor: Any, value: Any) -> Any:
        """The rows with `value` in those that do not count."""
        plain = plain_of(tensor)
        mask = self.trace.wrap(self.selection.aligned(plain.array()))
        with self.trace.dispatch_mode:
            return torch.where(mask, plain, torch.full((), value, dtype=plain.dtype))

    def count(self) -> JaxTensor:
        return self.trace.wrap(self.selection.valid.sum(dtype=jnp.float32))

    # ---- reductions over rows

    def reduces_rows(self) -> bool:
        dims = self.call.get("dim", _NO_DIM)
        if dims is _NO_DIM or dims is None or dims == []:
            return True
        dims = [dims] if isinstance(dims, int) else dims
        return 0 in {dim % max(self.first.ndim, 1) for dim in dims}

    def reduced(self, neutral: Callable[[torch.dtype], Any]) -> Any:
        """A reduction that leaves out rows which do not count."""
        of = next(iter(self.call.values()))
        if self.func not in _MEANS:
            first = next(iter(self.call))
            return self.through_trace(
                self.func, self.call | {first: self.filled(of, neutral(of.dtype))}
            )
        dims, keepdim = (
            self.call.get("dim") or list(range(of.ndim)),
            self.call.get("keepdim", False),
        )
        wide = torch.promote_types(of.dtype, torch.float32)
        others = math.prod(of.shape[dim] for dim in dims if dim % of.ndim)
        count = self.count()
        filled = self.filled(of, 0)
        with self.trace.dispatch_mode:
            total = filled.to(wide).sum(dims, keepdim=keepdim)
            return (total / (count * others)).to(self.call.get("dtype") or of.dtype)

    def loss(self) -> JaxTensor:
        """A loss whose reduction goes over rows."""
        reduction = self.call.get("reduction", 1)
        losses = self.each(reduction=0)
        func = aten.mean.default if reduction == 1 else aten.sum.default
        rows = _Rows(self.trace, func, {"self": losses}, losses, self.selection)
        return rows.reduced(_REDUCTIONS[func])

    def nll_loss(self) -> Any:
        """Rows that do not count are ignored, as torch ignores the classes `ignore_index`."""
        if self.call["reduction"] == 0:
            return self.each()
        target = self.filled(self.call["target"], self.call["ignore_index"])
        scores = plain_of(self.call["self"])
        return self.through_trace(self.func, self.call | {"self": scores, "target": target})

    # ---- indices

    def indexed(self) -> Any:
        x, indices = self.call["self"], self.call["indices"]
        dense = [i for i in indices if i is not None]
        if not dense or len(dense) < len(indices):
            raise UnsupportedTorchError(f"an index {REFUSAL}")
        if self.func is aten.index.Tensor:
            return self.read(x, dense)
        return self.written(x, dense, self.call["values"], self.call.get("accumulate", False))

    def read(self, x: JaxTensor, indices: list[JaxTensor]) -> JaxTensor:
        if x.selection is not None:
            return self.narrowed(x, indices)
        if any(not self.selection.matches(i.selection) for i in indices):
            raise UnsupportedTorchError("an index by rows of two masks")
        return self.each()

    def narrowed(self, x: JaxTensor, indices: list[JaxTensor]) -> JaxTensor:
        """`x[mask]` of rows, by a mask of rows: fewer of them count."""
        mask = indices[0]
        of = selected(mask)
        is_mask = len(indices) == 1 and mask.dtype == torch.bool and mask.ndim == 1
        if of is None or not is_mask or not of.matches(x.selection):
            raise UnsupportedTorchError(f"an index {REFUSAL}")
        plain = plain_of(mask)
        narrower = Selection(origin_of(mask), of.valid & plain.array())
        rows = narrower.fill(plain_of(x).array())
        return _new(self.trace, rows, x.dtype, x.needs_grad, narrower)

    def written(
        self, x: JaxTensor, indices: list[JaxTensor], values: JaxTensor, accumulate: bool
    ) -> JaxTensor:
        """`x[mask] = rows` and `x[places of rows] = rows`."""
        if x.selection is not None:
            raise UnsupportedTorchError(f"a write {REFUSAL}")
        of_values = values.selection
        old, rows = x.array(), plain_of(values).array().astype(x.array().dtype)
        by_mask = len(indices) == 1 and indices[0].dtype == torch.bool
        if by_mask and indices[0].selection is None and not accumulate:
            mask = indices[0]
            if not Selection(origin_of(mask), self.selection.valid).matches(of_values):
                raise UnsupportedTorchError(f"a write by a mask of the rows of another, {REFUSAL}")
            rest = x.shape[mask.ndim :]
            rows = jnp.broadcast_to(rows, (rows.shape[0], *rest)).reshape(*mask.shape, *rest)
            new = jnp.where(mask.array().reshape(*mask.shape, *[1] * len(rest)), rows, old)
        elif all(self.selection.matches(i.selection) and i.ndim == 1 for i in indices):
            if of_values is not None and not self.selection.matches(of_values):
                raise UnsupportedTorchError("a write to places of one mask of the rows of another")
            new = self.scattered(old, [plain_of(i).array() for i in indices], rows, accumulate)
        else:
            raise UnsupportedTorchError(f"a write {REFUSAL}")
        return _new(self.trace, new, x.dtype, x.needs_grad or values.needs_grad, None)

    def masked_scatter(self) -> JaxTensor:
        """`x.masked_scatter(mask[..., None], rows)`, where `rows` are those of `x[mask]`."""
        x, mask, values = self.call["self"], self.call["mask"], self.call["source"]
        rank = x.ndim - values.ndim + 1
        places, rest = tuple(x.shape[:rank]), tuple(x.shape[rank:])
        whole_rows = tuple(mask.shape) == (*places, *[1] * len(rest))
        if rest != tuple(values.shape[1:]) or not whole_rows or selected(x) or selected(mask):
            raise UnsupportedTorchError(f"masked_scatter {REFUSAL}")
        with self.trace.dispatch_mode:
            mask = mask.reshape(places)
        return self.written(x, [mask], values, False)

    def scattered(
        self, old: jax.Array, places: list[jax.Array], rows: jax.Array, accumulate: bool
    ) -> jax.Array:
        """`old` with rows at places; those that do not count go nowhere."""
        inside = [jnp.where(i < 0, i + n, i) for i, n in zip(places, old.shape, strict=False)]
        first, *others = inside
        target = old.at[(jnp.where(self.selection.valid, first, old.shape[0]), *others)]
        return target.add(rows, mode="drop") if accumulate else target.set(rows, mode="drop")

    def index_add(self) -> JaxTensor:
        index, source = self.call["index"], self.call["source"]
        if selected(index) is None or selected(source) is None or self.call["self"].selection:
            raise UnsupportedTorchError(f"index_add {REFUSAL}")
        if self.call["dim"] % self.call["self"].ndim:
            raise UnsupportedTorchError(f"index_add along another axis {REFUSAL}")
        changes = {"index": plain_of(index), "source": self.filled(source, 0)}
        return self.through_trace(self.func, self.call | changes)

    # ---- row by row

    def is_rowwise(self, tensors: list[JaxTensor]) -> bool:
        if torch.Tag.pointwise in self.func.tags or self.func in (*_LIKE_POINTWISE, *_LOSSES):
            return all(t.selection is not None or self.broadcasts(t) for t in tensors)
        rule = _ROWWISE.get(self.func)
        if self.func not in _WITH_WEIGHTS and any(t.selection is None for t in tensors):
            return False
        return rule is not None and rule(self.call, self.first)

    def broadcasts(self, other: JaxTensor) -> bool:
        """Whether another operand has no axis of rows."""
        rank = self.first.ndim
        return other.ndim < rank or (other.ndim == rank and other.shape[0] == 1)


def plain_of(tensor: Any) -> Any:
    """All rows, as a tensor that has forgotten its selection."""
    if not isinstance(tensor, JaxTensor) or tensor.selection is None:
        return tensor
    return tensor.twin()


def _other_dims(call: dict[str, Any], first: JaxTensor) -> bool:
    dims = call.get("dim", -1)
    dims = [dims] if isinstance(dims, int) else dims
    return bool(dims) and first.ndim > 1 and all(dim % first.ndim for dim in dims)


def _new_dim(call: dict[str, Any], first: JaxTensor) -> bool:
    return call["dim"] % (first.ndim + 1) != 0


def _all_rows(call: dict[str, Any], first: JaxTensor) -> bool:
    return _other_dims(call | {"dim": call.get("dim", 0)}, first) or (
        call.get("start") in (None, 0) and call.get("end", 2**63 - 1) in (None, 2**63 - 1)
    )


def _same_rows(call: dict[str, Any], first: JaxTensor) -> bool:
    size = call["size"]
    if not size or (size[0] not in (-1, first.shape[0])) or not first.shape[0]:
        return False
    rest = math.prod(first.shape[1:])
    if -1 in size[1:]:
        known = math.prod(n for n in size[1:] if n != -1)
        return size[0] != -1 and known > 0 and rest % known == 0
    return math.prod(size[1:]) == rest


def _padded(call: dict[str, Any], first: JaxTensor) -> bool:
    return len(call["pad"]) < 2 * first.ndim


def _expanded(call: dict[str, Any], first: JaxTensor) -> bool:
    size = call["size"]
    return len(size) == first.ndim and size[0] in (-1, first.shape[0])


def _matrix(call: dict[str, Any], first: JaxTensor) -> bool:
    return selected(call["mat2"]) is None


def _matrix_and_bias(call: dict[str, Any], first: JaxTensor) -> bool:
    bias = call["self"]
    return _matrix(call, first) and selected(bias) is None and bias.ndim == 1


def _of_table(call: dict[str, Any], first: JaxTensor) -> bool:
    return selected(call["weight"]) is None


def _joined(call: dict[str, Any], first: JaxTensor) -> bool:
    return all(t.selection is not None for t in call["tensors"]) and _other_dims(
        {"dim": call.get("dim", 0)}, first
    )


def _normalised(call: dict[str, Any], first: JaxTensor) -> bool:
    return len(call["normalized_shape"]) < first.ndim


_LIKE_POINTWISE = (
    aten.detach.default, aten.alias.default, aten._to_copy.default, aten.zeros_like.default,
    aten.ones_like.default, aten.full_like.default, aten.glu.default, aten._prelu_kernel.default,
    aten.log_sigmoid_forward.default, aten.copy_.default, aten.copy.default, aten.fill.Scalar,
    aten.fill.Tensor, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default,
)  # fmt: skip
_LOSSES = (
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default,
    aten.binary_cross_entropy.default, aten.binary_cross_entropy_with_logits.default,
    aten.soft_margin_loss.default,
)  # fmt: skip
_WITH_WEIGHTS = (
    aten.mm.default, aten.addmm.default, aten.embedding.default, aten.native_layer_norm.default,
)  # fmt: skip
"""Operators that take tensors without rows, too."""
_ROWWISE: dict[Any, Callable[[dict[str, Any], JaxTensor], bool]] = {
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


def _least(dtype: torch.dtype) -> Any:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _most(dtype: torch.dtype) -> Any:
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


_MEANS = (aten.mean.default, aten.mean.dim)
_REDUCTIONS: dict[Any, Callable[[torch.dtype], Any]] = {
    aten.sum.default: lambda _: 0, aten.sum.dim_IntList: lambda _: 0,
    aten.mean.default: lambda _: 0, aten.mean.dim: lambda _: 0,
    aten.any.default: lambda _: 0, aten.any.dim: lambda _: 0,
    aten.all.default: lambda _: 1, aten.all.dim: lambda _: 1,
    aten.amax.default: _least, aten.amin.default: _most,
    aten.max.default: _least, aten.min.default: _most,
}  # fmt: skip
