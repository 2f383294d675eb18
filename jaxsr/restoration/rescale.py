"""Resizes an image that arrives in bands of rows, with the result of resizing it at once.

Bicubic as Pillow does it, width first: a = -0.5, antialiased where the image shrinks. Depth stays.
"""

import functools

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from jaxsr.ops._resize.conventions.pillow import WEIGHT_BITS, pillow_passes
from jaxsr.ops._resize.weights import Taps


class RowRescaler:
    """From (height, width) to (height, width), band by band.

    Args:
      source: size of the whole image that will be pushed.
      target: size of the whole result.
    """

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._source, self._target = source, target
        self._pending: np.ndarray | None = None
        self._first = 0  # number of the first pending row
        self._done = 0  # result rows returned so far

    def push(self, rows: Shaped[np.ndarray, "h w c"]) -> Shaped[np.ndarray, "h2 w2 c"]:
        """Takes the next rows; returns the rows of the result that are settled by now."""
        dtype, rows = rows.dtype, _widened(rows, self._target[1])
        if self._source[0] == self._target[0]:
            return _rounded(rows, dtype)
        pending = rows if self._pending is None else np.concatenate([self._pending, rows])
        taps, last = _taps(self._source[0], self._target[0], rows.dtype)
        ready = int((last < self._first + len(pending)).sum())
        index, weight = taps.index[self._done : ready], taps.weight[self._done : ready]
        result = np.zeros((len(index), *pending.shape[1:]), weight.dtype)
        for tap in range(index.shape[1]):
            result += weight[:, tap, None, None] * pending[index[:, tap] - self._first]
        if rows.dtype == np.uint8:
            result = (result + (1 << WEIGHT_BITS - 1)) >> WEIGHT_BITS
        first = int(taps.index[ready:].min(initial=self._first + len(pending)))
        self._pending, self._first, self._done = pending[first - self._first :], first, ready
        return _rounded(result, dtype)


@functools.lru_cache(maxsize=4)  # every band of an image asks
def _taps(extent: int, outputs: int, dtype: np.dtype) -> tuple[Taps, np.ndarray]:
    """The taps of every row of the result, and the number of the last row that it waits for."""
    (one,) = pillow_passes((extent,), dtype, (0,), (outputs,), method="bicubic")
    return one.taps, np.maximum.accumulate(one.taps.index.max(1))


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.rint(values).clip(0, np.iinfo(dtype).max).astype(dtype)


def _widened(rows: Shaped[np.ndarray, "h w c"], width: int) -> Shaped[np.ndarray, "h w2 c"]:
    """The rows in another width, each by itself: uint8, which Pillow rounds, or else float32."""
    rows = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    if rows.shape[1] == width:
        return rows
    planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in np.moveaxis(rows, 2, 0)]
    wide = [plane.resize((width, len(rows)), Image.Resampling.BICUBIC) for plane in planes]
    return np.stack([np.asarray(plane) for plane in wide], 2)
