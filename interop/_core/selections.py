"""Rows that a mask selects, `x[mask]`, where only the program's values know how many there are.

A selection keeps a row for each element of the mask and notes which of them count. An operation on
each row by itself works on all of them; reductions over rows leave the others out; a write to
`y[mask]` puts the rows back. So the shape depends on no value. All else is refused, the number of
rows in Python above all.

Rows that do not count have a copy of the first one that does. Values and gradients that are finite
in torch's rows are therefore finite there, too; the gradients end in that copy.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch.utils import _pytree as pytree

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError

REFUSAL = (
    "on rows that a mask selects, whose number depends on values; use torch.where(mask, …, 0) and "
    "divide by mask.sum()"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Which rows count."""

    origin: tuple
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
    """`shape[0]` of rows: arithmetic gives tensors, and Python cannot have the number."""

    def __init__(self, selection: Selection, count: torch.Tensor) -> None:
        self.selection, self.count = selection, count

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowCount) and self.selection.matches(other.selection):
            return True
        return self._refuse()

    def __repr__(self) -> str:
        return "rows"

    def _refuse(self) -> NoReturn:
        raise UnsupportedTorchError(f"shape[0] {REFUSAL}")

    __hash__ = None  # pyright: ignore[reportAssignmentType]
    __index__ = __int__ = __float__ = __bool__ = _refuse


def _arithmetic(name: str) -> Callable[[RowCount, object], torch.Tensor]:
    return lambda self, other: getattr(self.count, name)(other)


for _operator in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "pow", "rpow", "lt", "le", "gt", "ge",
):  # fmt: skip
    setattr(RowCount, f"__{_operator}__", _arithmetic(f"__{_operator}__"))


def origin_of(tensor: JaxTensor) -> tuple:
    """The origin of a tensor's value: equal for equal values, where that is known."""
    cell, meta = tensor.cell, tensor.meta
    computed = cell.origin if cell.version == 0 else None
    place = meta.numel() if meta.is_contiguous() else (meta.size(), meta.stride())
    place = (place, meta.storage_offset())
    return (computed or (cell, cell.version), place)


def note_origin(func: torch._ops.OpOverload, args: tuple, kwargs: dict, result: PyTree) -> None:
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
        # Where arguments broadcast, their shapes also decide.
        is_broadcast = any(a.meta.numel() not in (1, result.meta.numel()) for a in tensors)
        sizes = [a.meta.size() for a in tensors] if is_broadcast else []
        parts = (origin_of(a) if isinstance(a, JaxTensor) else (type(a), a) for a in leaves)
        result.cell.origin = (func, str(tree), *sizes, *parts)


def selected(tensor: object) -> Selection | None:
    """The selection whose rows a tensor holds, if it does."""
    return tensor.selection if isinstance(tensor, JaxTensor) else None


def among(leaves: list) -> bool:
    """Whether one of these holds rows of a selection."""
    return any(selected(leaf) is not None for leaf in leaves)


def select(trace: Any, func: torch._ops.OpOverload, args: tuple) -> JaxTensor | None:
    """The rows of `x[mask]`, `masked_select` or `nonzero`; None of any other call."""
    if func is aten.nonzero.default:
        mask, x = args[0], None
    elif func is aten.masked_select.default and args[0].shape == args[1].shape:
        x, mask = args
    elif func is aten.index.Tensor and len(args[1]) == 1:
        x, mask = args[0], args[1][0]
    else:
        return None
    if mask.ndim and (func is aten.nonzero.default or mask.dtype == torch.uint8):
        mask = mask if mask.dtype == torch.bool else trace.run(aten.ne.Scalar, mask, 0)
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
    return new_tensor(trace, selection.fill(rows), dtype, needs_grad, selection)


def new_tensor(
    trace: Any, array: jax.Array, dtype: torch.dtype, needs_grad: bool, of: Selection | None
) -> JaxTensor:
    """A new tensor with rows of a selection, or, without one, an ordinary one."""
    tensor = trace.wrap_like(array, trace.wrap(array, dtype).meta, needs_grad)
    tensor.selection = of
    return tensor


def run_function(
    trace: Any, func: Callable, override: Any, args: tuple, kwargs: dict
) -> tuple[bool, Any]:
    """A torch function of which an argument holds rows of a selection.

    Args:
      trace: the trace.
      func: the function.
      override: a function that computes it instead of torch, or None.
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


def plain_of(tensor: Any) -> Any:
    """All rows, as a tensor that has forgotten its selection."""
    if not isinstance(tensor, JaxTensor) or tensor.selection is None:
        return tensor
    return tensor.twin()
