"""Torch's control flow as Python runs it: `torch.cond`, `while_loop`, `scan`, `map`.

Torch compiles these, and its compiler enters no function while a mode watches torch's operations.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.utils import _pytree as pytree

from jaxsr.interop._core.entry_points import ANY_FLEX_ATTENTION, replaced
from jaxsr.interop.annotations import PyTree


def _cond(pred: Any, true_fn: Callable, false_fn: Callable, operands: Any = ()) -> PyTree:
    return (true_fn if pred else false_fn)(*operands)


def _while_loop(cond_fn: Callable, body_fn: Callable, carried: Any, others: Any = ()) -> PyTree:
    while cond_fn(*carried, *others):
        carried = body_fn(*carried, *others)
    return tuple(carried)


def _scan(
    combine_fn: Callable, init: Any, xs: Any, additional_inputs: Any = ()
) -> tuple[PyTree, PyTree]:
    carry, rows = list(init), list[PyTree]()
    for row in zip(*xs, strict=True):
        last, out = combine_fn(*carry, *row, *additional_inputs)
        carry = pytree.tree_leaves(last)
        rows.append(out)
    return last, _stacked(rows)


def _map(function: Callable, xs: Any, args: Any) -> PyTree:
    return _stacked([function(*row, *args) for row in zip(*xs, strict=True)])


def _stacked(rows: list[PyTree]) -> PyTree:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *rows)


@contextmanager
def eager_control_flow() -> Generator[None]:
    """In this block torch runs control flow in Python, and `flex_attention` by its definition."""
    functions = {"cond": _cond, "while_loop": _while_loop, "scan": _scan, "map": _map}
    with replaced({**functions, "flex_attention": math_attention, **ANY_FLEX_ATTENTION}):
        yield
