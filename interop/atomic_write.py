"""Files that appear complete under their name, or not at all.

Content is written beside the final name and renamed, so that a killed process leaves no file that
is cut short.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO


def atomic_write(path: Path, *parts: bytes | memoryview) -> None:
    """Writes a file from bytes, or from several parts behind each other.

    Raises:
      OSError: it cannot be written; nothing is left of it.
    """
    file = AtomicFile(path)
    try:
        for part in parts:
            file.stream.write(part)
        file.finish()
    except BaseException as error:
        file.abandon()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # Python's write does not know it
        raise


class AtomicFile:
    """A file written through `stream`; it takes its name at `finish`.

    Args:
      path: the final name; its folder must exist.

    Raises:
      OSError: the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._partial = path, _partial(path)
        self.stream: BinaryIO = self._partial.open("wb")

    def finish(self) -> None:
        """Stores the content on the disk and renames the file; abandons it if that fails."""
        try:
            self.stream.flush()
            os.fsync(self.stream.fileno())
            self.stream.close()
            self._partial.replace(self.path)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Removes what was written."""
        with contextlib.suppress(OSError):  # a full disk fails again when the buffer is flushed
            self.stream.close()
        self._partial.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A path for a library that opens files itself; renamed to `path` if the block ends well.

    It has the same ending, from which FFmpeg knows the format.
    """
    partial = _partial(path, path.suffix)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Renames a damaged file or folder to `NAME.damaged`, or with a number; nothing is deleted.

    Returns:
      Its new path.

    Raises:
      OSError: it cannot be renamed.
    """
    target = path.with_name(f"{path.name}.damaged")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged-{number}")
    return path.rename(target)


def _partial(path: Path, ending: str = "") -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial{ending}")
