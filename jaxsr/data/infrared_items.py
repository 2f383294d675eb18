"""Whole infrared images as items of one shape, each in the top left of a canvas.

The canvas has the largest height and width of the data set, so that one program serves all.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxsr.data.infrared import Infrared, to_gray
from jaxsr.errors import InputError


@dataclass(frozen=True, eq=False)
class InfraredItems:
    """`image`, uint8 (c, H, W), `mask`, uint8 (H, W), and `size`, int32 (2): height and width."""

    data: Infrared
    channels: Literal[1, 3] = 3
    """3 for RGB, 1 for luma."""

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise InputError(f"channels must be 1 (luma) or 3 (RGB), got {self.channels}")

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        image, mask = self.data.read(index)
        height, width = mask.shape
        canvas = tuple(int(side) for side in self.data.sizes.max(axis=0))
        item = {
            "image": np.zeros((self.channels, *canvas), np.uint8),
            "mask": np.zeros(canvas, np.uint8),
            "size": np.array((height, width), np.int32),
        }
        planes = to_gray(image)[None] if self.channels == 1 else image.transpose(2, 0, 1)
        item["image"][:, :height, :width] = planes
        item["mask"][:height, :width] = mask
        return item
