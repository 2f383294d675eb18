"""Training batches, cut from photos by threads that work ahead of the step.

A batch is a dictionary: `sample`, int32 (b), the numbers of its samples in the run, and either
`image`, uint8 (b, crop, crop, 3), or (for photos that are resident on the device) `window`,
int32 (b, 3): photo, top row, left column. `order.py` says which crop a sample is.
"""

from typing import Literal

import numpy as np

from jaxsr.data.photos import Photos
from jaxsr.data.prefetch import BatchStream, Fill, HostBatch
from jaxsr.data.sampler import CropOrder
from jaxsr.errors import InputError


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
) -> BatchStream:
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
    if form not in ("image", "window"):
        raise InputError(f"form must be 'image' or 'window', got {form!r}")

    def begin(windows: np.ndarray) -> tuple[HostBatch, Fill | None]:
        if form == "window":
            return {"window": windows}, None
        image = np.empty((len(windows), crop, crop, 3), np.uint8)

        def cut(rows: np.ndarray) -> None:
            for row in rows:
                photo, top, left = windows[row]
                image[row] = photos.read(photo)[top : top + crop, left : left + crop]

        return {"image": image}, cut

    return BatchStream(
        CropOrder(photos.sizes, crop, seed, crops_per_photo),
        begin,
        global_batch=global_batch,
        start_step=start_step,
        host=host,
        hosts=hosts,
        threads=threads,
        prefetch=prefetch,
    )
