"""Operators of which an argument holds rows of a selection (`selections.py`)."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.row_rules import (
    LIKE_POINTWISE,
    LOSSES,
    MEANS,
    REDUCTIONS,
    ROWWISE,
    WITH_WEIGHTS,
)
from jaxsr.interop._core.schema import Call, functional_of, name_of, schema_of
from jaxsr.interop._core.selections import (
    REFUSAL,
    Selection,
    new_tensor,
    origin_of,
    plain_of,
    selected,
)
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError


def run(trace: Any, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """An operator of which an argument holds rows of a selection.

    Raises:
      UnsupportedTorchError: it is not known to work row by row.
    """
    parameters = func._schema.arguments
    passed = dict(zip((a.name for a in parameters), args, strict=False)) | kwargs
    call = {a.name: passed.get(a.name, a.default_value) for a in parameters}
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
    if func in LOSSES and call.get("reduction", 1) != 0 and rows.is_rowwise(leaves):
        return rows.loss()
    if func in REDUCTIONS and rows.reduces_rows():
        return rows.reduced(REDUCTIONS[func])
    if rows.is_rowwise(leaves):
        return rows.each()
    raise UnsupportedTorchError(f"{name_of(func)} {REFUSAL}")


@dataclasses.dataclass
class _Rows:
    """One call of an operator with rows of a selection."""

    trace: Any
    func: torch._ops.OpOverload
    call: Call
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

    def through_trace(self, func: torch._ops.OpOverload, call: Call) -> Any:
        """Runs an operator on tensors without selections, through the trace."""
        positional = [a.name for a in func._schema.arguments if not a.kwarg_only]
        args = [call[n] for n in positional if n in call]
        kwargs = {n: v for n, v in call.items() if n not in positional}
        with self.trace.dispatch_mode:
            return func(*args, **kwargs)

    def filled(self, tensor: JaxTensor, value: float) -> Any:
        """The rows with `value` in those that do not count."""
        plain = plain_of(tensor)
        mask = self.trace.wrap(self.selection.aligned(plain.array()))
        with self.trace.dispatch_mode:
            return torch.where(mask, plain, torch.full((), value, dtype=plain.dtype))

    def count(self) -> JaxTensor:
        return self.trace.wrap(self.selection.valid.sum(dtype=jnp.float32))

    # ---- reductions over rows

    def reduces_rows(self) -> bool:
        dims = self.call.get("dim")
        if dims is None or dims == []:
            return True
        dims = [dims] if isinstance(dims, int) else dims
        return 0 in {dim % max(self.first.ndim, 1) for dim in dims}

    def reduced(self, neutral: Callable[[torch.dtype], float]) -> Any:
        """A reduction that leaves out rows which do not count."""
        of = next(iter(self.call.values()))
        if self.func not in MEANS:
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
        return rows.reduced(REDUCTIONS[func])

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
        return new_tensor(self.trace, rows, x.dtype, x.needs_grad, narrower)

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
        return new_tensor(self.trace, new, x.dtype, x.needs_grad or values.needs_grad, None)

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
        if torch.Tag.pointwise in self.func.tags or self.func in (*LIKE_POINTWISE, *LOSSES):
            return all(map(self.fits, tensors))
        rule = ROWWISE.get(self.func)
        if self.func not in WITH_WEIGHTS and any(t.selection is None for t in tensors):
            return False
        return rule is not None and rule(self.call, self.first)

    def fits(self, operand: JaxTensor) -> bool:
        """Whether an operand of a broadcast has its rows in the first axis of all, or none."""
        rank = self.first.ndim
        if operand.selection is not None:
            return operand.ndim == rank
        return operand.ndim < rank or (operand.ndim == rank and operand.shape[0] == 1)
