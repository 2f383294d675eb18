"""Reads small files whole, and refuses files larger than their writers make."""

from pathlib import Path

from jaxsr.interop.errors import InputError

MOST_BYTES = 2**26
"""More than any index or tokenizer has."""
CONFIGURATION = 2**22
"""Bytes; more than any configuration has."""


def read_bounded(
    path: Path, *, most_bytes: int = MOST_BYTES, way_out: str = "give another file"
) -> bytes:
    """The content of a file.

    Args:
      path: of the file.
      most_bytes: that it may have.
      way_out: end of the error.

    Raises:
      InputError: it has more bytes than `most_bytes`, or no end.
      OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InputError(f"{path} has more than {most_bytes:,} bytes; {way_out}")
    return content
