"""Folders of results: one command at a time writes there, and replaces only what commands wrote.

The record in the folder has the digest of each result before that takes its name, so a command that
is killed leaves none unknown. A file of the user's that has a result's name, a mask of a data set
for instance, is in no line of it; a result that the user changed, such as a corrected mask, has
another digest.
"""

import errno
import fcntl
import hashlib
import logging
import os
import stat
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxsr.data.sources import check_folder
from jaxsr.errors import DamagedFileError, FileAccessError, InputError, counted, first_of
from jaxsr.interop.atomic_write import clear_partials, errors_of, observing, separate
from jaxsr.interop.sealed_json import DIGITS, seal, short_digest, unseal

RECORD = ".jaxsr-results.jsonl"
"""Name of the record."""
_held: set[tuple[int, int]] = set()
"""Device and inode of the records that this process has locked."""

log = logging.getLogger(__name__)


@contextmanager
def result_folder(
    out: Path, names: Iterable[str | Path] = (), *, option: str = "--out"
) -> Generator[None]:
    """Makes a folder, and keeps other commands from writing to it while the block runs.

    Args:
      out: the folder.
      names: of the files and folders in it that the block writes or replaces.
      option: that names the folder.

    Raises:
      InputError: another command is writing there, or a result's name is that of a file that no
        command has written, or that was changed since.
      FileAccessError: the folder cannot be written.
    """
    check_folder(out, option)
    path, results = out / RECORD, [*dict.fromkeys(map(str, names))]
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise FileAccessError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FileAccessError(f"{path} is not a regular file; remove it")
        identity = status.st_dev, status.st_ino
        is_ours = identity in _held  # of a command that writes two kinds of results
        if not is_ours:
            _lock(file.fileno(), out, option)
            if separate(path):  # the lock is that of the shared file
                with result_folder(out, results, option=option):
                    yield
                return
            _held.add(identity)
        try:
            record = file.read()
            clear_half_written(out, (out / name for name in results))
            _check_results(out, results, record, option)
            inside, known = out.resolve(), set(results)
            # A kill may have cut the last line.
            end_of_line = b"" if not record or record.endswith(b"\n") else b"\n"

            def append(digests: Mapping[str, str]) -> None:
                nonlocal end_of_line
                with errors_of(path):
                    file.write(end_of_line + seal({"results": digests}).encode() + b"\n")
                end_of_line = b""

            def note(written: Path, content: Path) -> None:
                target = written.parent.resolve() / written.name
                if not target.is_relative_to(inside):
                    return
                name = target.relative_to(inside)
                if not known.isdisjoint([str(name), *map(str, name.parents)]):
                    append({str(name): content_digest(content) or ""})

            with observing(note):
                yield
            if results:  # folders, too
                append({name: content_digest(out / name) or "" for name in results})
        finally:
            if not is_ours:
                _held.discard(identity)


def clear_half_written(out: Path, results: Iterable[Path]) -> None:
    """Removes the half-written files that killed commands of this machine left among results.

    Args:
      out: the folder; links out of it are not followed.
      results: files and folders in it.
    """
    for folder in {folder for path in results for folder in (path, path.parent)}:
        if os.path.isdir(folder) and folder.resolve().is_relative_to(out.resolve()):
            clear_partials(folder)


def _lock(descriptor: int, out: Path, option: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            log.warning("%s has no file locks (%s)", out, error.strerror)
            return
        raise InputError(
            f"another command is writing to {out}; wait for it, or choose another {option}"
        ) from None


def _check_results(out: Path, names: list[str], record: bytes, option: str) -> None:
    """Refuses results over a file of the user's, or over one that was changed since."""
    recorded = defaultdict[str, set[str]](set)
    for line in record.splitlines():
        with suppress(DamagedFileError):  # cut by a kill: as if it were not there
            content = unseal(line, source=RECORD)
            results = content.get("results")
            if isinstance(results, dict):
                for name, digest in results.items():
                    for folder in Path(name).parents:  # no longer what it was
                        recorded.pop(str(folder), None)
                    recorded[name].add(digest)
            elif isinstance(name := content.get("result"), str):
                recorded[name].add(written_digest(content) or "")
    inside = out.resolve()
    others = [
        str(out / name)
        for name in names
        if os.path.lexists(out / name)
        and not (
            (out / name).resolve().is_relative_to(inside)  # a link would lead elsewhere
            and _is_result(out, name, recorded)
        )
    ]
    if others:
        raise InputError(
            f"results would replace {counted(len(others), 'file')} that jaxsr did not write there, "
            f"or that was changed since ({first_of(others)}); choose another {option}, or move "
            "what is there"
        )


def written_digest(line: Mapping[str, Any]) -> str | None:
    """The digest in a line of `restore`; None before there is a result."""
    written = line.get("written")
    return str(written[-1]) if isinstance(written, list) and len(written) == 3 else None


def _is_result(out: Path, name: str, recorded: Mapping[str, set[str]]) -> bool:
    """Whether a file, or a folder that a command has not finished, is as it was written."""
    path = out / name
    if (digest := content_digest(path)) in recorded.get(name, ()):
        return digest is not None
    if not path.is_dir() or recorded.get(name):
        return False
    files = (file for file in path.rglob("*") if not file.is_dir())
    return all(content_digest(f) in recorded.get(str(f.relative_to(out)), ()) for f in files)


def content_digest(path: Path) -> str | None:
    """Tells contents of a file, or of a folder of files, apart; None for all else."""
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if not file.is_dir())
        listed = {str(file.relative_to(path)): content_digest(file) for file in files}
        return short_digest(repr(listed).encode("utf-8", "surrogateescape"))
    if not path.is_file():  # reading a FIFO would wait
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
