"""SIGTERM, SIGINT and SIGHUP end a run after the step in progress, on every process of its job.

A job manager and `kill` send SIGTERM, Ctrl-C sends SIGINT, a terminal that closes sends SIGHUP. A
second SIGINT stops at once, without saving (`runtime.interrupts`). Where the data of the next step
do not come, or a validation goes on for long, the signal ends that after some seconds.

In a job of several processes, JAX's preemption service has its own SIGTERM handler, which stays in
place. It tells all processes, and they agree on the step. The other signals are passed on to it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Self

import jax

from jaxsr.runtime.interrupts import Interrupt, send_again

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stalled(Interrupt):
    """A signal ended a block of `StopRequest.limited`."""


@dataclass
class _Limit:
    """A block that takes only so long after a signal."""

    what: str
    seconds: float
    is_of_data: bool
    began: float
    timer: threading.Timer | None = None
    is_over: bool = False


class StopRequest:
    """Tells whether a signal asked the run to stop; as a context, restores the handlers."""

    def __init__(self) -> None:
        self.signal_name = signal.SIGTERM.name
        """The signal that this process received; SIGTERM if another process of the job received
        one."""
        self._received = False
        self._interrupts = 0
        self._number = signal.SIGTERM
        self._limit: _Limit | None = None
        self._previous: dict[signal.Signals, Callable | int | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Handles the signals from now on; ignored ones, as under nohup, stay ignored."""
        if self._previous:  # in a job, from the last check on
            return
        if threading.current_thread() is not threading.main_thread():
            return  # Python delivers signals to the main thread only
        for number in STOP_SIGNALS:
            if number == signal.SIGTERM and jax.distributed.is_initialized():
                continue  # JAX's own handler, unknown to Python
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):
                self._previous[number] = handler
                signal.signal(number, self.receive)

    @contextmanager
    def limited(
        self, what: str, *, seconds: float = 5.0, is_of_data: bool = True
    ) -> Generator[None]:
        """A block that a signal ends after some seconds, in a run of one process.

        Args:
          what: takes so long, for the error.
          seconds: from the signal on, if it comes within the block.
          is_of_data: whether it computes nothing: native code in it may be abandoned.

        Raises:
          Stalled: the block goes on.
        """
        if jax.distributed.is_initialized():
            yield  # the other processes are within a step, which this one cannot leave
            return
        limit = self._limit = _Limit(what, seconds, is_of_data, time.monotonic())
        if self._received:
            self._start_timer(limit)
        try:
            yield
        finally:
            self._limit = None
            if limit.timer is not None:
                limit.timer.cancel()

    def is_stalled(self) -> bool:
        """Whether data are awaited for longer than a signal allows; see `runtime.interrupts`."""
        limit = self._limit
        if limit is None or not limit.is_of_data:
            return False
        return time.monotonic() - limit.began > limit.seconds

    def _start_timer(self, limit: _Limit) -> None:
        def end() -> None:
            if self._limit is limit:
                limit.is_over = True
                send_again(self._number)  # interrupts what the main thread waits for

        limit.timer = threading.Timer(limit.seconds, end)
        limit.timer.daemon = True
        limit.timer.start()

    def is_due(self, step: int) -> bool:
        """Whether the run stops after this step; every process calls it after every step."""
        if not jax.distributed.is_initialized():
            return self._received
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)

    def receive(self, number: int, _: FrameType | None = None) -> None:
        """Handles the signals.

        Raises:
          KeyboardInterrupt: on the second SIGINT.
        """
        limit = self._limit
        if limit is not None and limit.is_over:
            self._start_timer(limit)  # for code that drops the exception
            raise Stalled(f"stopped by {self.signal_name}: {limit.what}")
        name = signal.Signals(number).name
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
            name = "Ctrl-C"
        self.signal_name, self._number = name, signal.Signals(number)
        if limit is not None and not self._received:
            self._start_timer(limit)
        self._received = True
        note = f"jaxsr: {name}: saving after this step; a second Ctrl-C stops at once, unsaved\n"
        os.write(2, note.encode())  # not print, which could wait for a lock that the main thread
        # has
        if jax.distributed.is_initialized() and number != signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)
