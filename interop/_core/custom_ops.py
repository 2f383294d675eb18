"""Operators that libraries define with `torch.library.custom_op`: their Python code is traced."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.autograd.function import Function, FunctionCtx

from jaxsr.interop.annotations import PyTree


def python_function(func: "torch._ops.OpOverload[..., Any]") -> Callable[..., Any] | None:
    """The Python code of a custom operator as a function of tensors; None of any other operator.

    Where it has a backward of its own (`register_autograd`), that is the derivative.
    """
    definition: Any = OPDEFS.get(func._schema.name)
    if definition is None or func._overloadname != "default":
        return None
    code, backward = definition._init_fn, definition._backward_fn
    if backward is None:
        return code
    setup = definition._setup_context_fn

    def setup_context(ctx: FunctionCtx, inputs: tuple, output: PyTree) -> None:
        if setup is not None:
            setup(ctx=ctx, inputs=inputs, output=output)

    # `Function` wants its methods to be static, and torch's own bookkeeping is not needed.
    methods = {
        "forward": staticmethod(code),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
    }
    differentiable = type(str(func._schema.name), (Function,), methods)
    signature = inspect.signature(code)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return differentiable.apply(*bound.args)

    call.__wrapped__ = code  # pyright: ignore[reportFunctionMemberAccess]
    return call
