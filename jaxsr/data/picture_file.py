"""The foundation of every reader of image files: file names of formats, and the decoders.

Pillow decodes first, because it refuses a truncated file where OpenCV returns it half gray;
`load_whole` refuses the pictures that Pillow fills up too. It cuts
16-bit colour to 8 bits: there OpenCV takes over, and tifffile for TIFFs of separate planes and of
gray with alpha, which both may decode wrongly without an error. `decode` makes 8-bit RGB of it,
`jaxsr.restoration.pictures` keeps depth, alpha and metadata.
"""

import io
import math
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from PIL import Image, PngImagePlugin

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


# Profiles of printers have more than the 1 MiB at which Pillow refuses a chunk.
PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY)


_DECODERS = (
    *("BMP", "DIB", "GIF", "JPEG", "PPM", "PNG", "TIFF", "WEBP", "AVIF", "JPEG2000", "TGA", "ICO"),
    *("ICNS", "PCX", "PSD", "QOI", "SGI", "SUN", "DDS"),
)
"""Those of Pillow's formats that are opened, whatever a file's name: EPS starts Ghostscript, and so
runs the file."""
_OF_PACKAGES = ("HEIF", "JXL")
"""Formats that other packages may have added."""


def open_image(file: Any, formats: tuple[str, ...] = _DECODERS) -> Image.Image:
    """`PIL.Image.open` of a binary file by these decoders, none of which starts a program."""
    if formats is _DECODERS:
        formats = (*formats, *(name for name in _OF_PACKAGES if name in Image.OPEN))
    return Image.open(file, formats=formats)


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


def not_a_still(count: int, kind: str) -> UnreadablePicture:
    """The error for a file of several frames or pages."""
    return UnreadablePicture(f"{count} {kind}, and only stills are read: split it first")


def check_still(image: Any) -> None:
    """Refuses an animation, and a TIFF of several pages other than previews of the first.

    Args:
      image: opened by Pillow, not loaded.

    Raises:
      UnreadablePicture: it has several frames.
    """
    # Other pictures of a JPEG file are depths and gain maps, those of a PSD are layers.
    frames = 1 if image.format in ("MPO", "PSD") else getattr(image, "n_frames", 1)
    if frames > 1 and not (image.format == "TIFF" and _only_smaller_pages(image)):
        raise not_a_still(frames, "pages" if image.format == "TIFF" else "frames")


def _only_smaller_pages(image: Any) -> bool:
    """Whether a TIFF's other pages are previews of the first."""
    try:
        kinds = []
        for page in range(1, image.n_frames):
            image.seek(page)
            kinds.append(int(image.tag_v2.get(254, 0)) & 1)
        return all(kinds)
    finally:
        image.seek(0)


