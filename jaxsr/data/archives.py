"""Files that lie in archives: tar shards, such as WebDataset's, and LMDB, such as BasicSR's.

They are read where they lie, in any order: of a tar file by their offsets, of an LMDB by their keys
(`pip install lmdb`). Nothing is unpacked or unpickled.
"""

import errno
import functools
import io
import logging
import os
import posixpath
import tarfile
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

from jaxsr.data.input_files import Listing
from jaxsr.errors import InputError, one_line
from jaxsr.interop.install import install_extra

_LMDB = "data.mdb"
COMPRESSED_ENDINGS = (".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar")
"""Extensions of archives whose files cannot be reached without unpacking the earlier ones."""

_Part = Callable[[int, int], bytes]
"""Bytes of a file from an offset on, at most so many."""
_log = logging.getLogger(__name__)


class ArchivedFile(PosixPath):
    """The path of a file in an archive, as though the archive were a folder."""

    archive: Path
    part: _Part
    size: int

    def content(self) -> bytes:
        return self.part(0, self.size)

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return io.BufferedReader(_Reader(self), 8192)

    def stat(self, **_: Any) -> os.stat_result:
        """The archive's status, with this file's size."""
        status = [*os.stat(self.archive)[:10]]
        status[6] = self.size
        return os.stat_result(status)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A path's own names its parts alone: processes that load data get this file by pickle."""
        return _file, (Path(str(self)), self.archive, self.part, self.size)


