"""Bisection: the first submodule that is wrong by itself, on the inputs that torch gave it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_modes import TorchRuns, compare_mode
from jaxsr.comparison.check_result import Fault, Row
from jaxsr.comparison.jax_runs import JaxRuns
from jaxsr.comparison.torch_runs import run_torch
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.module_copy import copy_module

_QUANTITIES = {"gradient": "gradient", "buffers": "buffer"}


@dataclass(kw_only=True)
class Call:
    """A submodule's call in torch, with copies of its arguments."""

    path: str
    module: nn.Module
    args: tuple
    kwargs: dict[str, PyTree]
    inner: "list[Call]" = field(default_factory=list)


def recorded_calls(module: nn.Module, arguments: Arguments, *, train: bool, key: jax.Array) -> Call:
    """The calls of a run in float32 torch, as a tree."""
    stack: list[Call] = []
    root: list[Call] = []

    def run(copied: nn.Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
        names = {id(sub): name for name, sub in copied.named_modules()}

        def before(sub: nn.Module, args: tuple, kwargs: dict) -> None:
            values = pytree.tree_map(_copied, (args, kwargs))
            state = copy_module(sub)  # as it is now: buffers change in training
            call = Call(path=names.get(id(sub), ""), module=state, args=values[0], kwargs=values[1])
            (stack[-1].inner if stack else root).append(call)
            stack.append(call)

        def after(sub: nn.Module, args: tuple, kwargs: dict, result: PyTree) -> None:
            stack.pop()

        hooks = [
            hook
            for sub in copied.modules()
            for hook in (
                sub.register_forward_pre_hook(before, with_kwargs=True),
                sub.register_forward_hook(after, with_kwargs=True),
            )
        ]
        try:
            return copied(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    run_torch(module, arguments, train=train, key=key, method=run)
    return root[0]


def _copied(value: object) -> object:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def find_fault(
    module: nn.Module,
    arguments: Arguments,
    row: Row,
    convert: Callable[[nn.Module, Arguments], JaxRuns],
    *,
    train: bool,
    key: jax.Array,
) -> Fault | None:
    """Descends from the module into the first call that is wrong by itself.

    Args:
      module: the whole.
      arguments: of its forward.
      row: what differs: its name ends in `forward`, `gradient` or `buffers`.
      convert: makes the JAX side of a module.
      train: the mode.
      key: for random draws.

    Returns:
      The innermost wrong submodule; None where the calls cannot be recorded.
    """
    quantity = row.name.split()[-1]
    try:
        call = recorded_calls(module, arguments, train=train, key=key)
    except Exception:
        return None
    worst = row.worst
    assert worst is not None
    fault = Fault(
        path="", kind=type(module).__name__, quantity=_quantity(quantity, worst.name),
        error=worst.error, bound=worst.bound,
    )  # fmt: skip
    inner = call.inner
    while inner:
        for call in inner:
            inner_fault = _wrong(call, quantity, convert, train, key)
            if inner_fault is not None:
                fault, inner = inner_fault, call.inner
                break
        else:
            break
    return fault


def _quantity(group: str, name: str) -> str:
    return name if group == "forward" else f"{_QUANTITIES[group]} {name}"


def _wrong(
    call: Call,
    quantity: str,
    convert: Callable[[nn.Module, Arguments], JaxRuns],
    train: bool,
    key: jax.Array,
) -> Fault | None:
    """The fault of one call alone; None where it is right or cannot run alone."""
    arguments = Arguments.of(call.args, call.kwargs)
    try:
        torch_runs = TorchRuns.of(
            call.module, arguments, train=train, key=key, differentiate=quantity == "gradient"
        )
        rows = compare_mode(convert(call.module, arguments), torch_runs).rows
    except Exception:
        return None
    for row in rows:
        if row.status == "differs" and row.worst is not None:
            return Fault(
                path=call.path,
                kind=type(call.module).__name__,
                quantity=_quantity(row.name, row.worst.name),
                error=row.worst.error,
                bound=row.worst.bound,
            )
    return None
