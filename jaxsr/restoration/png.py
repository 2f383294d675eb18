"""Writes PNG band by band, slices of the rows filtered and deflated by several threads.

Each slice is a deflate stream of its own that ends on a byte, so they join into one (as pigz does).
Format: PNG, third edition (W3C, 2025); RFC 1950 for the checksum.
"""

import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO

import numpy as np

from jaxsr.restoration.encoding import DEFLATE_LEVEL, Bands, Encoding

_INCH_PER_METRE = 0.0254
# Bands may be a hundred megabytes; a row filter's own memory should be smaller.
_SLICE_BYTES = 2**20
_THREADS = 8
_PNG_COLOUR = {"gray": 0, "rgb": 2, "gray-alpha": 4, "rgb-alpha": 6}


def write_png(stream: BinaryIO, bands: Bands, encoding: Encoding) -> None:
    """Writes the file as its rows arrive."""

    def chunk(name: bytes, content: bytes) -> None:
        stream.write(struct.pack(">I", len(content)) + name + content)
        stream.write(struct.pack(">I", zlib.crc32(content, zlib.crc32(name))))

    height, width, _ = encoding.shape
    notes, depth = encoding.notes, 16 if encoding.deep else 8
    stream.write(b"\x89PNG\r\n\x1a\n")
    header = (width, height, depth, _PNG_COLOUR[encoding.kind], 0, 0, 0)
    chunk(b"IHDR", struct.pack(">IIBBBBB", *header))
    if notes.icc and b"cICP" not in dict(notes.png_chunks):
        chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(notes.icc))
    if notes.dpi:
        chunk(b"pHYs", struct.pack(">IIB", *(round(d / _INCH_PER_METRE) for d in notes.dpi), 1))
    for name, content in notes.png_chunks:
        chunk(name, content)
    for comment in notes.comments:
        chunk(*_text(comment.replace(b"\0", b"")))
    if notes.exif:
        chunk(b"eXIf", notes.exif)
    if notes.xmp:
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + notes.xmp)
    chunk(b"IDAT", b"\x78\x01")  # the zlib stream's header
    row_bytes, adler = encoding.row_bytes, 1
    slice_rows = max(1, _SLICE_BYTES // row_bytes)
    above = np.zeros(row_bytes, np.uint8)
    pack = partial(_packed, step=row_bytes // width)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for rows in bands:
            samples = np.ascontiguousarray(rows, ">u2" if encoding.deep else np.uint8)
            plain = samples.view(np.uint8).reshape(len(rows), -1)
            slices = [plain[at : at + slice_rows] for at in range(0, len(plain), slice_rows)]
            rows_above = [above, *(part[-1] for part in slices[:-1])]
            above = plain[-1].copy()
            for packed, checksum, length in pool.map(pack, slices, rows_above):
                chunk(b"IDAT", packed)
                adler = _joined(adler, checksum, length)
    # An empty last block, then the checksum of everything: the end of a zlib stream.
    chunk(b"IDAT", b"\x03\x00" + struct.pack(">I", adler))
    chunk(b"IEND", b"")


def _text(comment: bytes) -> tuple[bytes, bytes]:
    """The chunk for a comment, which is Latin-1 in tEXt and UTF-8 in iTXt."""
    try:
        if not comment.isascii() and comment.decode():
            return b"iTXt", b"Comment\0\0\0\0\0" + comment
    except UnicodeDecodeError:
        pass
    return b"tEXt", b"Comment\0" + comment


def _packed(plain: np.ndarray, above: np.ndarray, *, step: int) -> tuple[bytes, int, int]:
    """A slice of the deflate stream that ends on a byte, with its checksum and length.

    Each row has PNG's filter Sub or Up, whichever leaves the smaller residues.
    """
    sub, up = plain.copy(), plain.copy()
    sub[:, step:] -= plain[:, :-step]
    up[0] -= above
    up[1:] -= plain[:-1]
    # PNG specification 12.8: the smallest sum of residues taken as signed bytes.
    cost = [
        np.abs(x.view(np.int8)[:, ::7].astype(np.int16)).sum(1, dtype=np.int64) for x in (sub, up)
    ]
    take_up = cost[1] < cost[0]
    out = np.empty((len(plain), plain.shape[1] + 1), np.uint8)
    out[:, 0] = np.where(take_up, 2, 1)
    out[:, 1:] = np.where(take_up[:, None], up, sub)
    filtered = out.tobytes()
    deflate = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, -15, 9)
    packed = deflate.compress(filtered) + deflate.flush(zlib.Z_SYNC_FLUSH)
    return packed, zlib.adler32(filtered), len(filtered)


def _joined(first: int, second: int, length: int) -> int:
    """Adler-32 of two parts one after the other, the second of `length` bytes."""
    base = 65521
    low = (first & 0xFFFF) + (second & 0xFFFF) - 1
    high = (first >> 16) + (second >> 16) + length * ((first & 0xFFFF) - 1)
    return (high % base) << 16 | low % base
