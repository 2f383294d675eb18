"""SIGTERM, SIGINT and SIGHUP end a run after the step in progress, on every process of its job.

A job manager and `kill` send SIGTERM, Ctrl-C sends SIGINT, a terminal that closes sends SIGHUP. A
second SIGINT stops at once, without saving.

In a job of several processes JAX's preemption service has its own SIGTERM handler, which stays: it
tells all processes, and they agree on the step. The other signals are passed on to it.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import jax

from jaxsr.runtime.exit_status import ExitStatus

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """Whether a signal asked the run to stop."""

    def __init__(self) -> None:
        self.signal_name = signal.SIGTERM.name
        """The signal that this process received; SIGTERM where another process of the job did."""
        self._received = False
        self._interrupts = 0

    def is_due(self, step: int) -> bool:
        """Whether the run stops after this step; every process calls it after every step."""
        if not jax.distributed.is_initialized():
            return self._received
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)

    def receive(self, number: int, _: FrameType | None = None) -> None:
        """The handler of the signals.

        Raises:
          KeyboardInterrupt: the second SIGINT.
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
        os.write(2, note.encode())  # print could wait for a lock that the main thread holds
        if jax.distributed.is_initialized() and number != signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stop_on_signals() -> Generator[StopRequest]:
    """Handles the signals inside the block; ignored ones, as under nohup, stay ignored."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # Python delivers signals to the main thread only
        return
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if jax.distributed.is_initialized():
        del previous[signal.SIGTERM]  # JAX's own handler, which Python does not know
    for number, handler in previous.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, request.receive)
    try:
        with _second_interrupt_exits():
            yield request
    finally:
        for number, handler in previous.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def _second_interrupt_exits() -> Generator[None]:
    """Ends the process on a second SIGINT, also while native code keeps Python from running."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:  # an event loop's, as in a notebook: the handler alone must do
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        yield
        return

    def watch() -> None:
        interrupts = 0
        while numbers := os.read(reader, 64):
            interrupts += numbers.count(signal.SIGINT)
            if interrupts > 1:
                os.write(2, b"jaxsr: interrupted\n")
                os._exit(ExitStatus.INTERRUPTED)
        os.close(reader)

    threading.Thread(target=watch, name="second-interrupt", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(writer)
