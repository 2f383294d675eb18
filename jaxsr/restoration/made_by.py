"""The makers of the results in a folder: a model, options and sources, in a record next to them.

A line is written before its result: a run that is killed leaves complete results alone, which are
as new as their lines. A result without a line of the same model, options and source is not taken
for this run's.
"""

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxsr.data.result_folder import RECORD
from jaxsr.data.sources import Source
from jaxsr.errors import DamagedFileError, InputError, counted, first_of
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel

_OPTIONS = (
    "outscale", "format", "quality", "tiling", "tile", "ensemble", "dtype", "matmul_precision",
    "model_options",
)  # fmt: skip
"""Options that results depend on by more than rounding."""
_CLOCK_NS = 20_000_000
"""A file's time comes from a clock that ticks less often than the one for lines."""


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
        """Whether a result that exists is of this model, these options and the source as it is."""
        line = self._lines.get(self._name(result))
        if line is None or _facts(line) != _facts(self._line(source.path.stat(), result, 0)):
            return False
        time_ns = line["time_ns"]
        return isinstance(time_ns, int) and result.stat().st_mtime_ns >= time_ns - _CLOCK_NS

    def lack(self, result: Path) -> str:
        """Reason that a result of an earlier run is not complete, as `begin` has noted it."""
        return str(self._lines.get(self._name(result), {}).get("lack", ""))

    def begin(self, source: os.stat_result, result: Path, *, lack: str = "") -> None:
        """Notes a result that is about to be written.

        Args:
          source: the source as it was when it was read.
          result: the file.
          lack: of a source that is not whole, noted after its result was written.

        Raises:
          InputError: another command has written it since this one began.
        """
        earlier = self._lines.get(self._name(result)) if lack else None
        line = self._line(source, result, earlier["time_ns"] if earlier else time.time_ns())
        line |= {"lack": lack} if lack else {}
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, 0o666), "r+b") as file:
                with suppress(OSError):  # the file system has no locks
                    fcntl.lockf(file, fcntl.LOCK_EX)
                file.seek(self._record_end)
                self._others |= self._lines_of(file.read())
                other = self._others.get(line["result"], line)
                if _facts(other) != _facts(line):
                    raise InputError(
                        f"another command wrote {result} meanwhile, with another model, options or "
                        "source; give each command an --out of its own"
                    )
                file.write(f"{seal(line)}\n".encode())
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

    def _line(self, source: os.stat_result, result: Path, time_ns: int) -> dict:
        return {
            "result": self._name(result),
            "made_by": self._digest,
            "source": [source.st_size, source.st_mtime_ns],
            "time_ns": time_ns,
        }


def _facts(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a result without its time and completeness."""
    return {name: value for name, value in line.items() if name not in ("time_ns", "lack")}
