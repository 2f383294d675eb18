"""The modes through which torch reports the operations of the module's code to a `Trace`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from jaxsr.interop._core import registry, selections
from jaxsr.interop._core.index_bounds import checked_indices
from jaxsr.interop._core.registry import Kind
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.mode_methods import DispatchMode, FunctionMode, Options


class TraceDispatchMode(DispatchMode):
    """Gives every aten operator to a trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def call(self, func: torch._ops.OpOverload, args: tuple, kwargs: Options) -> Any:
        with torch._C.DisableTorchFunction():
            return self.trace.dispatch(func, args, kwargs)


class TraceFunctionMode(FunctionMode):
    """Gives torch's functions to `@overrides`, before torch splits them into operators."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace
        self.constructors = _device_constructors()

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise UnsupportedTorchError(
                "a transformation of torch.func inside forward other than grad, grad_and_value, "
                "vjp, jvp, jacrev, jacfwd, hessian and vmap; apply the jax transformation to a "
                "JaxModule of the inner module instead"
            )
        entry = registry.function_override(func)
        if entry is not None and entry.kind is Kind.REFUSED:
            raise entry.error(entry.reason)
        if selections.among([*args, *kwargs.values()]):
            done, result = selections.run_function(self.trace, func, entry, args, kwargs)
            if done:
                return result
        if entry is not None:
            draws = self.trace.draws
            with checked_indices(func, args, kwargs):
                result = entry.call(self.trace, func, args, kwargs)
            self.trace.mark_input_free(func, (args, kwargs), result, draws)
            return result
        if func in self.constructors or kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        if func in self.constructors and kwargs.pop("requires_grad", False):
            return func(*args, **kwargs).requires_grad_()  # which torch's own code would set in C
        return func(*args, **kwargs)
