"""The errors that a user can correct, defined in `jaxsr.interop.errors`, and exit statuses."""

from jaxsr.interop.errors import (
    FileAccessError,
    InputError,
    InputTypeError,
    MissingFileError,
    UnsupportedTorchError,
    UserError,
)

__all__ = [
    "FileAccessError",
    "InputError",
    "InputTypeError",
    "MissingFileError",
    "UnsupportedTorchError",
    "UserError",
]
