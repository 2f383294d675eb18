"""Indices and class labels outside their range, which torch refuses and XLA clamps or leaves out.

Arrays whose values are known are held to the range at once. Inside a compiled program nothing can
be raised: under `collecting_indices` each operation leaves the worst of its indices, an int32, for
the program to return. `OPERATIONS` is the only table of what takes indices and from where to where.
"""

import linecache
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F

from jaxsr.interop._core.caught_errors import try_around
from jaxsr.interop._core.dtypes import as_int32
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.stack_frames import users_frame
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop.below_modes import run_below
from jaxsr.interop.errors import IndexOutsideError, UnsupportedTorchError
from jaxsr.interop.mode_methods import DispatchMode, FunctionMode, Options


class Use(NamedTuple):
    """Indices that an operation takes."""

    index: torch.Tensor
    """A tensor of integers."""
    size: int
    """How many things there are to index."""
    negative: bool = False
    """Whether negative ones count from the end."""
    ignored: int | None = None
    """A value that stands for none."""


def _rows_of_table(
    weight: torch.Tensor, index: torch.Tensor, *_: object, **__: object
) -> list[Use]:
    return [Use(index, weight.shape[0])]


def _classes(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> list[Use]:
    del weight, reduction
    return [Use(target, x.shape[min(1, x.dim() - 1)], ignored=ignore_index)]


def _margin_classes(x: torch.Tensor, target: torch.Tensor, *_: object, **__: object) -> list[Use]:
    return [Use(target, x.shape[-1])]


def _along_axis(
    x: torch.Tensor, dim: int, index: torch.Tensor, *_: object, **__: object
) -> list[Use]:
    return [Use(index, x.shape[dim] if x.dim() else 1)]


def _filled(x: torch.Tensor, dim: int, index: torch.Tensor, *_: object) -> list[Use]:
    return [Use(index, x.shape[dim] if x.dim() else 1, negative=True)]


def _taken(x: torch.Tensor, index: torch.Tensor) -> list[Use]:
    return [Use(index, x.numel(), negative=True)]


def _axes(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: object, **__: object
) -> list[Use]:
    uses: list[Use] = []
    axis = 0
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):  # a mask
            axis += index.dim()
            continue
        if index is not None:
            uses.append(Use(index, x.shape[axis], negative=True))
        axis += 1
    return uses


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> list[Use]:
    return [Use(tensor, num_classes)] if num_classes > 0 else []


OPERATIONS: Mapping[Callable, Callable[..., list[Use]]] = {
    aten.embedding: _rows_of_table,
    aten._embedding_bag: _rows_of_table,
    aten._embedding_bag_forward_only: _rows_of_table,
    aten.nll_loss_forward: _classes,
    aten.nll_loss2d_forward: _classes,
    aten.multi_margin_loss: _margin_classes,
    aten.take: _taken,
    aten.index: _axes,
    aten.index_put: _axes,
    aten.index_put_: _axes,
    **dict.fromkeys(
        (
            aten.gather, aten.index_select, aten.scatter, aten.scatter_, aten.scatter_add,
            aten.scatter_add_, aten.scatter_reduce, aten.scatter_reduce_, aten.index_add,
            aten.index_add_, aten.index_copy, aten.index_copy_,
        ),
        _along_axis,
    ),
    aten.index_fill: _filled,
    aten.index_fill_: _filled,
    F.one_hot: _one_hot,
}  # fmt: skip
"""By operator, or torch function that is computed as a whole: the indices among its arguments."""

_CATCHING = frozenset({"IndexError", "LookupError"})
"""Errors that code catches when it counts on torch's error of an index."""

_COLLECTED: ContextVar[dict[str, jax.Array] | None] = ContextVar(
    "jaxsr_interop_indices", default=None
)
_CHECKED: ContextVar[bool] = ContextVar("jaxsr_interop_indices_checked", default=False)
"""Whether an operation runs whose indices have been seen; what it consists of may clamp them."""


