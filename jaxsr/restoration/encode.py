"""Writes image files band by band, complete or not at all.

PNG and TIFF are compressed as the rows arrive, so that memory does not grow with the image. JPEG
and WebP encoders take whole pictures: their samples are gathered first. Every format carries EXIF,
the colour profile, XMP and the resolution.
"""

import io
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from jaxsr.interop.atomic_write import AtomicFile, Note
from jaxsr.restoration.encoding import Bands, Encoding
from jaxsr.restoration.notes import JPEG_SEGMENT, Notes, with_resolution
from jaxsr.restoration.pictures import PictureError
from jaxsr.restoration.png import write_png
from jaxsr.restoration.tiff import write_tiff


def write_picture(path: Path, bands: Bands, encoding: Encoding, note: Note | None = None) -> None:
    """Writes a file that appears at `path` when it is complete.

    Args:
      path: its folder must exist.
      bands: rows of `encoding.shape`.
      encoding: format of the rows.
      note: called with the complete file before it has its name.

    Raises:
      OSError: the file cannot be written.
    """
    write = {"PNG": write_png, "TIFF": write_tiff, "JPEG": _write_jpeg, "WEBP": _write_webp}
    file = AtomicFile(path)
    try:
        write[encoding.format](file.stream, bands, encoding)
    except BaseException:
        file.abandon()
        raise
    file.finish(note)


def _gathered(bands: Bands, encoding: Encoding, *, reverse: bool = False) -> np.ndarray:
    """The whole image, its channels reversed if asked: reversing it later would copy it."""
    pixels = np.empty(encoding.shape, np.uint8)
    row = 0
    for rows in bands:
        pixels[row : row + len(rows)] = rows[..., ::-1] if reverse else rows
        row += len(rows)
    return pixels


def _write_jpeg(stream: BinaryIO, bands: Bands, encoding: Encoding) -> None:
    notes, quality = encoding.notes, encoding.quality
    if encoding.kind == "cmyk":
        out = io.BytesIO()
        image = Image.fromarray(_gathered(bands, encoding), "CMYK")
        image.save(out, "JPEG", quality=quality, subsampling=0)
        encoded: memoryview = out.getbuffer()
    else:
        import cv2

        # Pillow would hold the image a second time, at four bytes a pixel.
        options = [cv2.IMWRITE_JPEG_QUALITY, quality]
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
        pixels = _gathered(bands, encoding, reverse=encoding.kind == "rgb")
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
    # Encoders write no such segment for CMYK: EXIF says it then.
    exif = notes.exif if after > 2 else with_resolution(notes)
    for part in (head, _jpeg_segments(notes, exif), encoded[after:]):
        stream.write(part)


def _jpeg_segments(notes: Notes, exif: bytes | None) -> bytes:
    """Notes as segments; EXIF or XMP too long for one stays out, see `notes.lost_in`."""
    segments = []
    if exif and len(exif) < JPEG_SEGMENT:
        segments.append((0xE1, b"Exif\0\0" + exif))
    if notes.xmp and len(notes.xmp) < JPEG_SEGMENT:
        segments.append((0xE1, b"http://ns.adobe.com/xap/1.0/\0" + notes.xmp))
    icc = notes.icc or b""
    parts = [icc[at : at + 65519] for at in range(0, len(icc), 65519)]
    for number, part in enumerate(parts, 1):
        segments.append((0xE2, b"ICC_PROFILE\0" + bytes((number, len(parts))) + part))
    segments += notes.jpeg_segments
    segments += [(0xFE, comment[:65533]) for comment in notes.comments]
    return b"".join(struct.pack(">BBH", 0xFF, code, len(c) + 2) + c for code, c in segments)


def _write_webp(stream: BinaryIO, bands: Bands, encoding: Encoding) -> None:
    pixels, notes = _gathered(bands, encoding), encoding.notes
    if encoding.kind.startswith("gray"):  # WebP knows colour only
        pixels = pixels[..., [0, 0, 0, *range(1, pixels.shape[-1])]]
    out = io.BytesIO()  # the colours under full transparency stay: exact
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        out, "WEBP", quality=encoding.quality, method=4, lossless=notes.lossless, exact=True,
        icc_profile=notes.icc or b"", exif=with_resolution(notes), xmp=notes.xmp or b"",
    )  # fmt: skip
    stream.write(out.getbuffer())
