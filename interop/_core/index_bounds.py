"""Values that torch refuses when it meets them, and XLA clamps, leaves out or computes with.

Arrays whose values are known are checked at once. Inside a compiled program nothing can be raised:
under `collecting_indices` each operation leaves the worst of its values, an int32, for the program
to return. `OPERATIONS` is the only table of operations that take indices, of their bounds, and of
other values that are refused. A lowering passes its own findings to `check_values`; if the result
has floats, the lowering makes them NaN instead.
"""

import linecache
import math
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F

from jaxsr.interop._core.dtypes import as_int32
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.stack_frames import try_around, users_frame
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop.errors import INDEX_RULE, RefusedValueError, UnsupportedTorchError
from jaxsr.interop.mode_methods import DispatchMode, FunctionMode, Options, run_below


class Use(NamedTuple):
    """Indices that an operation takes."""

    index: torch.Tensor
    """A tensor of integers."""
    size: int
    """How many things there are to index."""
    negative: bool = False
    """Whether negative ones count from the end."""
    ignored: int | None = None
    """A value that means "no index"."""


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
    return [Use(target, x.shape[-1] if x.dim() else 1)]


def _along_axis(
    x: torch.Tensor, dim: int, index: torch.Tensor, *_: object, **__: object
) -> list[Use]:
    return [Use(index, x.shape[dim] if x.dim() else 1)]


def _filled(x: torch.Tensor, dim: int, index: torch.Tensor, *_: object) -> list[Use]:
    return [Use(index, x.shape[dim] if x.dim() else 1, negative=True)]


def _taken(x: torch.Tensor, index: torch.Tensor, *_: object, **__: object) -> list[Use]:
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


def _labels(x: torch.Tensor, target: torch.Tensor, *_: object, **__: object) -> list[Use]:
    return [Use(target, x.shape[-1] if x.dim() else 1, ignored=-1)]


def _places(
    x: torch.Tensor, indices: torch.Tensor, size: Sequence[int], *_: object, **__: object
) -> list[Use]:
    return [Use(indices, math.prod(size))]


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> list[Use]:
    return [Use(tensor, num_classes)] if num_classes > 0 else []


class Refused(NamedTuple):
    """Values that an operation refuses."""

    what: str
    """Description of the operation's failure, after its name."""
    tensors: Sequence[torch.Tensor]
    mask: Callable[..., Any]
    """Where they are refused, for their arrays, which may be NumPy's."""


def _divisors(
    x: Any, divisor: Any, rounding_mode: str | None = "floor", **_: object
) -> list[Refused]:
    is_whole = rounding_mode is not None and not any(map(_is_inexact, (x, divisor)))
    if is_whole and not isinstance(divisor, torch.Tensor):
        with plain_torch():
            divisor = torch.tensor(divisor)
    return [Refused("divides integers by 0", (divisor,), lambda d: d == 0)] if is_whole else []


def _quotients(
    x: Any, divisor: Any, *, rounding_mode: str | None = None, **_: object
) -> list[Refused]:
    return _divisors(x, divisor, rounding_mode)


def _is_inexact(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, (float, complex))


def _scattered(
    x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor, **_: object
) -> list[Refused]:
    shape, numbers = torch.broadcast_shapes(x.shape, mask.shape), source.numel()
    copies = math.prod(shape) // max(mask.numel(), 1)
    what = f"has {numbers} numbers for more places"
    return [Refused(what, (mask,), lambda m: m.sum() * copies > numbers)]


