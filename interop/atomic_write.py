"""Files that appear complete under their name, or not at all, and files that notice damage.

Content is written next to the final name and renamed, so that a killed process leaves no file that
is cut short. A half-written file is named after its process, and `clear_partials` removes it once
that has ended. A sealed file begins with a digest of the rest.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import logging
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO

from jaxsr.interop.errors import FileAccessError

_DIGEST_BYTES = 32
_LOG = logging.getLogger(__name__)

Note = Callable[[Path], object]
"""Called with a complete file before it takes its name; where it raises, the file is abandoned."""
Observer = Callable[[Path, Path], object]
"""Like `Note`, for every file: called with its name, and with the file."""
_observers: list[Observer] = []


@contextlib.contextmanager
def observing(observer: Observer) -> Generator[None]:
    """Calls a function for every file that is written in this block, in any thread.

    Where it raises, the file is abandoned.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def atomic_write(path: Path, *parts: bytes | memoryview) -> None:
    """Writes a file from bytes, or from several parts behind each other.

    Raises:
      OSError: it cannot be written; nothing is left of it.
    """
    file = AtomicFile(path)
    try:
        with errors_of(path):
            for part in parts:
                file.stream.write(part)
        file.finish()
    except BaseException:
        file.abandon()
        raise


def check_file(path: Path) -> None:
    """Refuses a path that cannot be written, before hours of work go into the file.

    Raises:
      OSError: it is a folder, a device or such, or its folder cannot be written.
    """
    AtomicFile(path).abandon()


class AtomicFile:
    """A file written through `stream`; it takes its name at `finish`.

    Args:
      path: the final name; its folder must exist. A link means its target.

    Raises:
      OSError: the folder cannot be written, or the name is that of a folder, a device or such.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._partial = path, _partial(path)
        with errors_of(path):
            self.stream: BinaryIO = self._partial.open("xb")

    def finish(self, note: Note | None = None) -> None:
        """Stores the content on the disk and renames the file; abandons it if that fails."""
        try:
            with errors_of(self.path):
                self.stream.flush()
                os.fsync(self.stream.fileno())
                self.stream.close()
                _note(self.path, self._partial, note)
                self._partial.replace(_target(self.path))
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Removes the written file."""
        with contextlib.suppress(OSError):  # a full disk fails again when the buffer is flushed
            self.stream.close()
        self._partial.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_path(path: Path, note: Note | None = None) -> Generator[Path]:
    """A path for a library that opens files itself; renamed to `path` if the block ends well.

    It has the same ending, from which FFmpeg knows the format.
    """
    partial = _partial(path, path.suffix)
    try:
        yield partial
        _note(path, partial, note)
        partial.replace(_target(path))
    finally:
        partial.unlink(missing_ok=True)


def _note(path: Path, file: Path, note: Note | None) -> None:
    if note is not None:
        note(file)
    for observer in tuple(_observers):
        observer(path, file)


def separate(path: Path) -> bool:
    """Gives a file with several hard links a copy of its own, before it is changed in place.

    Snapshots of a folder (`cp -al`, `rsync --link-dest`) share their files, which must stay.

    Returns:
      Whether the name is that of a copy now.

    Raises:
      OSError: it cannot be copied.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
        return False
    with errors_of(path), atomic_path(path) as partial:
        shutil.copy(path, partial)
    return True


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


@contextlib.contextmanager
def errors_of(path: Path) -> Generator[None]:
    """Errors name the file to write, not the temporary file next to it, or no file at all."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _target(path: Path) -> Path:
    """The file that takes the name: a link stays one.

    Raises:
      OSError: there is something that is not a file, which a new one would replace.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        raise FileAccessError(f"{path} is not a regular file; name another")
    return target


def _partial(path: Path, ending: str = "") -> Path:
    """The name of the half-written file, which is free."""
    target = _target(path)
    rest = f".{next(_numbers)}.{os.getpid()}-{_machine()}.partial{ending}"
    name = target.name
    if len(os.fsencode(f".{name}{rest}")) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    partial = target.with_name(f".{name}{rest}")
    # In a stranger's folder it may be there already, as a link to somebody's file.
    partial.unlink(missing_ok=True)
    return partial


_numbers = itertools.count()
"""Threads of a process may write to one name at once."""
_LONGEST_NAME = 255
"""Bytes; that of most file systems."""


_PARTIAL = re.compile(r"\..+\.(\d+)(?:-([0-9a-f]{8}))?\.partial(?:\.[^.]+)?", re.DOTALL)
"""Process and machine; earlier releases named the process alone."""


def clear_partials(folder: Path, *, is_locked: bool = False) -> None:
    """Removes half-written files of dead processes from a folder.

    Args:
      folder: where they are.
      is_locked: nobody else writes there, so processes of other machines are dead. Otherwise only
        files of this machine are removed.
    """
    for path in folder.glob(".*.partial*"):
        if match := _PARTIAL.fullmatch(path.name):
            process, machine = int(match[1]), match[2]
            may_live = machine in (None, _machine()) and _is_living(process)
            if (is_locked or machine == _machine()) and not may_live:
                with contextlib.suppress(OSError):  # a folder, or another user's
                    path.unlink()


@functools.cache
def _machine() -> str:
    """Tells machines apart, and containers, whose processes have numbers of their own."""
    numbering = ""
    with contextlib.suppress(OSError):  # Linux alone has it
        numbering = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {numbering}".encode()).hexdigest()[:8]


def _is_living(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_sealed(path: Path) -> bytes | None:
    """The content, or None if there is no file or, with a warning, if it is damaged."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        _LOG.warning("%s is damaged and will be made anew", path)
        return None
    return body


def write_sealed(path: Path, content: bytes) -> None:
    """Writes the file and its folder; where that fails, it only warns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, hashlib.sha256(content).digest(), content)
    except OSError as error:
        _LOG.warning("%s is not kept: %s", path.name, error)