def png_chunks(file: io.BufferedIOBase) -> Iterator[tuple[bytes, int, int]]:
    """(type, offset of the content, length) of a PNG's chunks, which are not read."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        at = file.tell()
        yield name, at, length
        file.seek(at + length + 4)


def load_whole(image: Any, data: bytes) -> None:
    """Decodes a picture that Pillow opened, all of it.

    Pillow refuses a file that ends early. Pixels that the file does not contain though it seems
    whole are black or gray to it: a compressed stream or a list of strips that is too short. A
    progressive JPEG that lacks its last scans is whole, and blurred, as its standard allows.

    Args:
      image: opened, neither loaded nor changed.
      data: its file's content.

    Raises:
      UnreadablePicture: some pixels are not in the file. Decoders raise other errors.
    """
    if image.format == "TIFF":
        _check_segments(image.tag_v2, data)
    image.load()
    if image.format == "PNG":
        _check_png(image, data)
    elif image.format in ("JPEG", "MPO"):
        _check_jpeg(image, data)


_ADAM7 = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
    (0, 1, 1, 2),
)  # fmt: skip
"""First column and row, and the steps, of the passes of an interlaced PNG."""


def _check_png(image: Any, data: bytes) -> None:
    width, height, depth, colour, interlaced = struct.unpack(">IIBBxxB", data[16:29])
    # Unpacking once more takes as long as decoding. Missing rows are zeros, the last one too.
    if not interlaced and np.asarray(image.crop((0, height - 1, width, height))).any():
        return
    bits, needed = depth * {2: 3, 4: 2, 6: 4}.get(colour, 1), 0
    for x, y, step_x, step_y in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        if columns := len(range(x, width, step_x)):
            needed += len(range(y, height, step_y)) * (1 + (columns * bits + 7) // 8)
    chunks = png_chunks(io.BytesIO(data))
    stream = b"".join(data[at : at + length] for name, at, length in chunks if name == b"IDAT")[2:]
    unpacker, length = zlib.decompressobj(-zlib.MAX_WBITS), 0
    while stream and length < needed:
        length += len(unpacker.decompress(stream, 2**20))
        stream = unpacker.unconsumed_tail
    if length < needed and length + len(unpacker.flush()) < needed:
        raise UnreadablePicture(f"truncated: its pixels unpack to {length:,} of {needed:,} bytes")


def _check_jpeg(image: Any, data: bytes) -> None:
    corner = np.asarray(image.crop((image.width - 1, image.height - 1, image.width, image.height)))
    if np.isin(corner, (127, 128)).all() and (end := jpeg_end(data)) is not None:
        # Blocks that are missing are mid-gray. Bytes in front of the end marker are passed over if
        # the blocks are complete, and else decoded in their place.
        codes = b"\x5a\xa5\x3c" * 40
        codes += b"".join(bytes((0xFF, 0xD0 + number)) + codes for number in range(8))
        with type(image)(io.BytesIO(data[:end] + codes + data[end:])) as other:
            if not np.array_equal(np.asarray(other), np.asarray(image)):
                raise UnreadablePicture("truncated: its end marker precedes its last pixels")


_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")


def jpeg_end(data: bytes) -> int | None:
    """Offset of the marker that ends a file's first JPEG image."""
    at = 2
    while marker := _JPEG_MARKER.search(data, at):
        if marker[1] == b"\xd9":
            return marker.end() - 2
        at = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    return None


def _check_segments(tags: Mapping[int, Any], data: bytes | None = None) -> None:
    """Refuses a TIFF with fewer strips or tiles than its size needs.

    Args:
      tags: of the page, by number.
      data: the file, to see whether those that are JPEGs have an end.
    """
    width, height, kind = tags[256], tags[257], "tiles" if 322 in tags else "strips"
    if kind == "tiles":
        needed = -(-width // tags[322]) * -(-height // tags[323])
    else:
        needed = -(-height // max(min(tags.get(278, height), height), 1))
    if tags.get(284) == 2:
        needed *= tags.get(277, 1)
    lists = [tags.get(324, tags.get(273)), tags.get(325, tags.get(279))]
    lists = [each if isinstance(each, tuple) else (each,) for each in lists if each is not None]
    segments = [*zip(*lists, strict=False)]
    present = sum(all(segment) for segment in segments[:needed])
    if data is not None and tags.get(259) == 7 and len(lists) == 2:
        ends = [data[at : at + length].rstrip(b"\0")[-2:] for at, length in segments[:needed]]
        present = min(present, ends.count(b"\xff\xd9"))
    if present < needed:
        raise UnreadablePicture(f"truncated: it has {present} of {needed} {kind}")


_NOTE_TEXTS = (b"Raw profile type exif", b"XML:com.adobe.xmp")
"""Keywords of a PNG's texts that may state its orientation."""


def has_late_notes(file: io.BufferedIOBase) -> bool:
    """Whether EXIF or XMP of a PNG is behind its pixels, where Pillow finds it by decoding them."""
    late = False
    for name, at, length in png_chunks(file):
        late |= name == b"IDAT"
        if late and name == b"eXIf":
            return True
        if late and name in (b"tEXt", b"zTXt", b"iTXt"):
            file.seek(at)
            if file.read(min(length, 22)).partition(b"\0")[0] in _NOTE_TEXTS:
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
    _check_segments({tag.code: tag.value for tag in page.tags})
    pixels = page.asarray()
    if page.planarconfig == 2 and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.size == 0 or pixels.shape[:2] != size or pixels.size != math.prod(size) * channels:
        raise UnreadablePicture(
            f"samples of shape {pixels.shape} in an image of {size[1]}×{size[0]}"
        )
    return pixels.reshape(*size, channels)
