"""SIGTERM, SIGINT and SIGHUP end a run after the step in progress, on every process of its job.

A job manager and `kill` send SIGTERM, Ctrl-C sends SIGINT, a terminal that closes sends SIGHUP. A
second SIGINT stops at once, without saving (`runtime.interrupts`).

In a job of several processes, JAX's preemption service has its own SIGTERM handler, which stays in
place. It tells all processes, and they agree on the step. The other signals are passed on to it.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

import jax

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """Tells whether a signal asked the run to stop; as a context, restores the handlers."""

    def __init__(self) -> None:
        self.signal_name = signal.SIGTERM.name
        """The signal that this process received; SIGTERM if another process of the job received
        one."""
        self._received = False
        self._interrupts = 0
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
        name = signal.Signals(number).name
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
            name = "Ctrl-C"
        self.signal_name = name
        self._received = True
        note = f"jaxsr: {name}: saving after this step; a second Ctrl-C stops at once, unsaved\n"
        os.write(2, note.encode())  # not print, which could wait for a lock that the main thread
        # has
        if jax.distributed.is_initialized() and number != signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)
