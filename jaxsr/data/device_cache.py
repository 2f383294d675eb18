"""Photos that live on the device, where they fit: a batch is then three integers a row.

All photos lie on one canvas, `uint8 (3, rows, columns)`, side by side on shelves. Planes first,
because an accelerator pads the last axis to its lanes, and three channels there would take up to
forty times their size. Every device holds the whole canvas, so cutting a crop needs no
communication.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8

from jaxsr.data.photos import Photos
from jaxsr.data.processors import available_cpus


class ResidentPhotos(NamedTuple):
    """Photos on the device; a pytree, to be passed to the jitted step as an argument."""

    canvas: UInt8[Array | np.ndarray, "3 rows columns"]
    origin: Int32[Array | np.ndarray, "photos 2"]
    """Row and column of each photo's top left pixel on the canvas."""

    def crops(self, window: Int32[Array, "b 3"], crop: int) -> UInt8[Array, "b 3 crop crop"]:
        """The square crops at `window` (photo, top row, left column), which must lie inside."""
        corner = self.origin[window[:, 0]] + window[:, 1:]

        def cut(place: Array) -> Array:
            # One integer type for all three: a bare 0 would be int64 where JAX has 64 bits.
            start = (jnp.zeros_like(place[0]), place[0], place[1])
            return jax.lax.dynamic_slice(self.canvas, start, (3, crop, crop))

        return jax.vmap(cut)(corner)


def resident_bytes(photos: Photos) -> int:
    """Bytes that the photos would take on each device, known from their sizes alone."""
    (rows, columns), _ = _shelves(photos.sizes)
    return 3 * rows * columns


def resident_photos(photos: Photos) -> ResidentPhotos:
    """The photos as they go on the device, in host memory.

    Raises:
      RuntimeError: a photo changed or went away since it was checked.
    """
    shape, origin = _shelves(photos.sizes)
    canvas = np.zeros((3, *shape), np.uint8)

    def place(index: int) -> None:
        (top, left), (height, width) = origin[index], photos.sizes[index]
        canvas[:, top : top + height, left : left + width] = photos.read(index).transpose(2, 0, 1)

    with ThreadPoolExecutor(available_cpus(), "resident-photos") as pool:
        list(pool.map(place, range(len(photos))))
    return ResidentPhotos(canvas, origin)


def on_device(array: np.ndarray, sharding: jax.sharding.Sharding | None) -> Array:
    """The array where `sharding` says, or on the default device."""
    if sharding is None:
        return jax.device_put(array)
    # Not device_put: over several hosts it would send the array around to compare it.
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def _shelves(sizes: np.ndarray) -> tuple[tuple[int, int], Int32[np.ndarray, "photos 2"]]:
    """The smallest canvas of a few widths, (rows, columns), and each photo's corner on it."""
    widest = int(sizes[:, 1].max())
    tries = [_fill_shelves(sizes, columns * widest) for columns in (1, 2, 3, 4, 6, 8)]
    return min(tries, key=lambda shelves: shelves[0][0] * shelves[0][1])


def _fill_shelves(sizes: Sequence | np.ndarray, columns: int):
    """Next-fit by decreasing height: a photo goes right of the last one or opens a new shelf."""
    origin = np.zeros((len(sizes), 2), np.int32)
    top = left = shelf = used = 0
    for index in np.argsort(-np.asarray(sizes)[:, 0], kind="stable"):
        height, width = (int(side) for side in sizes[index])
        if left + width > columns:
            top, left, shelf = top + shelf, 0, 0
        origin[index] = top, left
        left, shelf = left + width, max(shelf, height)
        used = max(used, left)
    return (top + shelf, used), origin
