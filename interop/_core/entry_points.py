"""Where torch's functions are that no dispatch mode shows, and how they are replaced for a while.

Torch's modules look these names up at each call. So a replacement reaches code that has imported
the public function (`torch.cond`, `torch.vmap`, …) before.

`traced_apply` takes over `torch.autograd.Function.apply`, wherever code has kept it. `ste =
Round.apply` at module level, an attribute and a `functools.partial` are bound methods that were
made before the trace, so replacing `Function.apply` does not reach them. Up to torch 2.13 they
share one function of Python, whose code is exchanged. From 2.14 on they are C, which asks the class
for `_backward_cls`, then for `forward`, and calls that; jaxsr replaces the class's answers.
"""

import functools
import importlib
import threading
import types
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionMeta

from jaxsr.interop._core.trace_scope import running_trace

_FLEX = "torch.nn.attention.flex_attention"
ENTRY_POINTS = {
    "vmap": ("torch._functorch.apis", "vmap_impl"),
    "grad_and_value": ("torch._functorch.eager_transforms", "grad_and_value_impl"),
    "vjp": ("torch._functorch.eager_transforms", "_vjp_with_argnums"),
    "jvp": ("torch._functorch.eager_transforms", "_jvp_with_argnums"),
    "associative_scan": ("torch._higher_order_ops.associative_scan", "associative_scan"),
    "cond": ("torch._higher_order_ops.cond", "cond_op"),
    "while_loop": ("torch._higher_order_ops.while_loop", "while_loop_op"),
    "scan": ("torch._higher_order_ops.scan", "scan_op"),
    "map": ("torch._higher_order_ops.map", "map_impl"),
    "flex_attention": (_FLEX, "flex_attention_hop"),
    "flex_attention's device": (_FLEX, "_validate_device"),
    "flex_attention without compiling": (_FLEX, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"),
    "checks of values": ("torch", "_check_tensor_all_with"),
    "inputs of functional": ("torch.autograd.functional", "_grad_preprocess"),
    "torch's generator": ("torch.random", "default_generator"),
    "torch's generator by name": ("torch", "default_generator"),
    "entropy": ("os", "urandom"),
    "entropy of SystemRandom": ("random", "_urandom"),
}
"""By caller: the module, and the name in it."""

ANY_FLEX_ATTENTION = {
    "flex_attention's device": lambda *_: None,
    "flex_attention without compiling": True,
}
"""It refuses gradients on CPUs, and insists on a compiled frame."""


def entry_point(name: str) -> Any:
    """The function at this name now."""
    module, attribute = ENTRY_POINTS[name]
    return getattr(importlib.import_module(module), attribute)


@contextmanager
def replaced(values: Mapping[str, Any]) -> Generator[None]:
    """Puts values in the places of `ENTRY_POINTS`, and back."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, attribute = ENTRY_POINTS[name]
            owner = importlib.import_module(module)
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)
        yield


_ENTRY = Function.__dict__["apply"]


def _apply(cls: type[Function], args: tuple, kwargs: dict) -> Any:
    return running_trace().apply_function(cls, args, kwargs)


def _is_traced() -> bool:
    return running_trace().is_tracing_thread()


@contextmanager
def _exchanged_code(function: types.FunctionType) -> Generator[None]:
    before = function.__code__
    function.__code__ = _code_in_a_trace()
    try:
        yield
    finally:
        function.__code__ = before


def _code_in_a_trace() -> types.CodeType:
    """The code that torch's function gets. It runs among torch's globals, so it imports."""
    __class__: Any = None  # torch's has this free variable, and so must this one

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        from jaxsr.interop._core.entry_points import apply_in_trace

        return apply_in_trace(__class__, cls, args, kwargs)

    return apply.__code__


def apply_in_trace(base: object, cls: type[Function], args: tuple, kwargs: dict) -> Any:
    """`cls.apply` while something is traced, perhaps by another thread."""
    del base
    return _apply(cls, args, kwargs) if _is_traced() else _torch_apply()(cls, *args, **kwargs)


@functools.cache
def _torch_apply() -> types.FunctionType:
    """torch's function with its own code. It is made before the first exchange."""
    entry = _ENTRY.__func__
    return types.FunctionType(
        entry.__code__, entry.__globals__, entry.__name__, entry.__defaults__, entry.__closure__
    )


class _Calls(threading.local):
    """The calls of C's `apply` in this thread."""

    applied: type[Function] | None = None
    """The class whose `forward` it asks for next."""
    grad: bool = True
    """Whether gradients were on when it was called: C turns them off around `forward`."""
    ran: type[Function] | None = None
    """The class whose `setup_context` it calls next, for nothing: `forward` has done its work."""


_CALLS = _Calls()


def _answer(cls: Any, name: str) -> Any:
    if name == "_backward_cls" and _is_traced():
        _CALLS.applied, _CALLS.grad = cls, torch.is_grad_enabled()
    elif name == "forward" and _CALLS.applied is cls:
        _CALLS.applied = None
        return functools.partial(_forward, cls)
    elif name == "setup_context" and _CALLS.ran is cls:
        _CALLS.ran = None
        return lambda ctx, inputs, output: None
    return type.__getattribute__(cls, name)


def _forward(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    """The whole of a traced `apply`, in the place of `forward`."""
    has_context = cls.setup_context is Function.setup_context
    with torch.set_grad_enabled(_CALLS.grad):
        result = _apply(cls, args[1:] if has_context else args, kwargs)
    if not has_context:
        _CALLS.ran = cls
    return result


@contextmanager
def _exchanged_answers() -> Generator[None]:
    before = vars(FunctionMeta).get("__getattribute__")
    FunctionMeta.__getattribute__ = _answer  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        if before is None:
            del FunctionMeta.__getattribute__
        else:
            FunctionMeta.__getattribute__ = before


def traced_apply() -> Any:
    """Until it is left, `apply` of every Function is the trace's, in the thread that traces."""
    if isinstance(_ENTRY, classmethod):
        _torch_apply()
        return _exchanged_code(_ENTRY.__func__)
    return _exchanged_answers()
