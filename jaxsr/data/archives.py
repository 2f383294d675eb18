"""Files that lie in archives: tar shards, such as WebDataset's, and LMDB, such as BasicSR's.

They are read where they lie, in any order: of a tar file by their offsets, of an LMDB by their keys
(`pip install lmdb`). Nothing is unpacked or unpickled.
"""

import functools
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

from jaxsr.errors import InputError
from jaxsr.interop.install import install_extra

_LMDB = "data.mdb"


class ArchivedFile(PosixPath):
    """The path of a file in an archive, as though the archive were a folder."""

    content: Callable[[], bytes]
    size: int

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return io.BytesIO(self.content())

    def stat(self, **_: Any) -> os.stat_result:
        """The archive's status, with this file's size."""
        status = [*os.stat(self.parent_archive)[:10]]
        status[6] = self.size
        return os.stat_result(status)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A path's own names its parts alone: processes that load data get this file by pickle."""
        return _file, (Path(str(self)), self.content, self.size)

    @property
    def parent_archive(self) -> str:
        """The archive that holds it."""
        return next(str(p) for p in Path(str(self)).parents if p.exists())


def is_archive(path: Path) -> bool:
    """Whether a file is an archive by its name: `.tar`, or an LMDB's `data.mdb`."""
    return path.suffix.lower() == ".tar" or path.name == _LMDB


def archived_files(path: Path) -> list[ArchivedFile]:
    """The regular files of an archive, but hidden ones, by name.

    Raises:
      InputError: it is damaged, or the library that reads it is not installed.
    """
    return _in_lmdb(path) if path.name == _LMDB else _in_tar(path)


def _file(path: Path, content: Callable[[], bytes], size: int) -> ArchivedFile:
    file = ArchivedFile(str(path))
    file.content, file.size = content, size
    return file


def _in_tar(path: Path) -> list[ArchivedFile]:
    try:
        with tarfile.open(path, "r:") as archive:  # plain: of a compressed one, no part is in reach
            members = [member for member in archive if member.isreg() and not member.issparse()]
    except (tarfile.TarError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a tar file ({error}); make it again, without compression"
        ) from error
    files = []
    for member in members:
        if Path(member.name).name.startswith("."):
            continue
        read = functools.partial(_part, path, member.offset_data, member.size)
        # A name that leads out of the archive stays a name: nothing is written.
        files.append(_file(path / member.name.lstrip("/"), read, member.size))
    return sorted(files)


def _part(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _in_lmdb(path: Path) -> list[ArchivedFile]:
    environment = _environment(path)
    files = []
    with environment.begin(buffers=True) as transaction:
        for key, value in transaction.cursor():
            name = bytes(key).decode("utf-8", "backslashreplace").lstrip("/")
            read = functools.partial(_value, path, bytes(key))
            files.append(_file(path.parent / name, read, len(value)))
    return files


def _value(path: Path, key: bytes) -> bytes:
    with _environment(path).begin() as transaction:
        return transaction.get(key) or b""


@functools.cache
def _environment(path: Path) -> Any:
    """The LMDB, which a process may open once."""
    try:
        import lmdb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"{path} is read by lmdb, which is not installed; {install_extra('archives')}"
        ) from error
    try:
        return lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False)
    except lmdb.Error as error:
        raise InputError(f"{path} cannot be read as an LMDB ({error}); make it again") from error
