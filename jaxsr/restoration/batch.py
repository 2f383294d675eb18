"""Restores a list of files: bad files are reported and the rest goes on."""

import collections
import contextlib
import functools
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxsr.data.picture_file import ENDINGS, READ_ONLY_ENDINGS
from jaxsr.data.sources import Source, target_path
from jaxsr.errors import one_line
from jaxsr.restoration.config import FORMATS, RestoreConfig
from jaxsr.restoration.encode import write_picture
from jaxsr.restoration.encoding import Encoding
from jaxsr.restoration.made_by import MadeBy
from jaxsr.restoration.notes import lost_in, with_size
from jaxsr.restoration.pictures import Picture, PictureError, read_picture
from jaxsr.restoration.pipeline import ByteBudget, Restorer, Work, read_ahead

log = logging.getLogger(__name__)

# Memory for results while they are gathered or encoded; a single image may exceed it.
_RESULT_BYTES = 512 * 2**20
# Bands of a streaming encoder: one being filled, two in its queue, one being compressed.
_BANDS_HELD = 4
_TALL_BAND = 512


@dataclass
class Outcome:
    """Outcome of the files."""

    restored: list[tuple[Path, Path]] = field(default_factory=list)
    """(source, result)."""
    skipped: list[tuple[Path, Path]] = field(default_factory=list)
    """(source, result that was there already)."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """(source, reason)."""
    remarks: list[tuple[str, str]] = field(default_factory=list)
    """(source, changes to the result, or losses, other than samples)."""


class _FileSink(threading.Thread):
    """Writes an image's file in a thread, a few bands behind the device.

    `finish` and `fail` neither wait nor can be interrupted half way, and may be called again.

    Args:
      write: writes all bands; called with the first rows, so that a failing image makes no file.
      done: called once from the thread, with the error or None.
    """

    def __init__(
        self,
        write: Callable[[Iterator[np.ndarray]], None],
        done: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(daemon=True)
        self._write_bands, self._done = write, done
        self._queue: queue.SimpleQueue[np.ndarray | Exception | None] = queue.SimpleQueue()
        self._space = threading.Semaphore(1)
        self._error: Exception | None = None

    def write(self, rows: np.ndarray) -> None:
        if self._error is not None:
            raise self._error
        self._space.acquire()
        self._queue.put(rows)

    def finish(self) -> None:
        self._queue.put(None)

    def fail(self, error: Exception) -> None:
        self._queue.put(error)

    def _bands(self) -> Iterator[np.ndarray]:
        while isinstance(rows := self._queue.get(), np.ndarray):
            self._space.release()
            yield rows
        if rows is not None:
            raise rows

    def run(self) -> None:
        bands = self._bands()
        try:
            self._write_bands(itertools.chain([next(bands)], bands))
        except Exception as error:
            self._error = error
            with contextlib.suppress(Exception):
                collections.deque(bands, maxlen=0)  # bands still coming from the pipeline
        self._done(self._error)


class BatchRestorer:
    """Runs files through a `Restorer`.

    Args:
      restorer: feeds the network.
      config: has names, formats and limits.
      made_by: the record of the folder's results.
      left_out: called with each source that is not restored after all.
      claimed: results and their sources, shared by all that write to one folder in a run.
    """

    def __init__(
        self,
        restorer: Restorer,
        config: RestoreConfig,
        made_by: MadeBy,
        *,
        left_out: Callable[[Source], None] = lambda source: None,
        claimed: dict[Path, Path] | None = None,
    ) -> None:
        self._restorer, self._config, self._left_out = restorer, config, left_out
        self._made_by = made_by
        self._budget, self._sinks = ByteBudget(_RESULT_BYTES), list[_FileSink]()
        self._lock = threading.Lock()
        self._claimed = {} if claimed is None else claimed
        self.outcome = Outcome()

    def run(self, sources: Iterable[Source], *, threads: int = 2) -> Outcome:
        """Restores every image; returns when all files are written, or given up where it raises."""
        makers = (functools.partial(self._load, source) for source in sources)
        try:
            self._restorer.run(self._works(read_ahead(makers, threads=threads)))
            self._wait_for_files()
        except BaseException as error:  # an interrupt comes between any two lines
            for sink in self._sinks:
                sink.fail(RuntimeError(f"interrupted by {type(error).__name__}"))
            self._wait_for_files()
            raise
        return self.outcome

    def _wait_for_files(self) -> None:
        for sink in self._sinks:
            if sink.is_alive():
                sink.join()

    def _load(
        self, source: Source
    ) -> tuple[Source, os.stat_result, Path, Picture, Encoding] | tuple[Source, str] | None:
        """Decodes one image, in a thread; the reason where it cannot be."""
        config = self._config
        format = FORMATS[config.format] if config.format else None
        try:
            target = finished_result(source, config)
            if target is not None and self._exists(source, target):
                return None
            status = source.path.stat()  # as it is when it is read: it may be replaced later
            picture = read_picture(source.path, max_pixels=config.max_pixels)
            notes = picture.notes
            format = format or (notes.format if notes.format in ENDINGS else "PNG")
            target = target_path(source, config.out, suffix=config.suffix, format=format)
            if self._exists(source, target):
                return None
            self._claim(source, target)
            height, width = self._restorer.result_size(picture.pixels.shape[:2])
            encoding = Encoding(
                format=format,
                kind=picture.kind,
                deep=picture.pixels.dtype == np.uint16,
                height=height,
                width=width,
                notes=with_size(notes, height=height, width=width),
                quality=config.quality,
            )
            encoding.check()
        except OSError as error:
            return source, error.strerror or one_line(error)
        except PictureError as error:
            return source, str(error)
        return source, status, target, picture, encoding

    def _exists(self, source: Source, target: Path) -> bool:
        if is_source(source, target):
            raise PictureError(
                f"the result would replace its source {target}; use --suffix or --out"
            )
        if self._config.overwrite or not target.exists():
            if reason := link_reason(target):
                raise PictureError(reason)
            return False
        with self._lock:
            if target in self._claimed:  # this run's own: `_claim` reports it
                return False
            if not self._made_by.covers(source, target):
                raise PictureError(
                    f"{target} is there already, of another model, options or source; --overwrite "
                    "replaces it"
                )
            self.outcome.skipped.append((source.path, target))
            self._left_out(source)
        return True

    def _claim(self, source: Source, target: Path) -> None:
        with self._lock:
            first = self._claimed.setdefault(target, source.path)
        if first != source.path:
            raise PictureError(f"its result would be {target}, as that of {first} is")

    def _works(self, loaded: Iterator) -> Iterator[Work]:
        for item in loaded:
            if item is not None and len(item) == 2:
                self._failed(*item)
            elif item is not None:
                yield self._work(*item)

    def _work(
        self,
        source: Source,
        status: os.stat_result,
        target: Path,
        picture: Picture,
        encoding: Encoding,
    ) -> Work:
        rows = encoding.height
        if encoding.format in ("PNG", "TIFF"):
            scale = rows / picture.pixels.shape[0]
            rows = min(rows, int(_BANDS_HELD * _TALL_BAND * scale))
        cost = picture.pixels.nbytes + rows * encoding.row_bytes
        if not self._budget.acquire(cost, wait=False):
            self._restorer.flush()  # waiting tiles would keep their share for ever
            self._budget.acquire(cost)

        def write(bands: Iterator[np.ndarray]) -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made_by.begin(status, target)
            write_picture(target, bands, encoding, self._made_by.note(target))

        def done(error: Exception | None) -> None:
            self._budget.release(cost)
            if error is None:
                with self._lock:
                    self.outcome.restored.append((source.path, target))
                    if lost := lost_in(encoding.notes, encoding.format):
                        remark = f"{encoding.format} written without {'; '.join(lost)}"
                        self.outcome.remarks.append((str(source.path), remark))
            else:
                self._failed(source, _reason(error))

        self._sinks = [sink for sink in self._sinks if sink.is_alive()]
        self._sinks.append(_FileSink(write, done))
        self._sinks[-1].start()
        return Work(pixels=picture.pixels, kind=picture.kind, sink=self._sinks[-1])

    def _failed(self, source: Source, reason: str) -> None:
        log.debug("%s: %s", source.path, reason)
        with self._lock:
            self.outcome.failed.append((str(source.path), reason))
            self._left_out(source)


def is_source(source: Source, target: Path) -> bool:
    """Whether a result would replace the file that it is made from."""
    return target.exists() and target.resolve() == source.path.resolve()


def link_reason(target: Path) -> str:
    """Why a link in a result's place is left alone; "" where there is none."""
    if not target.is_symlink():
        return ""
    return f"{target} is a link, and the result would replace what it leads to; remove the link"


def finished_result(source: Source, config: RestoreConfig) -> Path | None:
    """The result of an earlier run that this one leaves alone, as far as the names say it."""
    if config.overwrite:
        return None
    target = named_result(source, config)
    try:
        return target if target.exists() and not is_source(source, target) else None
    except OSError:  # a name too long; whoever restores the image says so
        return None


def named_result(source: Source, config: RestoreConfig) -> Path:
    """Where the result goes, as far as the names say it."""
    format = FORMATS[config.format] if config.format and not source.is_video else None
    if format is None and source.path.suffix.lower() in READ_ONLY_ENDINGS:
        format = "PNG"
    return target_path(source, config.out, suffix=config.suffix, format=format)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        return f"{os.strerror(error.errno)}{where}"
    return one_line(error)[:400]
