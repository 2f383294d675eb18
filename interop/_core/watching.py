"""Watchers of the torch code that runs in a trace; `jaxsr.interop.hooks` is how others use them."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from torch import nn

Watch = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], AbstractContextManager[object]]
"""Takes the module that runs and its arguments; returns a context for the run."""

# Per thread and per context: another thread's traces stay unobserved.
_WATCH: ContextVar[Watch | None] = ContextVar("jaxsr_interop_watch", default=None)


@contextmanager
def watched(watch: Watch | None) -> Generator[None]:
    """Every `JaxModule.apply` of this thread in this block is entered under `watch`, if any.

    Under `jax.jit` that happens while tracing: a cached program is not traced again.
    """
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def is_watched() -> bool:
    """Whether a `JaxModule.apply` of this thread is watched now."""
    return _WATCH.get() is not None


def watching(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AbstractContextManager[object]:
    """The context for which `watched` asks around this run; an empty one outside such a block."""
    watch = _WATCH.get()
    return nullcontext() if watch is None else watch(module, args, kwargs)
