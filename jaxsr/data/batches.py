"""Training batches, cut from photos by threads that work ahead of the step.

A batch is a dictionary: `sample`, int32 (b), the numbers of its samples in the run, and either
`image`, uint8 (b, crop, crop, 3), or (for photos that are resident on the device) `window`,
int32 (b, 3): photo, top row, left column. `sampler.py` says which crop a sample is.
"""

from typing import Literal, Unpack

import numpy as np

from jaxsr.data.photos import Photos
from jaxsr.data.prefetch import BatchStream, Fill, HostBatch, StreamOptions
from jaxsr.data.sampler import CropOrder
from jaxsr.errors import InputError
from jaxsr.interop.out_of_memory import check_fits

SMALLER = "use a smaller --batch or --crop"


def train_batches(
    photos: Photos,
    *,
    crop: int,
    seed: int,
    crops_per_photo: int = 1,
    form: Literal["image", "window"] = "image",
    **stream: Unpack[StreamOptions],
) -> BatchStream:
    """This host's part of the batches of steps `start_step`, `start_step + 1`, … without end.

    The batch of a step depends on the photos, `global_batch`, `crop`, `seed` and `crops_per_photo`
    only.

    Args:
      photos: what to cut from.
      crop: side of the crops in pixels.
      crops_per_photo: crops of each photo per epoch.
      form: "image" for pixels, "window" for the places alone, which needs no decoding.
      **stream: see `BatchStream`.

    Raises:
      ValueError: an argument is out of range. Reading a photo that changed since it was checked
        raises `RuntimeError`, naming the file, from the iterator.
    """
    if form not in ("image", "window"):
        raise InputError(f"form must be 'image' or 'window', got {form!r}")
    rows = stream["global_batch"] // max(stream.get("hosts", 1), 1)
    # Bytes ahead of the step, or float32 in it.
    check_fits(rows * crop**2 * 12, f"{rows} crops of {crop} px", advice=SMALLER)

    def begin(windows: np.ndarray) -> tuple[HostBatch, Fill | None]:
        if form == "window":
            return {"window": windows}, None
        image = np.empty((len(windows), crop, crop, 3), np.uint8)

        def cut(rows: np.ndarray) -> None:
            for row in rows:
                photo, top, left = map(int, windows[row])
                image[row] = photos.read_crop(photo, top=top, left=left, side=crop)

        return {"image": image}, cut

    return BatchStream(CropOrder(photos.sizes, crop, seed, crops_per_photo), begin, **stream)
