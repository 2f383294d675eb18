"""What every reader of picture files builds on: file names of formats, and the decoders.

Pillow decodes first, because it refuses a truncated file where OpenCV returns it half gray. It cuts
16-bit colour to 8 bits: there OpenCV takes over, and tifffile for TIFFs of separate planes and of
gray with alpha, which both may decode wrongly without an error. `decode` makes 8-bit RGB of it,
`jaxsr.restoration.pictures` keeps depth, alpha and metadata.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Shaped

from jaxsr.errors import InputError

ENDINGS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
}
"""File endings of each format that is written, the usual one first."""

READ_ONLY_ENDINGS = (".bmp", ".gif")
"""Endings of formats that pictures are read from, and written as PNG."""

ORIENTATION = 0x0112
"""EXIF's and TIFF's tag of the orientation, 1 to 8."""


class UnreadablePicture(InputError):
    """The file cannot be decoded whole as a picture; the message is the reason, a short phrase."""


def is_tiff(data: bytes) -> bool:
    """Whether a file begins as a TIFF."""
    return data[:4] in (b"II*\0", b"MM\0*")


def is_white_zero(image: Any) -> bool:
    """Whether a TIFF that Pillow opened stores white as 0; Pillow inverts 8 bits alone."""
    return image.format == "TIFF" and image.tag_v2.get(262) == 0


def stored_size(image: Any) -> tuple[int, int]:
    """(height, width) as stored: some releases of Pillow turn a TIFF's by its orientation."""
    if image.format == "TIFF":
        return image.tag_v2[257], image.tag_v2[256]
    return image.height, image.width


def opencv_samples(data: bytes) -> Shaped[np.ndarray, "h w ..."] | None:
    """Samples by OpenCV in their own depth, colours as RGB or RGBA; None where it cannot decode.

    Raises:
      UnreadablePicture: OpenCV refuses the file.
    """
    import cv2

    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise UnreadablePicture(" ".join(str(error).split())) from error
    if pixels is not None and pixels.ndim == 3 and pixels.shape[2] >= 3:
        pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]  # OpenCV's order is blue, green, red
    return pixels


def tifffile_samples(page: Any) -> Shaped[np.ndarray, "h w c"]:
    """Samples of a page of `tifffile.TiffFile`, planes joined, neither turned nor inverted.

    Raises:
      UnreadablePicture: they are not as many as the page's size says.
    """
    size, channels = (page.imagelength, page.imagewidth), page.samplesperpixel
    pixels = page.asarray()
    if page.planarconfig == 2 and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.size == 0 or pixels.shape[:2] != size or pixels.size != math.prod(size) * channels:
        raise UnreadablePicture(
            f"samples of shape {pixels.shape} in a picture of {size[1]}×{size[0]}"
        )
    return pixels.reshape(*size, channels)
