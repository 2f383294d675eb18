"""The context of a trace: one at a time, with torch's process-wide switches set, then restored."""

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from jaxsr.interop._core.autograd_function import patched
from jaxsr.interop._core.other_modes import check_modes_around, keeping_global_hooks
from jaxsr.interop._core.tensor_types import answering_types
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import running, running_trace

# Tracing swaps tensors of a module and sets the switches below, which all threads share.
_LOCK = threading.RLock()


@contextmanager
def resumed(trace: Trace) -> Generator[Trace]:
    """Runs more of a trace's code, later or while another trace of the same code runs.

    Yields:
      The trace that it runs in: a gradient of recorded code is taken within the next trace.
    """
    outer = running_trace()
    if outer is None or not outer.is_tracing_thread():
        with session(trace):
            yield trace
        return
    with ExitStack() as stack:  # within torch.autograd.grad its modes are off
        if outer.function_mode not in _get_current_function_mode_stack():
            stack.enter_context(outer.function_mode)
        if outer.dispatch_mode not in _get_current_dispatch_mode_stack():
            stack.enter_context(outer.dispatch_mode)
        stack.enter_context(torch.enable_grad())
        yield outer


@contextmanager
def session(trace: Trace, *, compiling: bool = True) -> Generator[None]:
    """Makes torch code in this block run on JAX; the host's torch settings do not matter in it.

    Args:
      trace: where its operators go.
      compiling: the answer of `torch.compiler.is_compiling()`.
    """
    with _LOCK, ExitStack() as stack:
        if running_trace() is None:
            check_modes_around()
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        # Libraries skip their checks of values, as that a mask is all ones, while torch compiles.
        stack.callback(setattr, torch.compiler, "_is_compiling_flag", torch.compiler.is_compiling())
        torch.compiler._is_compiling_flag = compiling  # pyright: ignore[reportPrivateUsage]
        torch.set_default_dtype(torch.float32)
        # Fused CPU kernels that torch would pick from Python or C++ have no aten lowering.
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(keeping_global_hooks())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(patched(trace))
        stack.enter_context(answering_types(trace.code_globals))
        stack.callback(setattr, trace, "thread", trace.thread)
        trace.thread = threading.get_ident()
        stack.enter_context(running(trace))
        stack.enter_context(trace.dispatch_mode)
        stack.enter_context(trace.function_mode)
        yield
