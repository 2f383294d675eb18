"""Restores a list of files: what is bad is noted and the rest goes on."""

import functools
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxsr.data.picture_file import ENDINGS
from jaxsr.data.sources import Source, target_path
from jaxsr.errors import one_line
from jaxsr.restoration.config import FORMATS, RestoreConfig
from jaxsr.restoration.encode import PictureWriter, check_holdable, open_writer
from jaxsr.restoration.pictures import CHANNELS, Picture, PictureError, read_picture, with_size
from jaxsr.restoration.pipeline import ByteBudget, Restorer, Work, read_ahead

log = logging.getLogger(__name__)

# What results may occupy while they are gathered or encoded; one picture may exceed it alone.
_RESULT_BYTES = 512 * 2**20
# Bands of a streaming encoder: one being filled, two in its queue, one being compressed.
_BANDS_HELD = 4
_TALL_BAND = 512


@dataclass
class Outcome:
    """What became of the files."""

    restored: list[tuple[Path, Path]] = field(default_factory=list)
    """(source, result)."""
    skipped: list[tuple[Path, Path]] = field(default_factory=list)
    """(source, result that was there already)."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """(source, reason)."""


class _FileSink:
    """Writes a picture's file in a thread, a few bands behind the device.

    Args:
      start: opens the file; called with the first rows, so that a failing picture makes none.
      done: called once from the thread, with the error or None.
    """

    def __init__(
        self, start: Callable[[], PictureWriter], done: Callable[[Exception | None], None]
    ) -> None:
        self._start, self._done = start, done
        self._queue: queue.Queue[np.ndarray | Exception | None] = queue.Queue(maxsize=1)
        self._error: Exception | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, rows: np.ndarray) -> None:
        if self._error is not None:
            raise self._error
        self._queue.put(rows)

    def finish(self) -> None:
        self._queue.put(None)

    def fail(self, error: Exception) -> None:
        self._queue.put(error)

    def _run(self) -> None:
        writer: PictureWriter | None = None
        try:
            while isinstance(rows := self._queue.get(), np.ndarray):
                if self._error is not None:
                    continue  # takes what the pipeline still hands over
                try:
                    writer = writer or self._start()
                    writer.write(rows)
                except Exception as error:
                    self._error = error
            self._error = self._error or rows
            if self._error is None:
                assert writer is not None
                writer.finish()
        except Exception as error:
            self._error = error
        try:
            if self._error is not None and writer is not None:
                writer.abandon()
        finally:  # whoever waits for this picture must not wait for ever
            self._done(self._error)


class BatchRestorer:
    """Runs files through a `Restorer`.

    Args:
      restorer: the network at work.
      config: names, formats, limits.
    """

    def __init__(self, restorer: Restorer, config: RestoreConfig) -> None:
        self._restorer, self._config = restorer, config
        self._budget = ByteBudget(_RESULT_BYTES)
        self._lock = threading.Lock()
        self._claimed: dict[Path, Path] = {}
        self.outcome = Outcome()

    def run(self, sources: Iterable[Source], *, threads: int = 2) -> Outcome:
        """Restores every picture; returns when all files are written."""
        makers = (functools.partial(self._load, source) for source in sources)
        try:
            self._restorer.run(self._works(read_ahead(makers, threads=threads)))
        finally:
            self._budget.wait_until_empty()
        return self.outcome

    def _load(
        self, source: Source
    ) -> tuple[Source, Path, Picture] | tuple[Source, None, str] | None:
        """Decodes one picture, in a thread; the reason where it cannot be."""
        config = self._config
        format = FORMATS[config.format] if config.format else None
        try:
            if format is not None or source.path.suffix.lower() != ".gif":
                target = target_path(source, config.out, suffix=config.suffix, format=format)
                if self._exists(source, target):
                    return None
            picture = read_picture(source.path, max_pixels=config.max_pixels)
            written = format or (picture.notes.format if picture.notes.format in ENDINGS else "PNG")
            target = target_path(source, config.out, suffix=config.suffix, format=written)
            if self._exists(source, target):
                return None
            self._claim(source, target)
            height, width = self._restorer.result_size(picture.pixels.shape[:2])
            deep = picture.pixels.dtype == np.uint16
            check_holdable(written, kind=picture.kind, deep=deep, height=height, width=width)
        except OSError as error:
            return source, None, error.strerror or one_line(error)
        except PictureError as error:
            return source, None, str(error)
        return source, target, picture

    def _exists(self, source: Source, target: Path) -> bool:
        if target.exists() and target.resolve() == source.path.resolve():
            raise PictureError(
                f"the result would replace its source {target}; use --suffix or --out"
            )
        if self._config.overwrite or not target.exists():
            return False
        with self._lock:
            if target in self._claimed:  # this run's own: `_claim` says what is wrong
                return False
            self.outcome.skipped.append((source.path, target))
        return True

    def _claim(self, source: Source, target: Path) -> None:
        with self._lock:
            first = self._claimed.setdefault(target, source.path)
        if first != source.path:
            raise PictureError(f"its result would be {target}, as that of {first} is")

    def _works(self, loaded: Iterator) -> Iterator[Work]:
        for item in loaded:
            if item is None:
                continue
            source, target, picture = item
            if target is None:
                self._failed(source, picture)
                continue
            yield self._work(source, target, picture)

    def _work(self, source: Source, target: Path, picture: Picture) -> Work:
        size = picture.pixels.shape[:2]
        height, width = self._restorer.result_size(size)
        written = FORMATS[self._config.format] if self._config.format else picture.notes.format
        written = written if written in ENDINGS else "PNG"
        deep = picture.pixels.dtype == np.uint16
        rows = height
        if written in ("PNG", "TIFF"):
            rows = min(height, int(_BANDS_HELD * _TALL_BAND * height / size[0]))
        cost = picture.pixels.nbytes + rows * width * CHANNELS[picture.kind] * (2 if deep else 1)
        if not self._budget.acquire(cost, wait=False):
            self._restorer.flush()  # what waits for company would hold its share for ever
            self._budget.acquire(cost)
        # Not in `start`, which would hold the samples until the file is written.
        kind, notes = picture.kind, with_size(picture.notes, height=height, width=width)

        def start() -> PictureWriter:
            target.parent.mkdir(parents=True, exist_ok=True)
            return open_writer(
                target,
                format=written,
                kind=kind,
                deep=deep,
                height=height,
                width=width,
                notes=notes,
                quality=self._config.quality,
            )

        def done(error: Exception | None) -> None:
            if error is None:
                with self._lock:
                    self.outcome.restored.append((source.path, target))
            else:
                self._failed(source, _reason(error))
            self._budget.release(cost)

        return Work(pixels=picture.pixels, kind=picture.kind, sink=_FileSink(start, done))

    def _failed(self, source: Source, reason: str) -> None:
        log.debug("%s: %s", source.path, reason)
        with self._lock:
            self.outcome.failed.append((str(source.path), reason))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        return f"{os.strerror(error.errno)}{where}"
    return one_line(error)[:400]
