"""The errors that a user can correct, defined in `jaxsr.interop.errors`, their text and place."""

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
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
    "is_users_file",
    "one_line",
    "place_of",
]

_PACKAGE = Path(__file__).parent
_LIBRARIES = tuple(
    f"{folder}/"
    for folder in {
        _PACKAGE,
        *(path.resolve() for path in (_PACKAGE / "interop", _PACKAGE / "ops")),  # may be links
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    }
)


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, or its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def place_of(error: BaseException) -> str:
    """File and line where an error was raised: the last in a user's file, `my_nets.py:12`.

    Where it passed through none, the line that called torch says more than the one in torch.
    """
    frames = traceback.extract_tb(error.__traceback__)
    candidates = (
        [f for f in frames if is_users_file(f.filename)]
        or [f for f in frames if "/torch/" not in f.filename and not f.filename.startswith("<")]
        or frames
    )
    return f"{Path(candidates[-1].filename).name}:{candidates[-1].lineno}"


def is_users_file(file: str) -> bool:
    """Whether a traceback's file is neither jaxsr's, Python's nor of an installed library."""
    return not file.startswith((*_LIBRARIES, "<"))


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
