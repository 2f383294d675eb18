"""Writes picture files band by band, complete or not at all.

PNG and TIFF are compressed as the rows arrive, so that memory does not grow with the picture. JPEG
and WebP have no such encoder within reach: their samples are gathered first. Every format carries
EXIF, the colour profile, XMP and the resolution.
"""

import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from jaxsr.interop.atomic_write import AtomicFile
from jaxsr.restoration.pictures import CHANNELS, Kind, Notes, PictureError
from jaxsr.restoration.png import PngWriter
from jaxsr.restoration.tiff import TiffWriter

_LONGEST_SIDE = {"JPEG": 65500, "WEBP": 16383}  # libjpeg's and WebP's own limits


class PictureWriter(Protocol):
    """Takes rows from top to bottom; after `finish` the file is there, after `abandon` not."""

    def write(self, rows: Shaped[np.ndarray, "h w c"]) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None: ...


def check_holdable(format: str, *, kind: Kind, deep: bool, height: int, width: int) -> None:
    """Refuses, before any work, what a format cannot hold.

    Raises:
      PictureError: the samples would lose depth, alpha or their colour model, or do not fit.
    """
    instead = "write it with --format png or tiff"
    if format in ("JPEG", "WEBP") and deep:
        raise PictureError(f"{format} holds 8 bits, the picture has 16; {instead}")
    if format == "JPEG" and kind.endswith("alpha"):
        raise PictureError(f"JPEG holds no transparency, the picture has some; {instead}")
    if format in ("PNG", "WEBP") and kind == "cmyk":
        raise PictureError(f"{format} holds no CMYK; write it with --format tiff or jpeg")
    longest = _LONGEST_SIDE.get(format)
    if longest is not None and max(height, width) > longest:
        raise PictureError(
            f"{format} holds at most {longest} pixels a side, the result is {width}×{height}; "
            f"{instead}"
        )
    if format == "TIFF" and height * width * CHANNELS[kind] * (2 if deep else 1) > 2**32 - 2**26:
        raise PictureError("TIFF holds at most 4 GB; write it with --format png")


def open_writer(
    path: Path,
    *,
    format: str,
    kind: Kind,
    deep: bool,
    height: int,
    width: int,
    notes: Notes,
    quality: int,
) -> PictureWriter:
    """Starts a file that appears at `path` when it is complete.

    Args:
      path: its folder must exist.
      format: `PNG`, `JPEG`, `WEBP` or `TIFF`.
      kind: what the channels are.
      deep: 16 bits a sample instead of 8.
      height: rows that will come.
      width: their length.
      notes: what else the file shall hold.
      quality: of JPEG and lossy WebP, 1 to 100; where the source was lossless, so is WebP.

    Raises:
      OSError: the folder cannot be written.
    """
    shape = (height, width, CHANNELS[kind])
    file = AtomicFile(path)
    try:
        if format == "PNG":
            return PngWriter(file, shape, deep, kind, notes)
        if format == "TIFF":
            return TiffWriter(file, shape, deep, kind, notes)
        encode = {"JPEG": _encode_jpeg, "WEBP": _encode_webp}[format]
        return _GatheringWriter(file, shape, encode, kind, notes, quality)
    except BaseException:
        file.abandon()
        raise


class _GatheringWriter:
    """Keeps the rows until they are complete, for encoders that take whole pictures."""

    def __init__(
        self,
        file: AtomicFile,
        shape: tuple[int, int, int],
        encode: Callable[[np.ndarray, Kind, Notes, int], Sequence[bytes | memoryview]],
        kind: Kind,
        notes: Notes,
        quality: int,
    ) -> None:
        self._file, self._encode = file, encode
        self._rest = (kind, notes, quality)
        # OpenCV's order is blue, green, red; turning the whole picture later would copy it.
        self._turned = encode is _encode_jpeg and kind == "rgb"
        self._pixels = np.empty(shape, np.uint8)
        self._done = 0

    def write(self, rows: np.ndarray) -> None:
        rows = rows[..., ::-1] if self._turned else rows
        self._pixels[self._done : self._done + len(rows)] = rows
        self._done += len(rows)

    def finish(self) -> None:
        for part in self._encode(self._pixels, *self._rest):
            self._file.stream.write(part)
        self._file.finish()

    def abandon(self) -> None:
        self._file.abandon()


def _encode_jpeg(
    pixels: np.ndarray, kind: Kind, notes: Notes, quality: int
) -> list[bytes | memoryview]:
    if kind == "cmyk":
        out = io.BytesIO()
        Image.fromarray(pixels, "CMYK").save(out, "JPEG", quality=quality, subsampling=0)
        encoded: bytes | memoryview = out.getbuffer()
    else:
        import cv2

        # Pillow would hold the picture a second time, at four bytes a pixel.
        options = [cv2.IMWRITE_JPEG_QUALITY, quality]
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
        done, buffer = cv2.imencode(".jpg", pixels, options)
        if not done:
            raise PictureError("JPEG encoding failed")
        encoded = buffer.data
    # JFIF's own segment, if the encoder wrote one, comes first and says the resolution.
    after = 20 if encoded[2:4] == b"\xff\xe0" else 2
    head = bytes(encoded[:after])
    if after > 2 and notes.dpi:
        across, down = (min(65535, round(d)) for d in notes.dpi)
        head = head[:13] + struct.pack(">BHH", 1, across, down) + head[18:]
    return [head, _jpeg_segments(notes), encoded[after:]]


def _jpeg_segments(notes: Notes) -> bytes:
    """EXIF, XMP and profile as application segments; EXIF or XMP too long for one stays out."""
    segments = []
    if notes.exif and len(notes.exif) < 65500:
        segments.append((0xE1, b"Exif\0\0" + notes.exif))
    if notes.xmp and len(notes.xmp) < 65500:
        segments.append((0xE1, b"http://ns.adobe.com/xap/1.0/\0" + notes.xmp))
    if notes.icc:
        parts = [notes.icc[at : at + 65519] for at in range(0, len(notes.icc), 65519)]
        for index, part in enumerate(parts):
            head = b"ICC_PROFILE\0" + bytes((index + 1, len(parts)))
            segments.append((0xE2, head + part))
    return b"".join(struct.pack(">BBH", 0xFF, code, len(c) + 2) + c for code, c in segments)


def _encode_webp(
    pixels: np.ndarray, kind: Kind, notes: Notes, quality: int
) -> list[bytes | memoryview]:
    if kind.startswith("gray"):  # WebP knows colour only
        pixels = pixels[..., [0, 0, 0, *range(1, pixels.shape[-1])]]
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        out,
        "WEBP",
        quality=quality,
        method=4,
        lossless=notes.lossless,
        exact=True,  # colours under full transparency stay
        icc_profile=notes.icc or b"",
        exif=notes.exif or b"",
        xmp=notes.xmp or b"",
    )
    return [out.getbuffer()]
