"""Signals that end a program: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes.

Each raises `KeyboardInterrupt`, so that half-written files are removed. If native code keeps the
main thread busy, the process exits after a few seconds, and on a second Ctrl-C at once. Training
handles the signals itself while it has a step to save (`training.stop_signals`).
"""

import os
import select
import signal
import sys
import threading
from types import FrameType

from jaxsr.runtime.exit_status import ExitStatus

_GRACE_S = 10.0
"""Seconds in which an interrupted program may close its files."""
_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)


def end_on_signals() -> None:
    """Installs the handlers, once, in the main thread; signals that nohup ignores stay ignored."""
    for number in _TERMINATIONS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_watch, args=(reader,), name="interrupts", daemon=True).start()


def ignore_signals() -> None:
    """Ignores the signals from now on: the program has ended, and its exit status is final."""
    for number in (*_TERMINATIONS, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # If it is not imported, no kernel runs; importing it would load JAX for every command.
    kernels = sys.modules.get("jaxsr.xla_calls.calls")
    if kernels is not None and kernels.is_put_off(number, frame):
        return
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")


def _forget() -> None:
    """Gives a forked worker the default handlers, without its parent's pipe."""
    signal.set_wakeup_fd(-1)
    for number in _TERMINATIONS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _watch(reader: int) -> None:
    """Ends the process from a thread of its own when Python cannot handle the signal."""
    interrupts, reason = 0, ""
    while select.select([reader], [], [], _GRACE_S if reason else None)[0]:
        numbers = os.read(reader, 64)
        interrupts += numbers.count(signal.SIGINT)
        if interrupts > 1:
            reason = "interrupted"
            break
        for number in _TERMINATIONS:
            if number in numbers and signal.getsignal(number) is _interrupt:
                reason = f"ended by {number.name}"
    os.write(2, f"jaxsr: {reason}\n".encode())
    os._exit(ExitStatus.INTERRUPTED)