def _put(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> list[Use | Refused]:
    del accumulate
    uses: list[Use | Refused] = [*_axes(x, indices)]
    *before, mask = indices or [None]
    is_mask = mask is not None and mask.dtype in (torch.bool, torch.uint8)
    if mask is None or not is_mask or any(each is not None for each in before):
        return uses
    # The selected rows are the axis len(before) of x[mask], to whose shape the values broadcast.
    axis = len(before) - (x.dim() - mask.dim() + 1 - values.dim())
    if axis >= 0 and (rows := values.shape[axis]) != 1:
        what = f"has {rows} values for another number of places"
        uses.append(Refused(what, (mask, values), lambda m, _: (m != 0).sum() != rows))
    return uses


def _repeats(
    repeats: torch.Tensor, *, output_size: int | None = None, **_: object
) -> list[Refused]:
    what = f"repeats by negative numbers, or others than output_size={output_size} in sum"
    counts = Refused(what, (repeats,), lambda n: (n < 0).any() | (n.sum() != output_size))
    return [] if output_size is None else [counts]


def _power(x: Any, exponent: Any, **_: object) -> list[Refused]:
    is_refused = isinstance(exponent, int) and exponent < 0 and not _is_inexact(x)
    return [Refused("raises integers to a negative power", (), np.ones(1, bool).copy)] * is_refused


def _bags(
    weight: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, *_: object, **__: object
) -> list[Use | Refused]:
    count = index.shape[0]
    what = f"takes offsets that do not begin at 0, or are beyond its {count} indices"
    outside = Refused(what, (offsets,), lambda o: (o[:1] != 0).any() | (o > count).any())
    return [*_rows_of_table(weight, index), outside]


OPERATIONS: Mapping[Callable, Callable[..., Sequence[Use | Refused]]] = {
    aten.embedding: _rows_of_table,
    aten._embedding_bag: _bags,
    aten._embedding_bag_forward_only: _bags,
    aten.masked_scatter: _scattered,
    aten.masked_scatter_: _scattered,
    aten.repeat_interleave: _repeats,
    aten.nll_loss_forward: _classes,
    aten.nll_loss2d_forward: _classes,
    aten.multi_margin_loss: _margin_classes,
    aten.multilabel_margin_loss_forward: _labels,
    aten.max_unpool2d: _places,
    aten.max_unpool3d: _places,
    aten.put: _taken,
    aten.put_: _taken,
    aten.take: _taken,
    aten.index: _axes,
    aten.index_put: _put,
    aten.index_put_: _put,
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
    aten.pow: _power,
    aten.pow_: _power,
    aten.div: _quotients,
    aten.div_: _quotients,
    **dict.fromkeys(
        (
            aten.floor_divide, aten.floor_divide_, aten.remainder, aten.remainder_, aten.fmod,
            aten.fmod_,
        ),
        _divisors,
    ),
}  # fmt: skip
"""Checks of arguments, by operator, or by torch function that is computed as a whole."""

_CATCHING = frozenset({"IndexError", "LookupError"})
"""Errors that code catches when it counts on torch's error of an index."""

_CATCHING_VALUES = frozenset({"RuntimeError", "ValueError", "ZeroDivisionError"})
"""Error that torch code may catch for another value."""

_COLLECTED: ContextVar[dict[str, jax.Array] | None] = ContextVar(
    "jaxsr_interop_indices", default=None
)
_CHECKED: ContextVar[bool] = ContextVar("jaxsr_interop_indices_checked", default=False)
"""Whether an operation runs whose indices have been checked; its parts may clamp them."""


@contextmanager
def collecting_indices() -> Generator[dict[str, jax.Array]]:
    """Gathers the worst value of every operation that `JaxModule.apply` traces in this block.

    Yields:
      By words that name the operation, its place and its rule, an int32: 0 where all values keep
      the rule, else 1, or of indices the one that is furthest outside. Operations inside
      `jax.checkpoint`, `torch.vmap` and an `autograd.Function` are left out.
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
    """Around an operator or torch function: its values are checked, or collected.

    Raises:
      RefusedValueError: one that is known is refused.
    """
    uses_of = OPERATIONS.get(getattr(func, "overloadpacket", func))
    if uses_of is None or _CHECKED.get():
        yield
        return
    for use in uses_of(*args, **kwargs):
        if isinstance(use, Refused):
            _look(func, use)
        else:
            look_at_index(func, use)
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def look_at_index(func: Callable, use: Use) -> None:
    """Checks, or collects, indices that an operation takes."""
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
    _collect(_rule(func, use), array, partial(_worst, use=use), _CATCHING)


def _look(func: Callable, use: Refused) -> None:
    if any(isinstance(t, JaxTensor) and t.selection is not None for t in use.tensors):
        return  # rows that do not count may hold anything
    name = getattr(func, "overloadpacket", func).__name__.strip("_")
    refused = use.mask(*map(_values, use.tensors))
    check_values(f"{name}{place_in_code()} {use.what}", refused)


def _values(tensor: torch.Tensor) -> Any:
    plain = tensor.const if isinstance(tensor, JaxTensor) else tensor
    if plain is None:
        return tensor.array()  # pyright: ignore[reportAttributeAccessIssue]
    with plain_torch():
        return plain.detach().cpu().numpy()


def check_values(rule: str, refused: Any) -> None:
    """Holds values to a rule of torch's, or collects them.

    Args:
      rule: a sentence saying which values torch refuses.
      refused: whether it does, of JAX or NumPy.

    Raises:
      RefusedValueError: it does, and the values are known.
    """
    if isinstance(refused, jax.core.Tracer):
        _collect(rule, refused, _any, _CATCHING_VALUES)
    elif getattr(refused, "is_fully_addressable", True) and refused.any():
        error = RefusedValueError(rule)
        error.located = True  # pyright: ignore[reportAttributeAccessIssue]
        raise error


def _any(refused: jax.Array) -> jax.Array:
    return refused.any().astype(jnp.int32)


def _collect(
    rule: str, array: jax.Array, worst: Callable[[jax.Array], jax.Array], catching: frozenset[str]
) -> None:
    if place := try_around(catching):
        raise UnsupportedTorchError(
            f"{rule}, inside `try` at {place}: whether torch raises depends on values, and a "
            "compiled program raises nothing; use torch.where and clamp"
        )
    collected = _COLLECTED.get()
    if collected is None or Region.current() is not None:
        return
    value = worst(array)
    collected[rule] = worse(collected[rule], value) if rule in collected else value


def _worst(array: jax.Array, *, use: Use) -> jax.Array:
    outside = _outside(array, use)
    values = jnp.where(outside, array, 0).astype(jnp.int32)
    return worse(values.max(initial=0), values.min(initial=0))


def _outside(array: Any, use: Use) -> Any:
    outside = (array >= use.size) | (array < (-use.size if use.negative else 0))
    return outside if use.ignored is None else outside & (array != use.ignored)


def _check(func: Callable, use: Use, values: np.ndarray) -> None:
    outside = values[_outside(values, use)]
    if outside.size:
        error = RefusedValueError.of(_rule(func, use), int(outside.flat[0]))
        error.located = True  # pyright: ignore[reportAttributeAccessIssue]
        raise error


def _rule(func: Any, use: Use) -> str:
    """The operation, its place in the user's code, and the values that it takes."""
    name = getattr(func, "overloadpacket", func).__name__
    name = {"nll_loss_forward": "cross_entropy", "nll_loss2d_forward": "cross_entropy"}.get(
        name, name.strip("_")
    )
    first = -use.size if use.negative else 0
    ignored = "" if use.ignored is None else f" or ignore_index={use.ignored}"
    return f"{name}{place_in_code()}{INDEX_RULE}{first} to {use.size - 1}{ignored}"


def place_in_code() -> str:
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
    """In this block torch's own operators are checked by the same rules, with the same message."""
    with _CheckedFunctions(), _CheckedOperators():
        yield
