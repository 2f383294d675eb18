"""The makers of the results in a folder: a model, options and sources, in a record next to them.

A line of a result has its size, time and digest, and is written when the file is complete and has
another name yet. So no result is without its line, and a run that is killed at any time leaves
results that a later one knows. A file that another program put in a result's place has another
digest, and is not taken for this model's.
"""

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxsr.data.result_folder import RECORD, content_digest, written_digest
from jaxsr.data.sources import Source
from jaxsr.errors import DamagedFileError, InputError, counted, first_of
from jaxsr.interop.atomic_write import Note, separate
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel

_OPTIONS = (
    "outscale", "format", "quality", "tiling", "tile", "ensemble", "dtype", "matmul_precision",
    "model_options",
)  # fmt: skip
"""Options that results depend on by more than rounding."""


class MadeBy:
    """The record of a folder's results.

    Args:
      config: of the command.
      models: the models that restore its files.
    """

    def __init__(self, config: RestoreConfig, models: Iterable[RestorationModel]) -> None:
        options = {name: getattr(config, name) for name in _OPTIONS}
        parts = [repr(options), *(model.digest for model in models)]
        self._digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        self._path, self._lock = config.out / RECORD, threading.Lock()
        record = self._path.read_bytes() if self._path.is_file() else b""
        self._lines, self._record_end = dict(self._lines_of(record)), len(record)
        self._others: dict[str, dict] = {}
        """Lines of commands that run at the same time."""

    def covers(self, source: Source, result: Path) -> bool:
        """Whether a result that exists is of this model, these options and the source as it is.

        A file of the noted size and time is taken for the one written; of any other time, after a
        copy for instance, if it has the noted digest.
        """
        line = self._lines.get(self._name(result))
        if line is None or _facts(line) != self._facts_of(source.path.stat(), result):
            return False
        status, digest = result.stat(), written_digest(line)
        if digest is None:
            return False
        now = [status.st_size, status.st_mtime_ns, digest]
        if line["written"] == now:
            return True
        if line["written"][0] != now[0] or content_digest(result) != digest:
            return False
        line["written"] = now  # a run asks more than once
        return True

    def lack(self, result: Path) -> str:
        """Reason that a result of an earlier run is not complete, see `note_lack`."""
        return str(self._lines.get(self._name(result), {}).get("lack", ""))

    def begin(self, source: os.stat_result, result: Path) -> None:
        """Notes that a result is about to be computed.

        Args:
          source: the source as it was when it was read.
          result: the file.

        Raises:
          InputError: another command has written it since this one began.
        """
        line, earlier = self._facts_of(source, result), self._lines.get(self._name(result), {})
        # Until the new one is complete, an earlier result of the same facts stays known.
        self._append(earlier if _facts(earlier) == line else line)

    def note(self, result: Path) -> Note:
        """Notes size and digest of a result: for its complete file, before that has its name."""

        def note(file: Path) -> None:
            status, digest = file.stat(), content_digest(file)
            line = _facts(self._lines[self._name(result)])
            self._append(line | {"written": [status.st_size, status.st_mtime_ns, digest]})

        return note

    def note_lack(self, result: Path, lack: str) -> None:
        """Notes why a result that was written is not complete."""
        self._append(self._lines[self._name(result)] | {"lack": lack})

    def _append(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            separate(self._path)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, 0o666), "r+b") as file:
                with suppress(OSError):  # the file system has no locks
                    fcntl.lockf(file, fcntl.LOCK_EX)
                file.seek(max(self._record_end - 1, 0))
                tail = file.read()
                self._others |= self._lines_of(tail)
                other = self._others.get(line["result"], line)
                if _facts(other) != _facts(line):
                    raise InputError(
                        f"another command wrote {self._path.parent / line['result']} meanwhile, "
                        "with another model, options or source; give each command an --out of its "
                        "own"
                    )
                cut = "" if not tail or tail.endswith(b"\n") else "\n"  # by a kill
                file.write(f"{cut}{seal(line)}\n".encode())
                self._record_end = file.tell()
            self._lines[line["result"]] = line

    def _lines_of(self, record: bytes) -> Iterator[tuple[str, dict]]:
        for line in record.splitlines():
            with suppress(DamagedFileError, KeyError):  # cut by a kill: as if it were not there
                content = unseal(line, source=self._path)
                yield str(content["result"]), content

    def check(self, results: Iterable[tuple[Source, Path]]) -> None:
        """Refuses to leave results alone that are not of this model, options and sources.

        Raises:
          InputError: there are such results; the command has not computed anything yet.
        """
        covered: dict[Path, bool] = {}  # by result: two sources may have one
        for source, result in results:
            covered[result] = covered.get(result, False) or self.covers(source, result)
        if others := [str(result) for result, is_covered in covered.items() if not is_covered]:
            raise InputError(
                f"{self._path.parent} has {counted(len(others), 'result')} that this model with "
                f"these options did not make from the images as they are ({first_of(others)}); "
                "--overwrite replaces such results, another --out leaves them alone"
            )

    def _name(self, result: Path) -> str:
        return os.path.relpath(result, self._path.parent)

    def _facts_of(self, source: os.stat_result, result: Path) -> dict[str, Any]:
        return {
            "result": self._name(result),
            "made_by": self._digest,
            "source": [source.st_size, source.st_mtime_ns],
        }


def _facts(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a result without what was written."""
    return {name: line[name] for name in ("result", "made_by", "source") if name in line}
