"""Quiet for Orbax: its coroutines fail late and print tracebacks, and it warns of each save."""

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from jaxsr.interop.errors import DamagedFileError, first_line


@contextmanager
def without_late_tracebacks() -> Generator[None]:
    """Orbax reads in coroutines, which after a failure would print tracebacks later.

    Raises:
      DamagedFileError: the block raised anything; it has the first line of it.
    """
    asyncio_log, hook, text = logging.getLogger("asyncio"), sys.unraisablehook, ""
    asyncio_log.disabled = True
    # Interrupts are for the program's own hook, which sends them again.
    sys.unraisablehook = lambda dropped: (
        hook(dropped) if issubclass(dropped.exc_type, KeyboardInterrupt) else None
    )
    try:
        with lenient_loops(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine was never awaited
            try:
                yield
            except Exception as error:  # of many types, by Orbax and TensorStore
                text = first_line(error)
                error.__traceback__ = error.__cause__ = error.__context__ = None
            if text:
                gc.collect()
    finally:
        asyncio_log.disabled, sys.unraisablehook = False, hook
    if text:
        raise DamagedFileError(text)


class _LenientLoop(asyncio.SelectorEventLoop):
    """An event loop that lets late results go: after a failure TensorStore's threads read on."""

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        if not self.is_closed():
            return super().call_soon_threadsafe(callback, *args, context=context)
        return None


@contextmanager
def lenient_loops() -> Generator[None]:
    """Event loops that are made in the block, in any thread, are lenient."""
    with _deprecated_policies():
        policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]

        class LenientLoops(asyncio.DefaultEventLoopPolicy):  # pyright: ignore[reportDeprecated]
            _loop_factory = _LenientLoop

        asyncio.set_event_loop_policy(LenientLoops())  # pyright: ignore[reportDeprecated]
    try:
        yield
    finally:
        with _deprecated_policies():
            asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated]


@contextmanager
def without_save_warnings() -> Generator[None]:
    """Saves between validations have no metric, on purpose: Orbax need not warn of each."""

    def without(record: logging.LogRecord) -> bool:
        return "tracked_metric" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(without)
    try:
        yield
    finally:
        logger.removeFilter(without)


@contextmanager
def _deprecated_policies() -> Generator[None]:
    """Silences a warning of Python 3.14, which has no other way to loops that a library makes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"'?asyncio\.", DeprecationWarning)
        yield