class _Reader(io.RawIOBase):
    """Reads a file of an archive piece by piece: a look at its first bytes costs no more."""

    def __init__(self, file: ArchivedFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + (0, self._at, self._file.size)[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.part(self._at, min(len(buffer), max(0, self._file.size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_archive(path: Path) -> bool:
    """Whether a file is an archive by its name: `.tar`, or an LMDB's `data.mdb` or `.lmdb`."""
    return (path.suffix.lower() in (".tar", ".lmdb") or path.name == _LMDB) and path.is_file()


def archived_files(path: Path) -> Listing:
    """The files of an archive, but hidden ones, by name.

    Raises:
      InputError: it is damaged, or the library that reads it is not installed.
    """
    listing = Listing()
    read = _in_tar if path.suffix.lower() == ".tar" else _in_lmdb
    base = path.parent if path.name == _LMDB else path
    files: dict[str, ArchivedFile] = {}
    for name, part, size in read(path, listing):
        parts = [x for x in name.replace("\0", "\\x00").split("/") if x not in ("", ".")]
        if any(x.startswith(".") and x != ".." for x in parts):
            continue
        # A name that leads out of the archive stays a name: nothing is written.
        file = _file(base.joinpath(*parts), path, part, size)
        if str(file) in files:  # tar's rule: an updated file is appended
            listing.passed_over.append((file, "a later file of the archive has the same name"))
        files[str(file)] = file
    listing.files.extend(sorted(files.values()))
    return listing


def _file(path: Path, archive: Path, part: _Part, size: int) -> ArchivedFile:
    file = ArchivedFile(str(path))
    file.archive, file.part, file.size = archive, part, size
    return file


def _in_tar(path: Path, listing: Listing) -> list[tuple[str, _Part, int]]:
    try:
        with tarfile.open(path, "r:") as archive:  # plain: of a compressed one, no part is in reach
            members = [_small(member, archive) for member in archive]
            _check_end(path, archive.offset)
    # In addition to TarError, invalid numbers and sizes below 0 raise a ValueError.
    # Each header of a long name is read within the one before.
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as a tar file ({one_line(error)}); make it again, without "
            "compression"
        ) from error
    by_name = {posixpath.normpath(member.name): member for member in members}
    files = []
    for member in members:
        target = _without_links(member, by_name)
        if target is None:
            reason = f"a link to {member.linkname}, which is not in the archive"
            listing.unreadable.append((path / member.name, reason))
        elif target.issparse():
            listing.unreadable.append((path / member.name, "sparse; make the archive without -S"))
        elif target.isreg():
            part = functools.partial(_part, path, target.offset_data)
            files.append((member.name, part, target.size))
        elif not target.isdir():
            listing.passed_over.append((path / member.name, "neither a file nor a folder"))
    return files


_MOST_KEYWORDS = 100
"""Most of a tar file's keywords for all files: each file gets a copy of them."""


def _small(member: tarfile.TarInfo, archive: tarfile.TarFile) -> tarfile.TarInfo:
    """The member without its copy of the archive's keywords, which nothing here needs.

    Raises:
      tarfile.ReadError: they would be many times as large as the file.
    """
    if len(archive.pax_headers) > _MOST_KEYWORDS:
        raise tarfile.ReadError(f"{len(archive.pax_headers):,} keywords for all of its files")
    member.pax_headers = {}
    return member


def _check_end(path: Path, end: int) -> None:
    """A tar file ends with zeros; tarfile ends at a damaged header as well, without a word."""
    size = path.stat().st_size
    if end == size:
        _log.warning("%s ends without the zeros of a whole tar file: it may be cut short", path)
    with path.open("rb") as file:
        file.seek(end)
        while block := file.read(2**20):
            if block.strip(b"\0"):
                raise tarfile.ReadError(
                    f"of its {size:,} bytes, those from {end:,} on are damaged, or are another tar "
                    "file's"
                )


def _without_links(
    member: tarfile.TarInfo, by_name: dict[str, tarfile.TarInfo]
) -> tarfile.TarInfo | None:
    """Resolves links within the archive; None where they lead nowhere, or in a circle."""
    target: tarfile.TarInfo | None = member
    for _ in range(8):
        if target is None or not (target.islnk() or target.issym()):
            return target
        folder = posixpath.dirname(target.name) if target.issym() else ""
        target = by_name.get(posixpath.normpath(posixpath.join(folder, target.linkname)))
    return None


def _part(path: Path, start: int, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start + offset)
        return file.read(size)


def _in_lmdb(path: Path, listing: Listing) -> list[tuple[str, _Part, int]]:
    try:
        import lmdb  # pyright: ignore[reportMissingImports]
        from lmdb import verify  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"{path} is read by lmdb 3, which is not installed; {install_extra('archives')}"
        ) from error
    try:
        # LMDB itself maps the file: a page that is damaged or beyond the end ends the process.
        file_bytes = os.stat(path).st_size
        if problems := verify.verify(str(path), subdir=False):
            raise InputError(f"{path} is a damaged LMDB ({problems[0]}); copy or make it again")
        with _environment(path).begin(buffers=True) as transaction:
            return [
                (
                    bytes(key).decode("utf-8", "backslashreplace"),
                    functools.partial(_value, path, bytes(key), file_bytes),
                    len(value),
                )
                for key, value in transaction.cursor()
            ]
    except (lmdb.Error, verify.VerifyError, OSError, MemoryError) as error:
        raise InputError(
            f"{path} cannot be read as an LMDB ({one_line(error)}); copy or make it again"
        ) from error


def _value(path: Path, key: bytes, file_bytes: int, offset: int, size: int) -> bytes:
    # The file is mapped: to read a page that is gone ends the process.
    if os.stat(path).st_size < file_bytes:
        raise OSError(errno.EIO, f"the LMDB had {file_bytes:,} bytes and is shorter now", str(path))
    with _environment(path).begin(buffers=True) as transaction:
        return bytes((transaction.get(key) or b"")[offset : offset + size])


def _environment(path: Path) -> Any:
    """The LMDB, which a process may open once, whatever its path is."""
    return _opened(os.path.realpath(path))


@functools.cache
def _opened(path: str) -> Any:
    import lmdb  # pyright: ignore[reportMissingImports]

    return lmdb.open(path, subdir=False, readonly=True, lock=False, create=False)
