"""The foundation of every reader of image files: file names of formats, and the decoders.

Pillow decodes first, because it refuses a truncated file where OpenCV returns it half gray. It cuts
16-bit colour to 8 bits: there OpenCV takes over, and tifffile for TIFFs of separate planes and of
gray with alpha, which both may decode wrongly without an error. `decode` makes 8-bit RGB of it,
`jaxsr.restoration.pictures` keeps depth, alpha and metadata.
"""

import io
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from jaxsr.data.archives import ArchivedFile
from jaxsr.data.picture_limits import MAX_PIXELS, limit_opencv, max_file_bytes, too_large
from jaxsr.errors import InputError, UserError

ENDINGS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
}
"""File endings of each format that is written, the usual one first."""

READ_ONLY_ENDINGS = (".bmp", ".gif", ".avif")
"""Endings of formats that images are read from, and written as PNG."""

ORIENTATION = 0x0112
"""EXIF's and TIFF's tag of the orientation, 1 to 8."""


class UnreadablePicture(InputError):
    """The file cannot be decoded whole as an image; the message is the reason, a short phrase."""


class ChangedFileError(UserError, RuntimeError):
    """A file that was usable when the run checked it, and no longer is."""


def read_file(path: Path, *, max_pixels: int = MAX_PIXELS) -> bytes:
    """The content of a regular file no larger than an image may be.

    Raises:
      UnreadablePicture: a FIFO, a device or such, empty, or larger than any image.
      OSError: the file cannot be opened.
    """
    if isinstance(path, ArchivedFile):
        _check_size(path.size, max_pixels)
        data = path.content()
    else:
        # Without waiting for a FIFO's writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UnreadablePicture("not a regular file")
            _check_size(status.st_size, max_pixels)
            data = file.read(status.st_size)
    if not data:
        raise UnreadablePicture("zero bytes")
    return data


def _check_size(size: int, max_pixels: int) -> None:
    if size > max_file_bytes(max_pixels):
        raise UnreadablePicture(f"{size:,} bytes, more than any image of {max_pixels:,} pixels")


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


def png_chunks(file: io.BufferedIOBase) -> Iterator[tuple[bytes, int, int]]:
    """(type, offset of the content, length) of a PNG's chunks, which are not read."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        at = file.tell()
        yield name, at, length
        file.seek(at + length + 4)


def has_late_exif(file: io.BufferedIOBase) -> bool:
    """Whether a PNG has EXIF behind its pixels, where Pillow finds it after decoding them."""
    late = False
    for name, at, length in png_chunks(file):
        late |= name == b"IDAT"
        if late and name == b"eXIf":
            return True
        if late and name in (b"tEXt", b"zTXt") and length >= 21:
            file.seek(at)
            if file.read(21) == b"Raw profile type exif":
                return True
    return False


def gray_key(data: bytes) -> int | None:
    """The transparent gray of a PNG without alpha, in 8 bits or in 16, as its samples are decoded.

    Pillow gives it in the file's own depth, from which samples of 1, 2 and 4 bits are scaled.
    """
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[25:26] != b"\0":
        return None
    for name, at, length in png_chunks(io.BytesIO(data)):
        if name == b"tRNS" and length == 2:
            depth = data[24]
            value = int.from_bytes(data[at : at + 2], "big") & (2**depth - 1)
            return value if depth >= 8 else value * 255 // (2**depth - 1)
        if name == b"IDAT":
            break
    return None


def with_gray_key(image: Any, data: bytes) -> Any:
    """A loaded image whose one transparent gray, if it has one, is that of its 8-bit samples."""
    key = gray_key(data)
    if key is not None and image.mode in ("1", "L"):
        image = image.convert("L") if image.mode == "1" else image
        image.info["transparency"] = key
    return image


def meant_channels(tags: Mapping[int, Any], channels: int) -> int:
    """How many of a TIFF's samples a pixel are colours or alpha; the others are of no stated kind.

    Args:
      tags: of the page; 262 is PhotometricInterpretation, 338 ExtraSamples.
      channels: samples a pixel.
    """
    colours = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4}.get(tags.get(262, 2), channels)
    extra = tags.get(338) or ()
    extra = extra if isinstance(extra, tuple) else (extra,)
    has_alpha = bool(extra) and extra[0] in (1, 2)
    return min(channels, colours + has_alpha)


def opencv_samples(data: bytes) -> Shaped[np.ndarray, "h w ..."] | None:
    """Samples by OpenCV in their own depth, colours as RGB or RGBA; None where it cannot decode.

    Raises:
      UnreadablePicture: OpenCV refuses the file.
    """
    limit_opencv()
    import cv2

    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise UnreadablePicture(" ".join(str(error).split())) from error
    if pixels is not None and pixels.ndim == 3 and pixels.shape[2] >= 3:
        pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]  # OpenCV's order is blue, green, red
    return pixels


def tifffile_samples(page: Any, *, max_pixels: int = MAX_PIXELS) -> Shaped[np.ndarray, "h w c"]:
    """Samples of a page of `tifffile.TiffFile`, planes joined, neither turned nor inverted.

    Raises:
      UnreadablePicture: they are not as many as the page's size says, or too many.
    """
    size, channels = (page.imagelength, page.imagewidth), page.samplesperpixel
    if reason := too_large(size, max_pixels=max_pixels):
        raise UnreadablePicture(reason)
    if channels > 4 or page.imagedepth != 1 or page.bitspersample > 64:
        raise UnreadablePicture(
            f"{channels} samples of {page.bitspersample} bits a pixel, {page.imagedepth} deep"
        )
    pixels = page.asarray()
    if page.planarconfig == 2 and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.size == 0 or pixels.shape[:2] != size or pixels.size != math.prod(size) * channels:
        raise UnreadablePicture(
            f"samples of shape {pixels.shape} in an image of {size[1]}×{size[0]}"
        )
    return pixels.reshape(*size, channels)
