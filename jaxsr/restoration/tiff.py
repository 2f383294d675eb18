"""Writes TIFF strip by strip: deflated, with horizontal differencing, any kind and depth.

Pillow cannot write 16-bit colour, and tifffile no EXIF; Pillow's directory of tags serves here all
the same. Format: TIFF 6.0 (Adobe, 1992).
"""

import struct
import zlib
from typing import Any, BinaryIO

import numpy as np
from PIL import TiffImagePlugin

from jaxsr.restoration.encoding import DEFLATE_LEVEL, Bands, Encoding
from jaxsr.restoration.notes import TIFF_STORAGE, exif_tags


def write_tiff(stream: BinaryIO, bands: Bands, encoding: Encoding) -> None:
    """Strips of deflated rows first, the directory that lists them last."""
    # Some readers take a strip as a unit of memory: about 1 MB, as libtiff's authors advise.
    strip_rows = max(1, 2**20 // encoding.row_bytes)
    strips: list[tuple[int, int]] = []

    def write_strip(rows: np.ndarray) -> None:
        residues = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).copy()
        residues[:, 1:] -= rows[:, :-1]  # TIFF 6.0 section 14: horizontal differencing
        packed = zlib.compress(residues.tobytes(), DEFLATE_LEVEL)
        strips.append((stream.tell(), len(packed)))
        stream.write(packed)

    stream.write(b"II*\0" + bytes(4))
    pending = np.empty((0, *encoding.shape[1:]), np.uint16 if encoding.deep else np.uint8)
    for rows in bands:
        pending = np.concatenate([pending, rows]) if len(pending) else rows
        complete = len(pending) // strip_rows * strip_rows
        for start in range(0, complete, strip_rows):
            write_strip(pending[start : start + strip_rows])
        pending = pending[complete:].copy()  # a view would hold the whole band
    if len(pending):
        write_strip(pending)
    stream.write(bytes(stream.tell() % 2))  # a directory starts on an even byte
    at = stream.tell()
    directory = TiffImagePlugin.ImageFileDirectory_v2(ifh=b"II*\0\0\0\0\0")
    for tag, value in _tags(encoding, strips, strip_rows).items():
        directory[tag] = value
    patched = bytearray(directory.tobytes(at))
    # Pillow moves the strips' offsets behind the directory: here are the true ones.
    for entry in range(2, 2 + 12 * struct.unpack_from("<H", patched)[0], 12):
        tag, _, count, value = struct.unpack_from("<HHII", patched, entry)
        if tag == 273:
            where = entry + 8 if count == 1 else value - at
            struct.pack_into(f"<{count}I", patched, where, *(offset for offset, _ in strips))
    stream.write(patched)
    stream.seek(4)
    stream.write(struct.pack("<I", at))


def _tags(encoding: Encoding, strips: list[tuple[int, int]], strip_rows: int) -> dict[int, Any]:
    (height, width, channels), notes = encoding.shape, encoding.notes
    tags: dict[int, Any] = {}
    if notes.exif:
        read, _ = exif_tags(notes.exif)
        tags |= {tag: value for tag, value in read.items() if tag not in TIFF_STORAGE}
    tags |= {
        256: width, 257: height, 258: (16 if encoding.deep else 8,) * channels,
        259: 8,  # deflate
        262: {"gray": 1, "gray-alpha": 1, "cmyk": 5}.get(encoding.kind, 2),
        273: (0,) * len(strips), 277: channels, 278: strip_rows,
        279: tuple(size for _, size in strips), 284: 1, 317: 2,
    }  # fmt: skip
    if encoding.kind.endswith("alpha"):
        tags[338] = (2,)  # not premultiplied
    if notes.dpi:
        tags |= {282: notes.dpi[0], 283: notes.dpi[1], 296: 2}
    return tags | {tag: value for tag, value in ((34675, notes.icc), (700, notes.xmp)) if value}
