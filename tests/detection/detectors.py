"""A small detector, and pictures whose targets are known."""

import numpy as np

from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.runtime.options import ComputeOptions

TORCH = ComputeOptions(engine="torch")
THIN = MSHNetConfig(widths=(4, 6, 8), blocks=(1, 1, 1), attention_ratio=2)


def spotted(height, width, *boxes):
    """A gray image with white boxes: top, left, height, width."""
    image = np.full((height, width, 3), 40, np.uint8)
    for top, left, h, w in boxes:
        image[top : top + h, left : left + w] = 255
    return image
