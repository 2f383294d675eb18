"""A file of rows that is written while outputs end, and continued after a kill.

One JSON object a line, in the order of the prompts. A run that was killed leaves complete lines and
perhaps the beginning of one, which is dropped. Every row states its settings, so that rows of
different runs never meet in one file, and has a digest of itself. The file is locked while a run
writes it.

Rows that come before their turn are in a second file next to it, with `.early` after its name,
until the run is complete: after a kill they also count.
"""

import contextlib
import fcntl
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from jaxsr.errors import DamagedFileError, InputError
from jaxsr.generation.prompts import write_rows
from jaxsr.interop.atomic_write import errors_of, separate
from jaxsr.interop.sealed_json import begins_sealed, seal, unseal

log = logging.getLogger(__name__)


class RowFile:
    """The rows of a run, some of which may be there already.

    Args:
      path: of the file; made if absent.
      settings: values of every row of this run, by column.

    Raises:
      InputError: the file holds rows of another run, or lines that are not rows or were changed; or
        another run is writing it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._path, self._early_path = path, path.with_name(f"{path.name}.early")
        is_new = not path.is_file()
        for place in (path, self._early_path):
            if place.exists() and not place.is_file():
                raise InputError(f"{place} is not a regular file; give another --out")
        if self._early_path.is_symlink():
            raise InputError(f"{self._early_path} is a link; remove it, or give another --out")
        self._file = _locked(path)
        try:
            if is_new:  # removed, to begin anew
                self._remove_early()
            self.rows, length = self._read(path)
            """Rows that were there."""
            self.early, early_length = self._read(self._early_path)
            """Rows that were there before their turn, in any order."""
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(length)
        if self.early:
            separate(self._early_path)
            with self._early_path.open("ab") as file:
                file.truncate(early_length)
        else:
            self._early_path.unlink(missing_ok=True)

    def _remove_early(self) -> None:
        """Removes rows of a run whose file is gone."""
        if not self._early_path.is_file():
            return
        if not begins_sealed(self._early_path.read_bytes()):
            raise InputError(
                f"{self._early_path} has no rows of this command, which keeps its own there; "
                "remove it, or give another --out"
            )
        self._early_path.unlink()

    def _read(self, path: Path) -> tuple[list[dict[str, Any]], int]:
        """Complete rows of a file, if there is one, and how many bytes they take."""
        content = path.read_bytes() if path.is_file() else b""
        complete = content[: content.rfind(b"\n") + 1]
        if not begins_sealed(content[len(complete) :]):
            number = complete.count(b"\n") + 1
            raise InputError(
                f"{path} line {number} is not a row of this command; give another --out, or remove "
                "the file"
            )
        rows = [self._row(path, n, line) for n, line in enumerate(complete.splitlines(), 1)]
        return rows, len(complete)

    def _row(self, path: Path, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = unseal(line, source=path)
        except (DamagedFileError, RecursionError):
            what = "was changed" if begins_sealed(line) else "is not a row of this command"
            raise InputError(
                f"{path} line {number} {what}; give another --out, or remove the file"
            ) from None
        for name, value in self.settings.items():
            if row.get(name) != value:
                raise InputError(
                    f"{path} line {number} was made with {name}={_short(row.get(name))}, "
                    f"this run has {_short(value)}; give another --out, or remove the file"
                )
        return row

    def check(self, order: Sequence[Mapping[str, Any]]) -> None:
        """Refuses rows that do not begin this order.

        Args:
          order: columns that tell the rows of the whole run apart.
        """
        if len(self.rows) > len(order):
            raise InputError(
                f"{self._path} holds {len(self.rows)} rows, this run makes {len(order)}; give "
                "another --out, or remove the file"
            )
        for number, (row, expected) in enumerate(zip(self.rows, order, strict=False), 1):
            for name, value in expected.items():
                if row.get(name) != value:
                    raise InputError(
                        f"{self._path} line {number} has {name}={_short(row.get(name))}, this run "
                        f"has {_short(value)} there; give another --out, or remove the file"
                    )

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a row, for good."""
        with errors_of(self._path):
            self._file.write(_line(row))
            self._file.flush()

    def keep(self, row: Mapping[str, Any]) -> None:
        """Writes a row whose turn has not come; `append` brings it in its turn."""
        with errors_of(self._early_path), self._early_path.open("ab") as file:
            file.write(_line(row))

    def complete(self) -> None:
        """Ends a complete run: waits until the rows are on the disk."""
        os.fsync(self._file.fileno())
        self._early_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlocks the file, also after a run that failed."""
        self._file.close()


class NewFile:
    """A file that gets all rows at the end of a run, and is locked until then.

    Args:
      path: of the file; made if absent.

    Raises:
      InputError: it has content, or another run is about to write it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _locked(path)
        if self._file.tell():
            self._file.close()
            raise InputError(f"out is {path}, which has content; name another file, or remove it")

    def complete(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes the rows; next to the file, if somebody else has filled it meanwhile."""
        path, numbers = self._path, itertools.count(2)
        while path.exists() and path.stat().st_size:
            path = self._path.with_stem(f"{self._path.stem}-{next(numbers)}")
        if path != self._path:
            log.warning("%s is not empty any more; the rows are in %s", self._path, path)
        write_rows(path, rows)

    def close(self) -> None:
        """Unlocks the file, and removes it after a run that wrote nothing."""
        with contextlib.suppress(FileNotFoundError):
            named, opened = self._path.stat(), os.fstat(self._file.fileno())
            if os.path.samestat(named, opened) and not named.st_size:
                self._path.unlink()
        self._file.close()


def _locked(path: Path) -> BinaryIO:
    """A file to append to, made if absent, with the lock of the open file.

    So a second one of this process is also refused.
    """
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(
            f"{path} is being written by another run; wait for it, or give another --out"
        ) from None
    except OSError as error:
        log.warning("%s has no file locks (%s)", path, error.strerror)
    if separate(path):  # the lock is that of the shared file
        file.close()
        return _locked(path)
    return file


def _line(row: Mapping[str, Any]) -> bytes:
    return seal(row, ensure_ascii=False).encode() + b"\n"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
