"""Torch's control flow (`torch.cond`, `while_loop`, `scan`, `map`) by JAX's, in a trace."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch
from torch._higher_order_ops.flex_attention import math_attention

from jaxsr.interop._core.array_trees import Arrays, Wrap, flat_arrays
from jaxsr.interop._core.dtypes import as_carried, as_int64
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import Region
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError, first_line


class _Body:
    """A torch function of trees as one of arrays, traced by another JAX transformation."""

    def __init__(self, trace: Trace, function: Callable, *inputs: Wrap) -> None:
        self._trace, self._function, self._inputs = trace, function, inputs
        self.result: Wrap

    def __call__(self, *parts: Arrays) -> list[jax.Array]:
        with Region(writable=False).entered():
            args = [a for wrap, part in zip(self._inputs, parts, strict=True) for a in wrap(part)]
            arrays, self.result = flat_arrays(self._trace, self._function(*args))
            return arrays


def _in_enough_bits(trace: Trace, run: Callable, results: Callable, carry: Arrays) -> Any:
    """A loop, with 64 bits for the integers that need them after a round.

    Args:
      trace: the trace.
      run: JAX's loop, a function of the carried values.
      results: the carried values after a round.
      carry: the carried values.
    """
    draws = trace.draws
    try:
        return run(carry)
    except TypeError:
        trace.draws = draws
        made = jax.eval_shape(results, carry)
        wide = [
            as_int64(value) if {value.dtype, new.dtype} == {np.dtype("int32"), np.dtype("int64")}
            else value
            for value, new in zip(carry, made, strict=True)
        ]  # fmt: skip
        trace.draws = draws
        if all(new is old for new, old in zip(wide, carry, strict=True)):
            raise
        return run(wide)


@contextmanager
def _named(trace: Trace, name: str, *, repeats: bool = True) -> Generator[None]:
    """Names errors of JAX's after torch's function; a loop may draw no random numbers."""
    draws = trace.draws
    try:
        yield
    except TypeError as error:  # JAX's, where shapes or dtypes differ
        raise UnsupportedTorchError(
            f"{name}: results differ in shape, dtype or structure ({first_line(error)}); make them "
            "alike"
        ) from error
    if repeats and trace.draws != draws:
        raise UnsupportedTorchError(
            f"random numbers inside {name}, where each round would draw the same; draw them before"
        )


def cond(
    trace: Trace, pred: Any, true_fn: Callable, false_fn: Callable, operands: Any = ()
) -> PyTree:
    """`torch.cond`; where the predicate is known, the branch alone."""
    if isinstance(pred, torch.Tensor):
        known = trace.as_jax_tensor(pred).const
        pred = pred if known is None else bool(known)
    if not isinstance(pred, torch.Tensor):
        return (true_fn if pred else false_fn)(*operands)
    arrays, inputs = flat_arrays(trace, tuple(operands))
    branches = _Body(trace, true_fn, inputs), _Body(trace, false_fn, inputs)
    with _named(trace, "torch.cond", repeats=False):
        is_true = trace.as_jax_tensor(pred).array().reshape(()).astype(bool)
        draws = trace.draws
        try:
            results = jax.lax.cond(is_true, *branches, arrays)
        except TypeError:
            trace.draws = draws
            first, second = (jax.eval_shape(branch, arrays) for branch in branches)
            wide = [a if a.dtype == np.int64 else b for a, b in zip(first, second, strict=False)]
            trace.draws = draws
            results = jax.lax.cond(
                is_true,
                *(lambda values, b=b: as_carried(b(values), wide) for b in branches),
                arrays,
            )
    return branches[0].result(results)


def while_loop(
    trace: Trace,
    cond_fn: Callable,
    body_fn: Callable,
    carried_inputs: Any,
    additional_inputs: Any = (),
    **options: Any,
) -> PyTree:
    """`while_loop`, whose numbers of rounds depend on values; JAX has no gradient through it."""
    if options.get("stack_output"):
        raise UnsupportedTorchError("while_loop that stacks its rounds; use scan")
    carried = [torch.tensor(x) if not isinstance(x, torch.Tensor) else x for x in carried_inputs]
    arrays, inputs = flat_arrays(trace, carried)
    others, additional = flat_arrays(trace, tuple(additional_inputs))
    proceeds = _Body(trace, cond_fn, inputs, additional)
    body = _Body(trace, body_fn, inputs, additional)

    def condition(values: Arrays) -> jax.Array:
        (value,) = proceeds(values, others)
        return value.reshape(())

    with _named(trace, "while_loop"):
        results = _in_enough_bits(
            trace,
            lambda carry: jax.lax.while_loop(
                condition, lambda values: as_carried(body(values, others), values), carry
            ),
            lambda carry: body(carry, others),
            arrays,
        )
    return tuple(inputs(results))


def scan(
    trace: Trace, combine_fn: Callable, init: Any, xs: Any, additional_inputs: Any = ()
) -> tuple[PyTree, PyTree]:
    """`scan` along axis 0; `combine_fn` gives a pair of trees, the carry and the output."""
    carry, carried = flat_arrays(trace, list(init))
    rows, elements = flat_arrays(trace, list(xs))
    others, additional = flat_arrays(trace, tuple(additional_inputs))
    body = _Body(trace, combine_fn, carried, elements, additional)

    def step(carry: Arrays, row: Arrays) -> tuple[list[jax.Array], list[jax.Array]]:
        arrays = body(carry, row, others)
        return as_carried(arrays[: len(carry)], carry), arrays[len(carry) :]

    with _named(trace, "scan"):
        last, stacked = _in_enough_bits(
            trace,
            lambda carry: jax.lax.scan(step, carry, rows),
            lambda carry: body(carry, [row[0] for row in rows], others)[: len(carry)],
            carry,
        )
    return body.result([*last, *stacked])


def mapped(trace: Trace, function: Callable, xs: Any, args: Any) -> PyTree:
    """`torch._higher_order_ops.map`: a function of each row, one after another."""
    rows, elements = flat_arrays(trace, list(xs))
    others, additional = flat_arrays(trace, tuple(args))
    body = _Body(trace, function, elements, additional)
    with _named(trace, "map"):
        results = jax.lax.map(lambda row: body(row, others), rows)
    return body.result(results)


def flex_attention(trace: Trace, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """Torch's definition of `flex_attention`, by `torch.vmap` over its indices."""
    del trace
    return math_attention(*args, **kwargs)
