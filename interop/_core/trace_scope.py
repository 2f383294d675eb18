"""The surroundings of traced code: the trace, its regions inside JAX transformations, and watchers.

`Region` knows which values may cross the bounds of such a region. `jaxsr.interop.hooks` is how
others watch the torch code of a trace.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from jaxsr.interop.errors import UnsupportedTorchError


@contextmanager
def plain_torch() -> Generator[None]:
    """In this block torch runs its own code, whatever is being traced."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


_RUNNING: list[Any] = []


def running_trace() -> Any:
    """The `Trace` (`trace.py`) that the calling code runs in; None outside of one."""
    return _RUNNING[-1] if _RUNNING else None


@contextmanager
def running(trace: Any) -> Generator[None]:
    """Makes this the running trace."""
    _RUNNING.append(trace)
    try:
        yield
    finally:
        _RUNNING.pop()


class Written(Protocol):
    """A cell (`tensor.py`) as a region sees it."""

    region: "Region | None"
    value: Any
    const: torch.Tensor | None
    version: int
    bounds: tuple[int, int] | None


class Region:
    """A stretch of the trace that runs inside another JAX transformation (checkpoint, custom_vjp).

    Values made there may leave it only as its outputs. So a region records the cells from outside
    that it writes, and views cached inside are dropped when it ends.
    """

    _stack: list["Region"] = []  # noqa: RUF012  (guarded by the environment's lock)

    def __init__(self, writable: bool) -> None:
        self.writable = writable
        self.written: dict[Written, tuple[Any, torch.Tensor | None, torch.Tensor | None]] = {}

    def roll_back(self) -> None:
        """Gives the cells written here their values from before."""
        for cell, (value, const, copy) in self.written.items():
            if const is not None and copy is not None:
                # In place: the const views of the cell look into this very tensor.
                with plain_torch():
                    const.copy_(copy)
            cell.value, cell.const, cell.bounds = value, const, None
            cell.version += 1

    @classmethod
    def current(cls) -> "Region | None":
        return cls._stack[-1] if cls._stack else None

    @classmethod
    def alive(cls, region: "Region | None") -> bool:
        return region is None or region in cls._stack

    @classmethod
    def log_write(cls, cell: Written) -> None:
        start = cls._stack.index(cell.region) + 1 if cell.region in cls._stack else 0
        for region in cls._stack[start:]:
            if not region.writable:
                raise UnsupportedTorchError(
                    "torch.autograd.Function, torch.vmap, torch.func or control flow writes in "
                    "place into a tensor from outside; return the new value instead"
                )
            if cell not in region.written:
                const = cell.const
                with plain_torch():
                    copy = None if const is None else const.clone()
                region.written[cell] = (cell.value, const, copy)

    @contextmanager
    def entered(self) -> Generator["Region"]:
        self._stack.append(self)
        try:
            yield self
        finally:
            self._stack.pop()


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
