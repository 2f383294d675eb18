"""Batches of crops, as a run on photos has them."""

from typing import Any, Literal

from jaxsr.data.batches import PhotoCrops
from jaxsr.data.photos import Photos
from jaxsr.data.prefetch import BatchStream


def train_batches(
    photos: Photos,
    *,
    crop: int,
    seed: int,
    crops_per_photo: int = 1,
    form: Literal["image", "window"] = "image",
    **stream: Any,
) -> BatchStream:
    """The stream of `PhotoCrops` of these photos."""
    crops = PhotoCrops(
        photos=photos, crop=crop, seed=seed, crops_per_photo=crops_per_photo, form=form
    )
    return BatchStream(crops, **stream)
