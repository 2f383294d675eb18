"""The errors that a user can correct, defined in `jaxsr.interop.errors`, and their text."""

from jaxsr.interop.errors import (
    DeviceError,
    FileAccessError,
    InputError,
    InputTypeError,
    MissingFileError,
    UnsupportedTorchError,
    UserError,
)

__all__ = [
    "DeviceError",
    "FileAccessError",
    "InputError",
    "InputTypeError",
    "MissingFileError",
    "UnsupportedTorchError",
    "UserError",
    "one_line",
]


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, or its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
