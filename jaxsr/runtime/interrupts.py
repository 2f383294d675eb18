"""Signals that end a program: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes.

Each raises `KeyboardInterrupt`, so that half-written files are removed. It comes again if code
drops it, and waits while an installed library is imported. If native code keeps the main thread
busy, the process exits after a few seconds, and on a second Ctrl-C at once. Training handles the
signals itself while it has a step to save (`training.stop_signals`): the process exits where that
object's `is_stalled` says so.
"""

import os
import re
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

from jaxsr.runtime.exit_status import ExitStatus

_GRACE_S = 10.0
"""Seconds in which an interrupted program may close its files."""
_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
_ENDED_BY = "ended by "
_repeated: list[int] = []
"""Signals that were sent again, and that `_watch` sees again."""
_MOST_REPEATED = 200
"""Repetitions of each, for 10 s."""
_dropped: list[int] = []
"""Those whose exception was dropped."""
_MOST_DROPPED = 4
"""Exceptions of each that may be dropped: a debugger catches Ctrl-C on purpose."""
_LOADING = (ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
"""Matches the files of installed libraries."""


class Interrupt(KeyboardInterrupt):
    """The exception that signals raise; code that catches it for good sets `handled`."""


def end_on_signals() -> None:
    """Installs the handlers, once, in the main thread; signals that nohup ignores stay ignored."""
    for number in _TERMINATIONS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _without_interrupts(sys.unraisablehook)
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
    if (kernels := _kernels()) is not None and kernels.is_put_off(number, frame):
        return
    if _loads_a_library(frame) and _repeated.count(number) < _MOST_REPEATED:
        send_again(number)
        return
    raise _exception(number)  # a variable of it would keep it alive


def _exception(number: int) -> Interrupt:
    interrupt = Interrupt(
        "" if number == signal.SIGINT else f"{_ENDED_BY}{signal.Signals(number).name}"
    )
    weakref.finalize(interrupt, _send_if_dropped, vars(interrupt), number).atexit = False
    return interrupt


def _loads_a_library(frame: FrameType | None) -> bool:
    """Whether a library is being imported: those of C++ crash or fail where that is interrupted."""
    while frame is not None:
        code = frame.f_code
        if code in _LOADING:
            return True
        is_import = code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__"
        if is_import and _INSTALLED.search(code.co_filename):
            return True  # torch's modules call code of C++ that imports others
        frame = frame.f_back
    return False


def send_again(number: int) -> None:
    """Sends a signal to the main thread in a moment; it counts as one that came once."""
    _repeated.append(number)
    main: Any = threading.main_thread().ident
    threading.Timer(0.05, signal.pthread_kill, (main, number)).start()


def _send_if_dropped(fields: dict[str, Any], number: int) -> None:
    """Sends a signal again whose exception is gone, and the program goes on.

    Destructors, callbacks of the garbage collector and libraries drop exceptions.
    """
    if not fields.get("handled") and _dropped.count(number) < _MOST_DROPPED:
        _dropped.append(number)
        send_again(number)


def _kernels() -> Any:
    """The module of CPU kernels, if it is there: to import it would load JAX for every command."""
    return sys.modules.get("jaxsr.xla_calls.calls")


def _times_repeated(number: int) -> int:
    of_kernels = getattr(_kernels(), "repeated", [])
    return [*_repeated, *of_kernels].count(number)


def _without_interrupts(hook: Callable[[Any], object]) -> Callable[[Any], None]:
    """A hook that says nothing of interrupts that Python drops: they are sent again."""

    def receive(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)

    return receive


def _forget() -> None:
    """Gives a forked worker the default handlers, without its parent's pipe."""
    signal.set_wakeup_fd(-1)
    for number in (*_TERMINATIONS, signal.SIGINT):
        if signal.getsignal(number) is _interrupt:
            default = signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
            signal.signal(number, default)


def _watch(reader: int) -> None:
    """Ends the process from a thread of its own when Python cannot handle the signal."""
    interrupts, reason = 0, ""
    is_stuck: Callable[[], bool] | None = None
    while True:
        if not select.select([reader], [], [], _GRACE_S if reason else None)[0]:
            if is_stuck is None or is_stuck():
                break
            continue
        numbers = os.read(reader, 64)
        interrupts += numbers.count(signal.SIGINT)
        if interrupts > 1 + _times_repeated(signal.SIGINT):
            reason = "interrupted"
            break
        for number in _TERMINATIONS:
            handler = signal.getsignal(number)
            is_stalled = getattr(getattr(handler, "__self__", None), "is_stalled", None)
            if number in numbers and (handler is _interrupt or is_stalled is not None):
                reason, is_stuck = f"{_ENDED_BY}{number.name}", is_stalled
    os.write(2, f"jaxsr: {reason}\n".encode())
    os._exit(ExitStatus.INTERRUPTED)
