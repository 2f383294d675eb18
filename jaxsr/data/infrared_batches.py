"""Batches of whole infrared images, by step number, from host memory or from the device.

A batch is a dictionary: `sample`, int32 (b), the numbers of its samples in the run, and either
`image`, uint8 (b, c, H, W), `mask`, uint8 (b, H, W), and `size`, int32 (b, 2), the height and width
of each in the top left of its canvas; or (for a data set that is resident on the device) `index`,
int32 (b). H × W is the largest height and width of the data set, so that one program serves all.

Every image stands once in each epoch, in a fresh order; a batch that reaches the end of one epoch
goes on in the next, so that none is dropped. `sampler.py` keeps the order.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Unpack

import jax
import numpy as np
from jaxtyping import Array, Int32, UInt8

from jaxsr.data.device_cache import on_device
from jaxsr.data.infrared import Infrared, to_gray
from jaxsr.data.photos import available_cpus
from jaxsr.data.prefetch import BatchStream, Fill, HostBatch, StreamOptions
from jaxsr.data.sampler import CropOrder
from jaxsr.errors import InputError
from jaxsr.interop.out_of_memory import check_fits


def infrared_batches(
    data: Infrared,
    *,
    seed: int,
    channels: Literal[1, 3] = 3,
    form: Literal["image", "index"] = "image",
    **stream: Unpack[StreamOptions],
) -> BatchStream:
    """This host's part of the batches of steps `start_step`, `start_step + 1`, … without end.

    The batch of a step depends on the data, `global_batch` and `seed` only.

    Args:
      data: the images.
      channels: 3 for RGB, 1 for luma.
      form: "image" for pixels, "index" for the numbers of the images alone.
      **stream: see `BatchStream`.

    Raises:
      ValueError: an argument is out of range.
    """
    if channels not in (1, 3):
        raise InputError(f"channels must be 1 (luma) or 3 (RGB), got {channels}")
    if form not in ("image", "index"):
        raise InputError(f"form must be 'image' or 'index', got {form!r}")
    rows = stream["global_batch"] // max(stream.get("hosts", 1), 1)
    height, width = map(int, data.sizes.max(axis=0))
    least = rows * height * width * 4 * (channels + 1)  # float32 in the step
    check_fits(least, f"{rows} images of {width}x{height}", advice="use a smaller --batch")

    def begin(windows: np.ndarray) -> tuple[HostBatch, Fill | None]:
        index = windows[:, 0]
        if form == "index":
            return {"index": index}, None
        batch = _canvases(len(index), data, channels)

        def fill(rows: np.ndarray) -> None:
            for row in rows:
                _fill(batch, int(row), data, int(index[row]))

        return batch, fill

    return BatchStream(CropOrder(data.sizes, 1, seed), begin, **stream)


class ResidentInfrared(NamedTuple):
    """A data set on the device, whole on each; a pytree, an argument of the jitted step."""

    image: UInt8[Array, "n c h w"]
    mask: UInt8[Array, "n h w"]
    size: Int32[Array, "n 2"]
    """Height and width of each image, in the top left of its canvas."""

    def rows(self, index: Int32[Array, " b"]) -> dict[str, Array]:
        """`image`, `mask` and `size` of some images; a mesh splits it with no communication."""
        return {"image": self.image[index], "mask": self.mask[index], "size": self.size[index]}


def resident_infrared_bytes(data: Infrared, *, channels: int) -> int:
    """Bytes that the data set would take on each device, known from its sizes alone."""
    height, width = (int(side) for side in data.sizes.max(axis=0))
    return len(data) * height * width * (channels + 1)


def resident_infrared(
    data: Infrared,
    budget_bytes: int,
    *,
    channels: Literal[1, 3] = 3,
    sharding: jax.sharding.Sharding | None = None,
    threads: int | None = None,
) -> ResidentInfrared | None:
    """Puts the data set on the device, or returns None if it would take more than `budget_bytes`.

    Nothing is read or reserved before that is known. While it is filled, host memory holds it once
    as well.

    Args:
      data: the images.
      budget_bytes: the most to take on each device.
      channels: 3 for RGB, 1 for luma.
      sharding: where to; on a mesh, a replicated `NamedSharding`. Default: the default device.
      threads: images read at once. Default: one per CPU.
    """
    if resident_infrared_bytes(data, channels=channels) > budget_bytes:
        return None
    host = _canvases(len(data), data, channels)
    with ThreadPoolExecutor(threads or available_cpus(), "resident-infrared") as pool:
        list(pool.map(lambda row: _fill(host, row, data, row), range(len(data))))
    return ResidentInfrared(**{name: on_device(rows, sharding) for name, rows in host.items()})


def _canvases(rows: int, data: Infrared, channels: int) -> HostBatch:
    height, width = (int(side) for side in data.sizes.max(axis=0))
    return {
        "image": np.zeros((rows, channels, height, width), np.uint8),
        "mask": np.zeros((rows, height, width), np.uint8),
        "size": np.zeros((rows, 2), np.int32),
    }


def _fill(batch: HostBatch, row: int, data: Infrared, index: int) -> None:
    image, mask = data.read(index)
    height, width = mask.shape
    planes = to_gray(image)[None] if batch["image"].shape[1] == 1 else image.transpose(2, 0, 1)
    batch["image"][row, :, :height, :width] = planes
    batch["mask"][row, :height, :width] = mask
    batch["size"][row] = height, width
