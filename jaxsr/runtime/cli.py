"""What every command does alike: errors as one line, exit status, the user's cache folder."""

import atexit
import contextlib
import gc
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxsr.errors import InputError, UserError
from jaxsr.runtime.allocator import keep_freed_memory

WRONG_INPUT = 2
INTERRUPTED = 130


def run_program(main: Callable[[], int], command: str) -> NoReturn:
    """Runs `main` as the process's own program: its allocator is set up first.

    Args:
      main: reads `sys.argv`; returns the exit status.
      command: the name of what it runs.
    """
    keep_freed_memory(command)
    sys.exit(main())


def run_command(command: Callable[[], int | None]) -> int:
    """Runs a command; a `UserError` becomes one line on stderr and exit status 2.

    Any other exception is a fault of jaxsr and keeps its traceback. `JAXSR_TRACEBACK=1` shows the
    traceback of both.

    Args:
      command: does the work; returns the exit status, or None for 0.
    """
    try:
        with _rare_collections():
            return command() or 0
    except KeyboardInterrupt:
        print("jaxsr: interrupted", file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        if os.environ.get("JAXSR_TRACEBACK"):
            traceback.print_exc()
        print(f"jaxsr: {_one_line(error)}", file=sys.stderr)
        return WRONG_INPUT


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Garbage is looked for rarely, and no more at exit: a second of five until the first result.

    torch and JAX make a million objects that stay, and every collection would go through them.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def parse_options(
    kind: Any, arguments: Sequence[str], *, prog: str, description: str, **options: Any
) -> Any:
    """`tyro.cli`, with what it rejects as a `UsageError` of one line instead of a drawn box.

    Args:
      kind: the dataclass or function whose fields are the options.
      arguments: words of the command line.
      prog: the command as its help names it.
      description: first paragraph of the help.
      **options: further ones for `tyro.cli`, `default` for example.

    Raises:
      UsageError: an option is unknown or its value wrong, in the words of whoever checked it.
    """
    import tyro

    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            return tyro.cli(
                kind, args=list(arguments), prog=prog, description=description, **options
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise  # --help
        raise UsageError(f"{_unboxed(shown.getvalue())}; see {prog} --help") from None


class UsageError(InputError):
    """The command line cannot be understood."""


def _unboxed(text: str) -> str:
    """The sentences of a message that is drawn as a box with a title and rules."""
    # Not stripped of "-", with which an option may begin a line; nor lines of it alone kept.
    lines = [line.strip(" │╭╮╰╯─") for line in text.splitlines()]
    lines = [line for line in lines if line.strip("-") and "For full helptext" not in line]
    message = " ".join(lines[1:] or lines)  # the first line is the box's title
    return re.sub(r"^Error parsing [\w.]+: ", "", message)


def cache_folder() -> Path:
    """Where jaxsr keeps what can be made again: `$XDG_CACHE_HOME/jaxsr` or `~/.cache/jaxsr`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "jaxsr"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
