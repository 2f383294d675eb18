"""Errors that a user can correct. Any other exception is a fault of jaxsr and keeps its traceback.

Each is also the built-in error that callers of a library expect (`ValueError`, …). The message is
one line: the value, the rule it breaks, and a workaround.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Base of everything that a user can correct; commands print it as one line."""


class InputError(UserError, ValueError):
    """An option, argument or file content that cannot be used."""


class DamagedFileError(InputError):
    """A file whose content does not agree with the digest that was stored with it."""


class CheckpointError(UserError, RuntimeError):
    """A checkpoint could not be written, read or used for this run."""


class LongLoopWarning(UserWarning):
    """A Python loop in a module's code has over a hundred rounds, of which each is compiled.

    Silence it by `warnings.filterwarnings("ignore", category=jaxsr.interop.LongLoopWarning)`.
    """


class RefusedValueError(InputError):
    """A value that an operation of torch refuses when it meets it, such as an integer divisor 0."""

    @staticmethod
    def of(rule: str, worst: int) -> "RefusedValueError":
        """The error about values that break a rule; see `index_bounds.collecting_indices`."""
        if INDEX_RULE in rule:
            return IndexOutsideError(f"{rule}, got {worst}")
        return RefusedValueError(rule)


INDEX_RULE = " takes indices from "
"""Text in rules about indices, whose worst value says which index breaks it."""


class IndexOutsideError(RefusedValueError, IndexError):
    """An index or a class label that is not one of those there are; torch's is an IndexError."""


class InputTypeError(UserError, TypeError):
    """An argument of a type that cannot be used."""


class MissingFileError(UserError, FileNotFoundError):
    """A file or folder that does not exist."""


class FileAccessError(UserError, OSError):
    """A file or folder that cannot be read or written."""


class DeviceError(UserError, RuntimeError):
    """The machine does not have the devices that were asked for."""


class UnsupportedTorchError(UserError, NotImplementedError):
    """A torch feature whose results in JAX would differ from torch's.

    The message names the submodule, the operation and a workaround. It is raised while the module
    is converted or traced, never at run time of the compiled program. A trace remembers it, so that
    no `except` of the code that met it can take another branch instead (`remembering_refusals`).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if _REMEMBERED.refusals is not None:
            _REMEMBERED.refusals.append(self)


class MissingKeyError(UnsupportedTorchError):
    """A module draws random numbers, and its call was given no key."""


class StateOfCallError(UnsupportedTorchError):
    """Python state with which a call computes something else after another one."""


class GradientInForwardError(UnsupportedTorchError):
    """A gradient that forward computes itself; torch's inference mode does not allow it, either."""


class _Remembered(threading.local):
    refusals: list[UnsupportedTorchError] | None = None


_REMEMBERED = _Remembered()


@contextmanager
def remembering_refusals() -> Generator[list[UnsupportedTorchError]]:
    """Gathers the refusals in this block, even if other code catches them."""
    outer, _REMEMBERED.refusals = _REMEMBERED.refusals, []
    try:
        yield _REMEMBERED.refusals
    finally:
        _REMEMBERED.refusals = outer


def forget_refusal(error: BaseException) -> None:
    """Takes back one that code of this package has caught, because it does without."""
    refusals = _REMEMBERED.refusals
    if refusals is not None:
        refusals[:] = [one for one in refusals if one is not error]


def check_utf8_path(path: Path) -> None:
    """Refuses a path that libraries in C++ and Rust cannot open.

    Raises:
      InputError: its name, or that of a folder above, is not UTF-8.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{path.absolute()} is not UTF-8; rename it or choose another") from error


def first_line(error: BaseException) -> str:
    """The type of another library's error and the first line of its message, for one of ours."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {printable(lines[0], 200)}" if lines else type(error).__name__


def printable(text: object, longest: int | None = None) -> str:
    """Text from outside (a name in a file, a file's name, a library's message), for a terminal.

    One line: white space becomes a space, and characters that control a terminal, reverse the order
    of others or are not text become escapes such as `\\x1b`.

    Args:
      text: anything; its `str` is taken.
      longest: characters that are kept.
    """
    words = " ".join(str(text).split())
    if longest is not None and len(words) > longest:
        words = words[: longest - 1] + "…"
    return _escaped(words)


def printable_text(text: str) -> str:
    """`printable` for a text of several lines, which stay."""
    return _escaped(text, kept="\n\t")


def _escaped(text: str, kept: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )
