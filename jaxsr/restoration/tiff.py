"""Writes TIFF strip by strip: deflated, with horizontal differencing, any kind and depth.

Pillow cannot write 16-bit colour, and tifffile neither EXIF nor, without further packages, this
compression; Pillow's directory of tags serves here all the same. Format: TIFF 6.0 (Adobe, 1992).
"""

import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin

from jaxsr.interop.atomic_write import AtomicFile
from jaxsr.restoration.pictures import Kind, Notes
from jaxsr.restoration.png import DEFLATE_LEVEL


class TiffWriter:
    """Strips of deflated rows first, the directory that lists them last."""

    def __init__(
        self, file: AtomicFile, shape: tuple[int, int, int], deep: bool, kind: Kind, notes: Notes
    ) -> None:
        self._file, self._shape, self._deep, self._kind, self._notes = (
            file,
            shape,
            deep,
            kind,
            notes,
        )
        self._strips: list[tuple[int, int]] = []
        # Some readers take a strip as a unit of memory: about 1 MB, as libtiff's authors advise.
        self._rows_per_strip = max(1, 2**20 // (shape[1] * shape[2] * (2 if deep else 1)))
        self._waiting = np.empty((0, *shape[1:]), np.uint16 if deep else np.uint8)
        file.stream.write(b"II*\0" + bytes(4))

    def write(self, rows: np.ndarray) -> None:
        self._waiting = np.concatenate([self._waiting, rows]) if len(self._waiting) else rows
        complete = len(self._waiting) // self._rows_per_strip * self._rows_per_strip
        for start in range(0, complete, self._rows_per_strip):
            self._strip(self._waiting[start : start + self._rows_per_strip])
        self._waiting = self._waiting[complete:].copy()  # a view would hold the whole band

    def _strip(self, rows: np.ndarray) -> None:
        residues = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).copy()
        residues[:, 1:] -= rows[:, :-1]  # TIFF 6.0 section 14: horizontal differencing
        packed = zlib.compress(residues.tobytes(), DEFLATE_LEVEL)
        self._strips.append((self._file.stream.tell(), len(packed)))
        self._file.stream.write(packed)

    def finish(self) -> None:
        if len(self._waiting):
            self._strip(self._waiting)
        stream = self._file.stream
        stream.write(bytes(stream.tell() % 2))  # a directory starts on an even byte
        at = stream.tell()
        directory = TiffImagePlugin.ImageFileDirectory_v2(ifh=b"II*\0\0\0\0\0")
        for tag, value in self._tags().items():
            directory[tag] = value
        stream.write(self._with_strips(directory.tobytes(at), at))
        stream.seek(4)
        stream.write(struct.pack("<I", at))
        self._file.finish()

    def _with_strips(self, directory: bytes, at: int) -> bytes:
        """The directory with the strips' true offsets: Pillow moves them behind the directory."""
        patched = bytearray(directory)
        offsets = [offset for offset, _ in self._strips]
        for entry in range(2, 2 + 12 * struct.unpack_from("<H", patched)[0], 12):
            tag, _, count, value = struct.unpack_from("<HHII", patched, entry)
            if tag == 273:
                where = entry + 8 if count == 1 else value - at
                struct.pack_into(f"<{count}I", patched, where, *offsets)
        return bytes(patched)

    def _tags(self) -> dict[int, Any]:
        height, width, channels = self._shape
        photometric = {"gray": 1, "gray-alpha": 1, "cmyk": 5}.get(self._kind, 2)
        tags: dict[int, Any] = {}
        if self._notes.exif:
            exif = Image.Exif()
            exif.load(self._notes.exif)
            tags |= {tag: exif[tag] for tag in exif if tag not in (0x8769, 0x8825, 0xA005)}
            tags = {tag: value for tag, value in tags.items() if tag not in _TIFF_STORAGE}
            tags |= {tag: inner for tag in (0x8769, 0x8825) if (inner := exif.get_ifd(tag))}
        tags |= {
            256: width,
            257: height,
            258: (16 if self._deep else 8,) * channels,
            259: 8,  # deflate
            262: photometric,
            273: (0,) * len(self._strips),
            277: channels,
            278: self._rows_per_strip,
            279: tuple(size for _, size in self._strips),
            284: 1,
            317: 2,
        }
        if self._kind.endswith("alpha"):
            tags[338] = (2,)  # not premultiplied
        if self._notes.dpi:
            tags |= {282: self._notes.dpi[0], 283: self._notes.dpi[1], 296: 2}
        if self._notes.icc:
            tags[34675] = self._notes.icc
        if self._notes.xmp:
            tags[700] = self._notes.xmp
        return tags

    def abandon(self) -> None:
        self._file.abandon()


# Tags that say how samples are stored; those of the source must not reach the new file.
_TIFF_STORAGE = frozenset(
    {*range(254, 260), *range(277, 280), *range(282, 285), *range(322, 326), *range(529, 533)}
    | {262, 266, 273, 296, 317, 320, 330, 338, 339, 347, 513, 514, 700, 34675}
)
