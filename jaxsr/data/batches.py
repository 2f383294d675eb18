"""Training batches, cut from photos by threads that work ahead of the step.

A batch is a dictionary: `sample`, int32 (b), the numbers of its samples in the run, and either
`image`, uint8 (b, crop, crop, 3), or (for photos that are resident on the device) `window`,
int32 (b, 3): photo, top row, left column. `order.py` says which crop a sample is.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import numpy as np

from jaxsr.data.order import CropOrder
from jaxsr.data.photos import Photos, available_cpus

HostBatch = dict[str, np.ndarray]

_MOST_SAMPLES = 2**31  # sample numbers are int32 on the device


def train_batches(
    photos: Photos,
    *,
    global_batch: int,
    crop: int,
    seed: int,
    start_step: int = 0,
    host: int = 0,
    hosts: int = 1,
    crops_per_photo: int = 1,
    form: Literal["image", "window"] = "image",
    threads: int | None = None,
    prefetch: int = 4,
) -> "BatchStream":
    """This host's part of the batches of steps `start_step`, `start_step + 1`, … without end.

    The batch of a step depends on the photos, `global_batch`, `crop`, `seed` and `crops_per_photo`
    only. Host h of n has rows `h · b/n` to `(h + 1) · b/n - 1` of the global batch of b.

    Args:
      photos: what to cut from.
      global_batch: samples per step over all hosts, a multiple of `hosts`.
      crop: side of the crops in pixels.
      start_step: the first step to yield: a resumed run passes the step it stopped at.
      crops_per_photo: crops of each photo per epoch.
      form: "image" for pixels, "window" for the places alone, which needs no decoding.
      threads: threads that decode and cut. Default: one per CPU, at most 16.
      prefetch: batches prepared ahead of the one in use.

    Raises:
      ValueError: an argument is out of range. Reading a photo that changed since it was checked
        raises `RuntimeError`, naming the file, from the iterator.
    """
    if hosts < 1 or not 0 <= host < hosts:
        raise ValueError(f"host must be between 0 and hosts - 1, got host={host}, hosts={hosts}")
    if global_batch < 1 or global_batch % hosts:
        raise ValueError(
            f"global_batch={global_batch} cannot be split over hosts={hosts}; "
            f"use a positive multiple of {hosts}"
        )
    if start_step < 0:
        raise ValueError(f"start_step must be 0 or more, got {start_step}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if prefetch < 1:
        raise ValueError(f"prefetch must be at least 1 batch, got {prefetch}")
    if form not in ("image", "window"):
        raise ValueError(f"form must be 'image' or 'window', got {form!r}")
    order = CropOrder(photos.sizes, crop, seed, crops_per_photo)
    rows = global_batch // hosts
    return BatchStream(
        photos,
        order,
        pixels=form == "image",
        first=start_step * global_batch + host * rows,
        rows=rows,
        stride=global_batch,
        threads=threads or min(available_cpus(), 16),
        prefetch=prefetch,
    )


class BatchStream:
    """An endless iterator of batches; `close` or the end of a `with` block stops its threads."""

    def __init__(
        self,
        photos: Photos,
        order: CropOrder,
        *,
        pixels: bool,
        first: int,
        rows: int,
        stride: int,
        threads: int,
        prefetch: int,
    ) -> None:
        self._photos = photos
        self._order = order
        self._pixels = pixels
        self._first = first
        self._rows = rows
        self._stride = stride
        self._parts = np.array_split(np.arange(rows), min(threads, rows))
        self._pool = ThreadPoolExecutor(threads, "photos") if pixels else None
        self._ahead: deque[tuple[HostBatch, list[Future[None]]]] = deque()
        self._prefetch = prefetch

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> HostBatch:
        while len(self._ahead) <= self._prefetch:
            self._ahead.append(self._begin())
        batch, work = self._ahead.popleft()
        try:
            for part in work:
                part.result()
        except BaseException:
            self.close()
            raise
        return batch

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the threads, after the photos they are decoding; no batch comes after this."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self) -> tuple[HostBatch, list[Future[None]]]:
        """Hands the next batch to the threads."""
        first = self._first
        if first + self._rows > _MOST_SAMPLES:
            raise ValueError(
                f"sample {first} and its batch reach {_MOST_SAMPLES}, where 32-bit sample numbers "
                f"end; start a new run from these weights"
            )
        self._first += self._stride
        windows = self._order.windows(first, self._rows)
        sample = np.arange(first, first + self._rows, dtype=np.int32)
        if self._pool is None:
            return {"window": windows, "sample": sample}, []
        side = self._order.crop
        image = np.empty((self._rows, side, side, 3), np.uint8)
        work = [self._pool.submit(self._cut, image, windows, part) for part in self._parts]
        return {"image": image, "sample": sample}, work

    def _cut(self, image: np.ndarray, windows: np.ndarray, rows: np.ndarray) -> None:
        side = self._order.crop
        for row in rows:
            photo, top, left = windows[row]
            image[row] = self._photos.read(photo)[top : top + side, left : left + side]
