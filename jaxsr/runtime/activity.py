"""Prints the current activity while a command shows nothing else; on a terminal with a moving sign.

Commands call `set_status` at the start of a long part; JAX's log says what it compiles. Nothing is
printed in a library, in a part that ends within `_PATIENCE_S`, with `--quiet`, or with
`JAXSR_ACTIVITY=0`. A bar's clock runs between its steps, see `redraw_bar`.
"""

import itertools
import logging
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO, cast

from jaxsr.errors import printable

QUIET = "JAXSR_QUIET"
"""Variable that silences all progress, also in processes that a command starts."""
SWITCH = "JAXSR_ACTIVITY"
_PATIENCE_S = 1.0
_FRAME_S = 0.1
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def is_quiet() -> bool:
    """Whether only results, warnings and errors are to be printed."""
    return os.environ.get(QUIET, "") not in ("", "0")


def be_quiet() -> None:
    """Silences progress from now on, including that of libraries."""
    os.environ |= {QUIET: "1", "TQDM_DISABLE": "1"}


def fitted(text: str, stream: TextIO) -> str:
    """Returns the text, broken between words to fit a terminal; see `wrapped`."""
    if not stream.isatty():
        return text
    return wrapped(re.sub(r"\n +", "  ", text), shutil.get_terminal_size().columns)


def wrapped(text: str, columns: int) -> str:
    """Returns the text as lines of at most so many columns, the later ones indented.

    In a line whose parts are two spaces apart, a name stays with its figure.
    """
    glued = re.sub(r"(?<! ) (?! )", "\N{NO-BREAK SPACE}", text) if "  " in text else text
    lines = textwrap.wrap(
        glued, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


class _StatusLine:
    """Watches the program's activity, in a thread of its own."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.lock = stream, threading.RLock()
        self.terminal = bool(stream.isatty())
        if self.terminal:
            # Compilers' messages are silenced by turning file 2 elsewhere for a while.
            descriptor = os.dup(stream.fileno())
            self.stream = open(descriptor, "w", encoding=stream.encoding, errors="replace")  # noqa: SIM115
        self.parts: dict[str, tuple[str, float]] = {}
        """Work in progress and its start: `command`, and on top of it `compiler`."""
        self.done = 0
        """Parts of the command's activity that are done."""
        self.printed: set[tuple[str, float]] = set()
        self.shown = False
        self.output = time.monotonic()
        """Time of the last output."""
        self.is_within_line = False
        """Whether the last output was an unfinished line, or a bar."""
        self.bar: Callable[[], Any] | None = None
        self.bar_lock = threading.Lock()
        """Held while the bar is drawn. A bar takes its own lock before `lock`: never hold both."""

    def set(self, level: str, text: str | None) -> None:
        with self.lock:
            self.clear()
            self.parts.pop(level, None)
            if level == "command":
                self.done = 0
            if text is not None:
                self.parts[level] = (text, time.monotonic())

    def clear(self) -> None:
        """Erases the sign."""
        with self.lock:
            if self.shown:
                self.stream.write("\r\x1b[K")
                self.stream.flush()
                self.shown = False

    def run(self) -> None:
        for frame in itertools.cycle(_FRAMES):
            time.sleep(_FRAME_S)
            try:
                self._draw(frame)
                with self.bar_lock:
                    is_still = time.monotonic() - self.output >= _PATIENCE_S
                    if self.terminal and self.bar is not None and is_still:
                        self.bar()
            except (OSError, ValueError):  # the stream is closed: there is no reader
                return

    def _draw(self, frame: str) -> None:
        with self.lock:
            part = self.parts.get("compiler") or self.parts.get("command")
            if part is None or is_quiet():
                self.clear()
                return
            text, began = part
            now = time.monotonic()
            if now - max(began, self.output) < _PATIENCE_S or self.is_within_line:
                return
            if self.terminal:
                width = os.get_terminal_size(self.stream.fileno()).columns or 80
                counts = self.done and "compiler" not in self.parts
                done = f", {self.done} done" if counts else ""
                line = f"{frame} {text}{done} … {now - began:.0f} s"[: width - 1]
                self.stream.write(f"\r{line}\x1b[K")
                self.shown = True
            elif part not in self.printed:
                self.printed.add(part)
                self.stream.write(f"{text} …\n")
            self.stream.flush()


class _Clearing:
    """A stream that erases the sign before other output."""

    def __init__(self, stream: Any, status: _StatusLine) -> None:
        self._stream, self._status = stream, status

    def write(self, text: str) -> int:
        with self._status.lock:
            self._status.clear()
            self._status.output = time.monotonic()
            if text:
                self._status.is_within_line = not text.endswith("\n")
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_status_lines: list[_StatusLine] = []
"""The program's status line, if it has one."""


def start_status(command: str) -> None:
    """Begins to print the activity of the process; called once by a program, never by a library."""
    if is_quiet() or os.environ.get(SWITCH) == "0" or _status_lines:
        return
    status = _StatusLine(sys.stderr)
    _status_lines.append(status)
    if status.terminal:
        sys.stderr = cast(Any, _Clearing(sys.stderr, status))
        if sys.stdout.isatty():
            sys.stdout = cast(Any, _Clearing(sys.stdout, status))
    set_status(f"{command or 'jaxsr'}: loading libraries")
    threading.Thread(target=status.run, name="activity", daemon=True).start()


def set_status(text: str | None) -> None:
    """Sets the current activity of the command; None: it shows progress of its own."""
    for status in _status_lines:
        status.set("command", None if text is None else printable(text))
        _watch_compiler(status)


def set_done(count: int) -> None:
    """Says how many parts of the current activity are done."""
    for status in _status_lines:
        status.done = count


def redraw_bar(redraw: Callable[[], Any] | None) -> None:
    """Calls the function each second in which nothing is printed; None: there is no bar now."""
    for status in _status_lines:
        with status.bar_lock:
            status.bar = redraw


def finish() -> None:
    """Ends the output: the program is about to exit."""
    redraw_bar(None)
    for status in _status_lines:
        for level in ("compiler", "command"):
            status.set(level, None)


def _watch_compiler(status: _StatusLine) -> None:
    """Makes JAX report the programs that it compiles, once it is loaded."""
    logger = logging.getLogger("jax._src.interpreters.pxla")
    if "jax" not in sys.modules or any(isinstance(f, _Compiling) for f in logger.filters):
        return
    import jax

    logger.addFilter(_Compiling(status, logger.getEffectiveLevel()))
    logger.setLevel(logging.DEBUG)

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            status.set("compiler", None)

    jax.monitoring.register_event_duration_secs_listener(compiled)


class _Compiling(logging.Filter):
    """Reads the program that is being compiled from JAX's log; other records pass as before.

    Args:
      status: prints the program.
      level: level of the logger before this filter.
    """

    def __init__(self, status: _StatusLine, level: int) -> None:
        super().__init__()
        self._status, self._level = status, level

    @staticmethod
    def _cached() -> str:
        import jax

        return " (cached next time)" if jax.config.values["jax_compilation_cache_dir"] else ""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Compiling ") and isinstance(record.args, tuple):
            name = str(record.args[0]).removeprefix("jit(").removeprefix("jit_").rstrip(")")
            name = "a program" if name.startswith("<") else name
            self._status.set("compiler", f"compiling {name}{self._cached()}")
        return record.levelno >= self._level
