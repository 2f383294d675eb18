"""The errors that a user can correct, defined in `jaxsr.interop.errors`, and their text."""

import difflib
from collections.abc import Iterable

from jaxsr.interop.errors import (
    DamagedFileError,
    DeviceError,
    FileAccessError,
    InputError,
    InputTypeError,
    MissingFileError,
    MissingKeyError,
    UnsupportedTorchError,
    UserError,
    check_utf8_path,
    first_line,
    printable,
    printable_text,
)

__all__ = [
    "DamagedFileError",
    "DeviceError",
    "FileAccessError",
    "InputError",
    "InputTypeError",
    "MissingFileError",
    "MissingKeyError",
    "UnsupportedTorchError",
    "UserError",
    "check_utf8_path",
    "did_you_mean",
    "first_line",
    "first_of",
    "one_line",
    "printable",
    "printable_text",
]


def one_line(error: BaseException) -> str:
    """An error's message as one printable line, or its type if the message is empty."""
    return printable(error) or type(error).__name__


def counted(count: int, noun: str) -> str:
    """A number and its noun: `1 result`, `2 results`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The most similar name, in parentheses for the middle of an error; empty where none is."""
    spelt = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), list(spelt), n=1, cutoff=0.7)
    return f" (did you mean {spelt[near[0]]}?)" if near else ""


def first_of(names: Iterable[str], most: int = 3) -> str:
    """The first names of a list, and how many more there are."""
    names = [printable(name, 200) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
