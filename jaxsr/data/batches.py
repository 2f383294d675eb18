"""Crops of photos by the sample's number; `sampler.py` says which crop a sample is."""

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxsr.data.photos import Photos
from jaxsr.data.prefetch import Fill, HostBatch
from jaxsr.data.sampler import CropOrder
from jaxsr.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoCrops:
    """Batches of `image`, uint8 (b, crop, crop, 3), or of `window`, int32 (b, 3).

    A window is a photo's number, a top row and a left column: of photos on the device, which need
    no decoding. A batch depends on these fields and on its samples' numbers only.
    """

    photos: Photos
    crop: int
    """Side of the crops in pixels."""
    seed: int
    crops_per_photo: int = 1
    """Crops of each photo per epoch."""
    form: Literal["image", "window"] = "image"

    def __post_init__(self) -> None:
        if self.form not in ("image", "window"):
            raise InputError(f"form must be 'image' or 'window', got {self.form!r}")
        _ = self._order  # checks itself

    @functools.cached_property
    def _order(self) -> CropOrder:
        return CropOrder(self.photos.sizes, self.crop, self.seed, self.crops_per_photo)

    def __len__(self) -> int:
        return self._order.epoch_length

    def begin(self, first: int, count: int) -> tuple[HostBatch, Fill | None]:
        """See `jaxsr.data.prefetch.Samples`.

        Filling raises `RuntimeError`, with the file's name, where a photo changed since it was
        checked.
        """
        windows = self._order.windows(first, count)
        if self.form == "window":
            return {"window": windows}, None
        image = np.empty((count, self.crop, self.crop, 3), np.uint8)

        def cut(rows: np.ndarray) -> None:
            for row in rows:
                photo, top, left = map(int, windows[row])
                image[row] = self.photos.read_crop(photo, top=top, left=left, side=self.crop)

        return {"image": image}, cut
