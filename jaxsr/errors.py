"""The errors that a user can correct, defined in `jaxsr.interop.errors`, and their text."""

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxsr.interop.errors import (
    DamagedFileError,
    DeviceError,
    FileAccessError,
    InputError,
    InputTypeError,
    MissingFileError,
    UnsupportedTorchError,
    UserError,
    check_utf8_path,
    first_line,
)

__all__ = [
    "DamagedFileError",
    "DeviceError",
    "FileAccessError",
    "InputError",
    "InputTypeError",
    "MissingFileError",
    "UnsupportedTorchError",
    "UserError",
    "check_literals",
    "check_utf8_path",
    "first_line",
    "first_of",
    "one_line",
]


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, or its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def first_of(names: Iterable[str], most: int = 3) -> str:
    """The first names of a list, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_literals(config: Any) -> None:
    """Refuses values outside the `Literal` types of a dataclass's fields.

    Raises:
      InputError: a field has another value.
    """
    for name, kind in get_type_hints(type(config)).items():
        choices, value = get_args(kind), getattr(config, name)
        if get_origin(kind) is Literal and value not in choices:
            listed = ", ".join(map(str, choices))
            raise InputError(f"{name} must be one of {listed}, got {value!r}")
