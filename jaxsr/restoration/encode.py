"""Writes picture files band by band, whole or not at all.

PNG and TIFF are compressed as the rows arrive, so that memory does not grow with the picture. JPEG
and WebP have no such encoder within reach: their samples are gathered first. Every format carries
EXIF, the colour profile, XMP and the resolution.
"""

import contextlib
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from jaxtyping import Shaped
from PIL import Image, TiffImagePlugin

from jaxsr.restoration.pictures import CHANNELS, Kind, Notes, PictureError

ENDING = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "TIFF": ".tif"}
"""File ending of each format that is written."""

# Level 4 costs a third of the time of level 6 and 3 % in size, on photos filtered by rows.
_DEFLATE_LEVEL = 4
_LONGEST_SIDE = {"JPEG": 65500, "WEBP": 16383}  # libjpeg's and WebP's own limits
_INCH_PER_METRE = 0.0254


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
    """Starts a file that will appear at `path` once it is whole.

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
    file = _WholeFile(path)
    try:
        if format == "PNG":
            return _PngWriter(file, shape, deep, kind, notes)
        if format == "TIFF":
            return _TiffWriter(file, shape, deep, kind, notes)
        encode = {"JPEG": _encode_jpeg, "WEBP": _encode_webp}[format]
        return _GatheringWriter(file, shape, encode, kind, notes, quality)
    except BaseException:
        file.abandon()
        raise


class _WholeFile:
    """A file that takes its name when complete, so that a killed process leaves none there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self.stream: BinaryIO = self._partial.open("wb")

    def finish(self) -> None:
        try:
            self.stream.flush()
            os.fsync(self.stream.fileno())
            self.stream.close()
            self._partial.replace(self.path)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # a full disk fails again when the buffer is flushed
            self.stream.close()
        self._partial.unlink(missing_ok=True)


_PNG_COLOUR = {"gray": 0, "rgb": 2, "gray-alpha": 4, "rgb-alpha": 6}


class _PngWriter:
    def __init__(
        self, file: _WholeFile, shape: tuple[int, int, int], deep: bool, kind: Kind, notes: Notes
    ) -> None:
        self._file = file
        self._step = shape[2] * (2 if deep else 1)
        self._above = np.zeros(shape[1] * self._step, np.uint8)
        self._deflate = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, 15, 9)
        file.stream.write(b"\x89PNG\r\n\x1a\n")
        depth = 16 if deep else 8
        header = (shape[1], shape[0], depth, _PNG_COLOUR[kind], 0, 0, 0)
        self._chunk(b"IHDR", struct.pack(">IIBBBBB", *header))
        said = {name for name, _ in notes.png_chunks}
        if notes.icc and b"cICP" not in said:
            self._chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(notes.icc))
        if notes.dpi:
            across, down = (round(d / _INCH_PER_METRE) for d in notes.dpi)
            self._chunk(b"pHYs", struct.pack(">IIB", across, down, 1))
        for name, content in notes.png_chunks:
            self._chunk(name, content)
        if notes.exif:
            self._chunk(b"eXIf", notes.exif)
        if notes.xmp:
            self._chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + notes.xmp)

    def _chunk(self, name: bytes, content: bytes) -> None:
        stream = self._file.stream
        stream.write(struct.pack(">I", len(content)) + name + content)
        stream.write(struct.pack(">I", zlib.crc32(content, zlib.crc32(name))))

    def write(self, rows: np.ndarray) -> None:
        packed = self._deflate.compress(self._filtered(rows))
        if packed:
            self._chunk(b"IDAT", packed)

    def _filtered(self, rows: np.ndarray) -> bytes:
        """PNG's filters Sub or Up for each row, whichever leaves the smaller residues."""
        if rows.dtype == np.uint16:
            rows = rows.astype(">u2")
        plain = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        sub, up = plain.copy(), plain.copy()
        sub[:, self._step :] -= plain[:, : -self._step]
        up[0] -= self._above
        up[1:] -= plain[:-1]
        self._above = plain[-1].copy()
        # PNG specification 12.8: the smallest sum of residues taken as signed bytes.
        cost = [
            np.abs(x.view(np.int8)[:, ::7].astype(np.int16)).sum(1, dtype=np.int64)
            for x in (sub, up)
        ]
        take_up = cost[1] < cost[0]
        out = np.empty((len(rows), plain.shape[1] + 1), np.uint8)
        out[:, 0] = np.where(take_up, 2, 1)
        out[:, 1:] = np.where(take_up[:, None], up, sub)
        return out.tobytes()

    def finish(self) -> None:
        self._chunk(b"IDAT", self._deflate.flush())
        self._chunk(b"IEND", b"")
        self._file.finish()

    def abandon(self) -> None:
        self._file.abandon()


class _TiffWriter:
    """Strips of deflated rows first, the directory that lists them last."""

    def __init__(
        self, file: _WholeFile, shape: tuple[int, int, int], deep: bool, kind: Kind, notes: Notes
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
        whole = len(self._waiting) // self._rows_per_strip * self._rows_per_strip
        for start in range(0, whole, self._rows_per_strip):
            self._strip(self._waiting[start : start + self._rows_per_strip])
        self._waiting = self._waiting[whole:]

    def _strip(self, rows: np.ndarray) -> None:
        residues = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).copy()
        residues[:, 1:] -= rows[:, :-1]  # TIFF 6.0 section 14: horizontal differencing
        packed = zlib.compress(residues.tobytes(), _DEFLATE_LEVEL)
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


class _GatheringWriter:
    """Keeps the rows until they are complete, for encoders that take whole pictures."""

    def __init__(
        self,
        file: _WholeFile,
        shape: tuple[int, int, int],
        encode: Callable[[np.ndarray, Kind, Notes, int], bytes],
        kind: Kind,
        notes: Notes,
        quality: int,
    ) -> None:
        self._file, self._encode = file, encode
        self._rest = (kind, notes, quality)
        self._pixels = np.empty(shape, np.uint8)
        self._done = 0

    def write(self, rows: np.ndarray) -> None:
        self._pixels[self._done : self._done + len(rows)] = rows
        self._done += len(rows)

    def finish(self) -> None:
        self._file.stream.write(self._encode(self._pixels, *self._rest))
        self._file.finish()

    def abandon(self) -> None:
        self._file.abandon()


def _encode_jpeg(pixels: np.ndarray, kind: Kind, notes: Notes, quality: int) -> bytes:
    if kind == "cmyk":
        out = io.BytesIO()
        Image.fromarray(pixels, "CMYK").save(out, "JPEG", quality=quality, subsampling=0)
        encoded = out.getvalue()
    else:
        import cv2

        # Pillow would hold the picture a second time, at four bytes a pixel.
        if kind == "rgb":
            pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR, dst=pixels)
        options = [cv2.IMWRITE_JPEG_QUALITY, quality]
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
        done, buffer = cv2.imencode(".jpg", pixels, options)
        if not done:
            raise PictureError("JPEG encoding failed")
        encoded = buffer.tobytes()
    # JFIF's own segment, if the encoder wrote one, comes first and says the resolution.
    after = 20 if encoded[2:4] == b"\xff\xe0" else 2
    head = encoded[:after]
    if after > 2 and notes.dpi:
        across, down = (min(65535, round(d)) for d in notes.dpi)
        head = encoded[:13] + struct.pack(">BHH", 1, across, down) + encoded[18:after]
    return head + _jpeg_segments(notes) + encoded[after:]


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


def _encode_webp(pixels: np.ndarray, kind: Kind, notes: Notes, quality: int) -> bytes:
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
    return out.getvalue()
