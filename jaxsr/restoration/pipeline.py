"""Runs many images through one network: tiles of several share a batch, and memory stays bounded.

Decoding (by the caller's iterator), the device, and encoding (each sink's own thread) run at the
same time. Finished rows leave an image band by band, so that memory grows with its width and not
with its area.
"""

import collections
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from jaxsr.errors import InputError
from jaxsr.interop.out_of_memory import check_fits, out_of_memory_error
from jaxsr.restoration import colour
from jaxsr.restoration.pictures import CHANNELS, Kind
from jaxsr.restoration.rescale import RowRescaler
from jaxsr.restoration.tile_trial import side_that_differs
from jaxsr.restoration.tiling import Plan, Size, Tiler
from jaxsr.runtime.runner import Collect, Runner

log = logging.getLogger(__name__)

# Images that may be half done at once: tiles of a rare shape wait for company, but not for ever.
_MOST_OPEN = 8
_IN_FLIGHT = 2


@runtime_checkable
class Sink(Protocol):
    """Where a restored image goes, rows from top to bottom."""

    def write(self, rows: Shaped[np.ndarray, "h w c"]) -> None: ...

    def finish(self) -> None:
        """All rows are there; may return before they are stored."""
        ...

    def fail(self, error: Exception) -> None:
        """The image cannot be completed: its partial result must be removed."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """One image to restore."""

    pixels: Shaped[np.ndarray, "h w c"]
    """uint8 or uint16 samples."""
    kind: Kind
    """Meaning of the channels."""
    sink: Sink
    """Gets the result."""


@dataclass(eq=False)
class _Open:
    """An image on its way."""

    work: Work
    plan: Plan
    outputs: int
    """Network runs per tile."""
    pieces: dict[tuple[int, int], list[np.ndarray | None]] = field(default_factory=dict)
    bands: dict[int, np.ndarray] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    next_band: int = 0
    failed: bool = False
    counted: int = 0
    """Input pixels that were reported as done."""
    rescaler: RowRescaler | None = None


Owner = tuple[_Open, int, int, int]
"""Whose a tile is: the image, row and column in its plan, and which of the network's inputs."""


class _Waiting:
    """Tiles of one shape that will share a batch."""

    def __init__(self, batch: int, channels: int, shape: Size) -> None:
        what = f"{batch} tiles of {shape[1]}x{shape[0]}"
        check_fits(
            4 * batch * channels * shape[0] * shape[1], what, advice="lower --batch or --tile"
        )
        self.tiles = np.zeros((batch, channels, *shape), np.float32)
        self.owners: list[Owner] = []


