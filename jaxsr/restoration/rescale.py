"""Resizes an image that arrives in bands of rows, with the result of resizing it at once.

Bicubic as Pillow does it: a = -0.5, antialiased where the image shrinks. Depth stays.
"""

import math

import numpy as np
from jaxtyping import Shaped
from PIL import Image


class RowRescaler:
    """From (height, width) to (height, width), band by band.

    Args:
      source: size of the whole image that will be pushed.
      target: size of the whole result.
    """

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._source, self._target = source, target
        self._ratio = source[0] / target[0]
        # Rows that the kernel reads to each side of an output row's centre, and one to spare.
        self._support = math.ceil(2 * max(self._ratio, 1)) + 1
        self._pending: np.ndarray | None = None
        self._first = 0  # number of the first pending row
        self._done = 0  # result rows returned so far

    def push(self, rows: Shaped[np.ndarray, "h w c"]) -> Shaped[np.ndarray, "h2 w2 c"]:
        """Takes the next rows; returns the rows of the result that are settled by now."""
        pending = rows if self._pending is None else np.concatenate([self._pending, rows])
        last = self._first + len(pending)
        ready = max(self._done, math.floor((last - self._support) / self._ratio))
        if last == self._source[0]:
            ready = self._target[0]
        top, bottom = (row * self._ratio - self._first for row in (self._done, ready))
        size, box = (self._target[1], ready - self._done), (0, top, pending.shape[1], bottom)
        result = np.empty((size[1], size[0], pending.shape[2]), pending.dtype)
        exact = pending.dtype == np.uint8  # which Pillow rounds itself
        for channel in range(pending.shape[2] if size[1] else 0):
            plane = np.ascontiguousarray(pending[..., channel], None if exact else np.float32)
            resized = np.asarray(
                Image.fromarray(plane).resize(size, Image.Resampling.BICUBIC, box=box)
            )
            peak = np.iinfo(pending.dtype).max
            result[..., channel] = resized if exact else np.rint(resized.clip(0, peak))
        self._done = ready
        first = max(self._first, math.floor(ready * self._ratio) - self._support)
        self._pending, self._first = pending[first - self._first :], first
        return result