@contextmanager
def collecting_indices() -> Generator[dict[str, jax.Array]]:
    """Gathers the worst index of every operation that `JaxModule.apply` traces in this block.

    Yields:
      By words that name the operation, its place and its rule: 0 where all indices are in range,
      else the one that is furthest outside, an int32. Operations inside `jax.checkpoint`,
      `torch.vmap` and an `autograd.Function` are left out.
    """
    collected: dict[str, jax.Array] = {}
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def worse(one: jax.Array, other: jax.Array) -> jax.Array:
    """The one of two such indices that is further from 0."""
    return jnp.where(jnp.abs(other) > jnp.abs(one), other, one)


@contextmanager
def checked_indices(func: Callable, args: Sequence, kwargs: Mapping) -> Generator[None]:
    """Around an operator or torch function: its indices are checked, or collected.

    Raises:
      IndexOutsideError: one whose value is known is out of range.
    """
    uses_of = OPERATIONS.get(getattr(func, "overloadpacket", func))
    if uses_of is None or _CHECKED.get():
        yield
        return
    for use in uses_of(*args, **kwargs):
        _look(func, use)
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def _look(func: Callable, use: Use) -> None:
    index = use.index
    if not isinstance(index, JaxTensor):
        if isinstance(index, torch.Tensor):
            with plain_torch():
                _check(func, use, index.detach().cpu().numpy())
        return
    if index.selection is not None or use.size == 0:
        return  # rows that do not count may hold anything
    if index.const is not None:
        with plain_torch():
            _check(func, use, index.const.numpy())
        return
    array = as_int32(index.array())
    if not isinstance(array, jax.core.Tracer):
        if array.is_fully_addressable:
            _check(func, use, np.asarray(array))
        return
    if place := try_around(_CATCHING):
        raise UnsupportedTorchError(
            f"{_rule(func, use)}, inside `try` at {place}: whether one is outside depends on "
            "values, and a compiled program raises no IndexError; use torch.where and clamp"
        )
    collected = _COLLECTED.get()
    if collected is None or Region.current() is not None:
        return
    rule = _rule(func, use)
    worst = _worst(array, use)
    collected[rule] = worse(collected[rule], worst) if rule in collected else worst


def _worst(array: jax.Array, use: Use) -> jax.Array:
    outside = _outside(array, use)
    values = jnp.where(outside, array, 0).astype(jnp.int32)
    return worse(values.max(initial=0), values.min(initial=0))


def _outside(array: Any, use: Use) -> Any:
    outside = (array >= use.size) | (array < (-use.size if use.negative else 0))
    return outside if use.ignored is None else outside & (array != use.ignored)


def _check(func: Callable, use: Use, values: np.ndarray) -> None:
    outside = values[_outside(values, use)]
    if outside.size:
        error = IndexOutsideError.of(_rule(func, use), int(outside.flat[0]))
        error.located = True  # pyright: ignore[reportAttributeAccessIssue]
        raise error


def _rule(func: Any, use: Use) -> str:
    """The operation, its place in the user's code, and what it takes."""
    name = getattr(func, "overloadpacket", func).__name__
    name = {"nll_loss_forward": "cross_entropy", "nll_loss2d_forward": "cross_entropy"}.get(
        name, name.strip("_")
    )
    first = -use.size if use.negative else 0
    ignored = "" if use.ignored is None else f" or ignore_index={use.ignored}"
    return f"{name}{_place()} takes indices from {first} to {use.size - 1}{ignored}"


def _place() -> str:
    """The innermost line that is neither of torch nor of this package."""
    if (frame := users_frame(sys._getframe(1))) is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f" at {file}:{line} `{linecache.getline(file, line).strip()}`"


class _CheckedOperators(DispatchMode):
    def call(self, func: torch._ops.OpOverload, args: tuple, kwargs: Options) -> Any:
        with checked_indices(func, args, kwargs):
            return run_below(func, args, kwargs)


class _CheckedFunctions(FunctionMode):
    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        with checked_indices(func, args, kwargs):
            return func(*args, **kwargs)


@contextmanager
def checked_torch() -> Generator[None]:
    """In this block torch's own operators are held to the same rules, with the same message."""
    with _CheckedFunctions(), _CheckedOperators():
        yield