class Restorer:
    """Feeds a runner.

    Args:
      runner: runs tiles.
      host: runs the images that are narrower than every program's tile, on plain torch.
      tiler: cuts.
      scale: of the network.
      channels: of the network.
      batch: tiles that are computed at once.
      outscale: size of the result relative to the source. Default: the network's scale.
      insist: process an image whole even if it needs more memory than is planned for.
      tried_by: the network on the host, for images whose tiles are tried before they are used.
        Default: tiles are known to change nothing, or may.
      progress: called with the input pixels that a band completed, and, negative, with the pixels
        reported for an image that failed later.
    """

    def __init__(
        self,
        runner: Runner,
        host: Runner,
        tiler: Tiler,
        *,
        scale: int,
        channels: int,
        batch: int = 1,
        outscale: float | None = None,
        insist: bool = False,
        tried_by: Callable[[np.ndarray], np.ndarray] | None = None,
        progress: Callable[[int], None] = lambda pixels: None,
    ) -> None:
        self._runner, self._host, self._tiler = runner, host, tiler
        self._scale, self._channels, self._batch = scale, channels, batch
        self._outscale = float(outscale or scale)
        self._insist, self._tried_by, self._progress = insist, tried_by, progress
        self._waiting: dict[tuple[Size, bool], _Waiting] = {}
        self._running: collections.deque[tuple[Collect, list[Owner]]] = collections.deque()
        self._open: list[_Open] = []

    def result_size(self, size: Size) -> Size:
        """(height, width) of the restored image."""
        return result_size(size, self._outscale)

    def run(self, works: Iterable[Work]) -> None:
        """Restores every image; a failing one goes to its sink's `fail` and the others go on.

        Where it raises, an interrupt for one, the sinks of the rest are left to their owner.
        """
        for work in works:
            self.feed(work)
        self.flush()

    def feed(self, work: Work) -> None:
        """Cuts an image and queues its tiles; results arrive at the sink in their own time."""
        try:
            size = work.pixels.shape[0], work.pixels.shape[1]
            plan = self._tiler.insist(size) if self._insist else self._tiler.plan(size)
            if work.kind.endswith("alpha"):
                work = replace(work, pixels=colour.fill_hidden(work.pixels))
            if self._tried_by and plan.tiles > 1:
                plan = self._tried(work, plan, self._tried_by)
            opened = _Open(work, plan, outputs=2 if work.kind == "cmyk" else 1)
            opened.missing = {row: len(tiles) for row, tiles in enumerate(plan.rows)}
            if self._outscale != self._scale:
                enlarged = size[0] * self._scale, size[1] * self._scale
                opened.rescaler = RowRescaler(enlarged, self.result_size(size))
        except Exception as error:
            work.sink.fail(error)
            return
        self._open.append(opened)
        for row, tiles in enumerate(plan.rows):
            for column, tile in enumerate(tiles):
                if opened.failed:
                    return
                try:
                    inputs = self._inputs(work, plan.shape, (tile.top, tile.left))
                except Exception as error:
                    self._fail(opened, error)
                    return
                for index, data in enumerate(inputs):
                    self._queue(opened, row, column, index, data)
        if len(self._open) > _MOST_OPEN:
            self.flush()

    def flush(self) -> None:
        """Completes every image that was fed."""
        for key in list(self._waiting):
            self._submit(key)
        while self._running:
            self._collect()

    def _tried(self, work: Work, plan: Plan, network: Callable[[np.ndarray], np.ndarray]) -> Plan:
        """The plan, or one without tiles where those change the result along a side."""

        def crop(shape: Size, start: Size) -> np.ndarray:
            return self._inputs(work, shape, start)[0][None]

        reach, most = self._tiler.reach, self._tiler.max_pixels
        side = side_that_differs(plan, reach, network, crop, max_pixels=most)
        if not side:
            return plan
        cause = f"along the image's {side}, tiles of a strip of it change the result"
        log.warning("this network has no exact tiles (%s); images are treated whole", cause)
        self._tiler, self._tried_by = self._tiler.without_tiles(cause), None
        self._batch = self._runner.devices
        return self._tiler.plan(plan.size)

    def _inputs(self, work: Work, shape: Size, start: Size) -> list[np.ndarray]:
        (height, width), (top, left) = shape, start
        crop = work.pixels[top : top + height, left : left + width]
        short = height - crop.shape[0], width - crop.shape[1]
        if any(short):  # padded to the network's period as spandrel does, then repeated
            mirrored = [min(s, n - 1) for s, n in zip(short, crop.shape, strict=False)]
            crop = np.pad(crop, ((0, mirrored[0]), (0, mirrored[1]), (0, 0)), mode="reflect")
            rest = [s - m for s, m in zip(short, mirrored, strict=True)]
            crop = np.pad(crop, ((0, rest[0]), (0, rest[1]), (0, 0)), mode="edge")
        return colour.network_inputs(crop, work.kind, self._channels)

    def _queue(self, opened: _Open, row: int, column: int, index: int, data: np.ndarray) -> None:
        key = shape, compiled = opened.plan.shape, opened.plan.compiled
        if key not in self._waiting:
            self._waiting[key] = _Waiting(self._batch if compiled else 1, self._channels, shape)
        waiting = self._waiting[key]
        waiting.tiles[len(waiting.owners)] = data
        waiting.owners.append((opened, row, column, index))
        if len(waiting.owners) == len(waiting.tiles):
            self._submit(key)

    def _submit(self, key: tuple[Size, bool]) -> None:
        waiting = self._waiting.pop(key)
        runner = self._runner if key[1] else self._host
        while len(self._running) >= _IN_FLIGHT:
            self._collect()
        try:
            self._running.append((runner.submit(waiting.tiles), waiting.owners))
        except Exception as error:
            self._fail_all(waiting.owners, error)

    def _collect(self) -> None:
        wait, owners = self._running.popleft()
        try:
            results = wait()
        except Exception as error:  # out of device memory, for one
            self._fail_all(owners, error)
            return
        for result, (opened, row, column, index) in zip(results, owners, strict=False):
            if opened.failed:
                continue
            try:
                self._place(opened, row, column, index, result)
            except Exception as error:
                self._fail(opened, error)

    def _place(self, opened: _Open, row: int, column: int, index: int, result: np.ndarray) -> None:
        tile, scale = opened.plan.rows[row][column], self._scale
        top, left = (tile.inner_top - tile.top) * scale, (tile.inner_left - tile.left) * scale
        size = opened.work.pixels.shape
        # Padding to the network's period is cut off again.
        bottom, right = min(tile.inner_bottom, size[0]), min(tile.inner_right, size[1])
        height, width = (bottom - tile.inner_top) * scale, (right - tile.inner_left) * scale
        inner = result[:, top : top + height, left : left + width]
        if not np.isfinite(inner).all():
            raise InputError("the network returned NaN or infinity; try --dtype float32")
        pieces = opened.pieces.setdefault((row, column), [None] * opened.outputs)
        pieces[index] = inner
        complete = [piece for piece in pieces if piece is not None]
        if len(complete) < opened.outputs:
            return
        del opened.pieces[row, column]
        work = opened.work
        region = (tile.inner_top, tile.inner_left, bottom, right)
        picture = colour.from_outputs(
            complete,
            work.kind,
            self._channels,
            lambda: colour.enlarge_region(work.pixels, region, scale),
        )
        band = opened.bands.get(row)
        if band is None:
            shape = (height, size[1] * scale, CHANNELS[work.kind])
            band = opened.bands[row] = np.empty(shape, work.pixels.dtype)
        start = tile.inner_left * scale
        band[:, start : start + width] = colour.as_samples(picture, work.pixels.dtype)
        opened.missing[row] -= 1
        self._emit(opened)

    def _emit(self, opened: _Open) -> None:
        """Hands on the bands that are complete and whose turn it is."""
        while opened.missing.get(opened.next_band) == 0:
            band = opened.bands.pop(opened.next_band)
            rows = opened.rescaler.push(band) if opened.rescaler else band
            if len(rows):
                opened.work.sink.write(rows)
            pixels = band.shape[0] * band.shape[1] // self._scale**2
            opened.counted += pixels
            self._progress(pixels)
            opened.next_band += 1
        if opened.next_band == len(opened.plan.rows):
            self._open.remove(opened)
            opened.work.sink.finish()

    def _fail_all(self, owners: list[Owner], error: Exception) -> None:
        error = (
            out_of_memory_error(error, rows=self._batch, advice="a smaller --tile takes less")
            or error
        )
        for opened, *_ in owners:
            self._fail(opened, error)

    def _fail(self, opened: _Open, error: Exception) -> None:
        if opened.failed:
            return
        opened.failed = True
        opened.bands.clear()
        opened.pieces.clear()
        if opened.counted:
            self._progress(-opened.counted)
        if opened in self._open:
            self._open.remove(opened)
        opened.work.sink.fail(error)


