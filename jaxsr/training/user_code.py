"""Errors of users' code as one line with its place; `JAXSR_TRACEBACK=1` shows the traceback."""

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from jaxsr.errors import InputError, UserError, one_line
from jaxsr.models.user_files import is_in_users_file, place_of


@contextmanager
def located(what: str) -> Generator[None]:
    """Turns any error into one line that names the file and line where it was raised.

    Args:
      what: description of the code that runs, all of it the user's.

    Raises:
      InputError: the code raised something other than a `UserError`.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # exit() would end the run as if it were complete
        raise InputError(f"{what} failed: {_described(error)}") from error


@contextmanager
def located_in_users_files() -> Generator[None]:
    """As `located`, for errors that pass through a file of neither jaxsr nor a library.

    Others are faults of jaxsr and keep their traceback.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not _passes_users_file(error.__traceback__):
            raise
        # Errors from tracing a network for JAX name their place themselves.
        text = _described(error)
        if getattr(error, "located", False):
            text = " ".join(str(error.args[0]).split())  # the text of a KeyError has quotes
        raise InputError(f"{text} (JAXSR_TRACEBACK=1 shows the traceback)") from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)} ({place_of(error)})"


def _passes_users_file(trace: TracebackType | None) -> bool:
    return any(map(is_in_users_file, traceback.extract_tb(trace)))
