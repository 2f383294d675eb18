"""An image as the network's input, and an image from the network's output.

Networks take one channel (luma or gray) or three (RGB), images have one to four:

| image | network of three channels | network of one channel |
|---|---|---|
| gray | repeated; the luma of the result, so gray stays gray | as it is |
| RGB | as it is | luma; the change in luma is added to the enlarged RGB |
| CMYK | 1 - CMY as RGB, 1 - K as gray | the same two, by the column's rules |
| alpha | enlarged bicubically | enlarged bicubically |

Invisible pixels get the colour of the nearest visible one before, so that theirs does not spread.

Adding the change in luma to R, G and B equals replacing Y in YCbCr. Luma is BT.601's, full range;
values are float32 in [0, 1], channels first for the network and last for the image.
"""

from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import Float, Shaped
from PIL import Image

from jaxsr.restoration.pictures import Kind

LUMA = np.array((0.299, 0.587, 0.114), np.float32)
"""ITU-R BT.601-7, section 2.5.1."""

# Pixels that bicubic enlargement reads beyond an output pixel, and one to spare.
_SUPPORT = 3

Region = tuple[int, int, int, int]
"""Top, left, bottom, right, in input pixels."""


def network_inputs(
    crop: Shaped[np.ndarray, "h w c"], kind: Kind, channels: int
) -> list[Float[np.ndarray, "k h w"]]:
    """The images that a network of `channels` channels is given for a crop."""
    unit = as_unit(crop)
    return [_for_network(part, channels) for part in _parts(unit, kind)]


def from_outputs(
    outputs: list[Float[np.ndarray, "k h w"]],
    kind: Kind,
    channels: int,
    enlarged: Callable[[], Float[np.ndarray, "h w c"]],
) -> Float[np.ndarray, "h w c"]:
    """The image's channels from the network's results for `network_inputs`.

    Args:
      outputs: one for each input.
      kind: the image's channels.
      channels: of the network.
      enlarged: gives the image itself, bicubically enlarged, where it is needed.
    """
    base = enlarged() if needs_enlarged(kind, channels) else None
    bases = _parts(base, kind) if base is not None else [None] * len(outputs)
    gray = kind in ("gray", "gray-alpha")
    parts = []
    for index, (output, base_part) in enumerate(zip(outputs, bases, strict=True)):
        part_channels = 1 if gray or index == 1 else 3
        parts.append(_from_network(output, part_channels, base_part))
    if kind == "cmyk":
        return np.concatenate([1 - part for part in parts], -1)
    if kind.endswith("alpha"):
        assert base is not None
        return np.concatenate([parts[0], base[..., -1:]], -1)
    return parts[0]


def needs_enlarged(kind: Kind, channels: int) -> bool:
    """Whether `from_outputs` uses the enlarged image."""
    return kind.endswith("alpha") or (channels == 1 and kind in ("rgb", "cmyk"))


def fill_hidden(pixels: Shaped[np.ndarray, "h w c"]) -> Shaped[np.ndarray, "h w c"]:
    """Gives invisible pixels, those of alpha 0, the colour of the nearest visible one.

    Their own colour is arbitrary, often black, and would spread into the visible edge.

    Args:
      pixels: samples with alpha as the last channel.

    Returns:
      A copy, or the samples themselves if all are visible or all are invisible.
    """
    hidden = pixels[..., -1] == 0
    if not hidden.any() or hidden.all():
        return pixels
    _, labels = cv2.distanceTransformWithLabels(
        hidden.astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
    )
    visible = np.zeros(labels.max() + 1, np.int64)
    visible[labels[~hidden]] = np.flatnonzero(~hidden)
    colours = pixels.reshape(-1, pixels.shape[2])[visible[labels[hidden]], :-1]
    filled = pixels.copy()
    filled[hidden, :-1] = colours
    return filled


def as_unit(samples: np.ndarray) -> Float[np.ndarray, "..."]:
    """uint8 or uint16 samples as float32 in [0, 1]."""
    return samples.astype(np.float32) / np.iinfo(samples.dtype).max


def as_samples(unit: np.ndarray, dtype: np.dtype | type) -> np.ndarray:
    """float32 as samples: clipped, then rounded to the nearest."""
    peak = np.iinfo(dtype).max
    scaled = np.clip(unit, 0, 1)
    scaled *= peak
    return np.rint(scaled, out=scaled).astype(dtype)


def enlarge_region(
    picture: Shaped[np.ndarray, "h w c"], region: Region, scale: int
) -> Float[np.ndarray, "H W c"]:
    """A region of the bicubically enlarged image, in [0, 1]; at scale 1 the region itself.

    Regions of one image fit together without a seam.
    """
    top, left, bottom, right = region
    if scale == 1:
        return as_unit(picture[top:bottom, left:right])
    first, start = max(top - _SUPPORT, 0), max(left - _SUPPORT, 0)
    crop = as_unit(picture[first : bottom + _SUPPORT, start : right + _SUPPORT])
    size = ((right - left) * scale, (bottom - top) * scale)
    box = (left - start, top - first, right - start, bottom - first)
    planes = [
        np.asarray(Image.fromarray(plane).resize(size, Image.Resampling.BICUBIC, box=box))
        for plane in np.ascontiguousarray(np.moveaxis(crop, -1, 0))
    ]
    return np.stack(planes, -1)


def _parts(unit: np.ndarray, kind: Kind) -> list[np.ndarray]:
    """The gray or RGB images that an image consists of, without alpha."""
    if kind == "cmyk":
        return [1 - unit[..., :3], 1 - unit[..., 3:]]
    return [unit[..., :-1] if kind.endswith("alpha") else unit]


def _for_network(part: np.ndarray, channels: int) -> np.ndarray:
    if part.shape[-1] == 3 and channels == 1:
        part = part @ LUMA[:, None]
    planes = np.moveaxis(part, -1, 0)
    return np.ascontiguousarray(np.broadcast_to(planes, (channels, *planes.shape[1:])))


def _from_network(output: np.ndarray, channels: int, base: np.ndarray | None) -> np.ndarray:
    image = np.moveaxis(output, 0, -1)
    if image.shape[-1] == channels:
        return image
    if channels == 1:
        return image @ LUMA[:, None]
    assert base is not None
    return base + (image - base @ LUMA[:, None])