def result_size(size: Size, outscale: float) -> Size:
    """(height, width) times `outscale`, rounded, at least one pixel."""
    return max(1, round(size[0] * outscale)), max(1, round(size[1] * outscale))


class ByteBudget:
    """Bytes that may be held at once; one holder may exceed them, if it is alone."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._changed = threading.Condition()

    def acquire(self, amount: int, *, wait: bool = True) -> bool:
        """Takes `amount`; False if it is not there and the caller does not wait."""
        with self._changed:
            while self._used and self._used + amount > self._limit:
                if not wait:
                    return False
                self._changed.wait()
            self._used += amount
            return True

    def release(self, amount: int) -> None:
        with self._changed:
            self._used -= amount
            self._changed.notify_all()


def read_ahead(makers: Iterable[Callable[[], Any]], *, threads: int = 2) -> Iterator[Any]:
    """Results of the makers in order, a few made in advance by threads; exceptions are raised."""
    source = iter(makers)
    with ThreadPoolExecutor(threads) as pool:
        ahead = collections.deque(pool.submit(make) for make in itertools.islice(source, threads))
        try:
            while ahead:
                result = ahead.popleft().result()
                following = next(source, None)
                if following is not None:
                    ahead.append(pool.submit(following))
                yield result
        finally:
            for waiting in ahead:
                waiting.cancel()
