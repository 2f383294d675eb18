"""Contents of image files other than samples: read whole, and handed to whoever writes the result.

docs/formats.md lists everything that a format may contain, and how it is handled.
"""

import io
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from jaxsr.data.picture_file import ORIENTATION, jpeg_end, meant_channels, png_chunks
from jaxsr.errors import first_of

# Chunks about the meaning of a PNG's samples or about the image, not about its encoding.
_PNG_NOTES = (
    *(b"gAMA", b"cHRM", b"sRGB", b"cICP", b"mDCV", b"cLLI"),
    *(b"tEXt", b"zTXt", b"iTXt", b"tIME"),
)
_PNG_PROFILES = (b"XML:com.adobe.xmp\0", b"Raw profile type")
# Read into other notes, or of the encoding that was.
_PNG_READ = (
    *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"iCCP", b"eXIf", b"pHYs"),
    *(b"sBIT", b"hIST", b"sPLT"),
)

# TIFF tags that describe the image; the other tags say how the samples are stored.
TIFF_NOTES = (269, 270, 271, 272, 274, 285, 305, 306, 315, 316, 33432, 33723, 34377, 0x8769, 0x8825)
TIFF_STORAGE = frozenset(
    {*range(254, 260), *range(277, 280), *range(282, 285), *range(322, 326), *range(529, 533)}
    | {262, 266, 273, 280, 281, 296, 297, 317, 320, 330, 338, 339, 347, 512, 513, 514, 700, 34675}
    | {0xA005}
)
"""Tags of how samples are stored, and of notes that are read by themselves."""
_DIRECTORIES = (0x8769, 0x8825)
"""EXIF's and GPS's."""
_INTEROPERABILITY = 0xA005
"""A directory in EXIF's."""
_PREVIEW = 330
"""SubIFDs: smaller copies of the image."""

_ICC_SEGMENT = b"ICC_PROFILE\0"
_SEGMENTS = (b"http://ns.adobe.com/xap/1.0/\0", b"Exif\0\0", _ICC_SEGMENT, b"MPF\0")
"""Beginnings of JPEG's segments that are read into other notes, or belong to a second image."""


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Contents of an image file other than samples."""

    format: str = "PNG"
    """`PNG`, `JPEG`, `WEBP` or `TIFF`; anything else is written as PNG."""
    lossless: bool = True
    """False for JPEG and for lossy WebP."""
    exif: bytes | None = None
    """EXIF as a TIFF structure, from its byte-order mark on; holds the orientation."""
    icc: bytes | None = None
    """Colour profile."""
    xmp: bytes | None = None
    """XMP packet."""
    dpi: tuple[float, float] | None = None
    """Dots per inch, across and down."""
    png_chunks: tuple[tuple[bytes, bytes], ...] = ()
    """(type, content) of chunks that only PNG can hold."""
    jpeg_segments: tuple[tuple[int, bytes], ...] = ()
    """(marker, content) of segments that only JPEG can hold, as they are."""
    comments: tuple[bytes, ...] = ()
    """Comments, in no stated encoding."""
    dropped: tuple[str, ...] = ()
    """Further parts of the file, which no result has."""

    @property
    def orientation(self) -> int:
        """EXIF orientation, 1 to 8; 1 if it is missing."""
        if not self.exif:
            return 1
        exif = Image.Exif()
        try:
            exif.load(self.exif)
            value = exif.get(ORIENTATION, 1)
        except Exception:  # damaged EXIF is ignored
            return 1
        return value if value in range(1, 9) else 1


def read_notes(image: Any, data: bytes) -> Notes:
    """The notes of a file that Pillow has opened; of a PNG, loaded."""
    info: dict[str, Any] = image.info
    format: str = "JPEG" if image.format == "MPO" else image.format
    exif = info.get("exif")
    if exif is None and (format == "TIFF" or "Raw profile type exif" in info):
        exif = _descriptive(image.getexif()).tobytes()
    if exif is not None:
        exif = exif.removeprefix(b"Exif\x00\x00") or None
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp")
    dpi = info.get("dpi") or (_exif_resolution(exif) if format in ("WEBP", "AVIF") else None)
    comment = info.get("comment")
    chunks, dropped = _png_notes(data, dpi) if format == "PNG" else ((), ())
    segments, comments = (), (comment,) if comment else ()
    if format == "JPEG":  # Pillow gives the last comment alone
        every, comments = _jpeg_segments(data)
        segments = tuple(one for one in every if not one[1].startswith(_SEGMENTS))
        if not info.get("icc_profile") and any(c.startswith(_ICC_SEGMENT) for _, c in every):
            dropped += ("a damaged ICC profile",)
    if image.format == "JPEG" and (end := jpeg_end(data)) is not None:
        behind = data[end + 2 :].strip(b"\0")  # padding is nothing
        dropped += (f"{len(behind):,} bytes behind the image",) if behind else ()
    if image.format == "MPO":
        dropped += (f"{getattr(image, 'n_frames', 2) - 1} further images (depth, gain map)",)
    if format == "TIFF":
        dropped += _left_of_tiff(image.tag_v2, pages=getattr(image, "n_frames", 1))
    if format == "AVIF" and _is_deep_avif(data):
        dropped += ("the samples' bits below 8",)
    return Notes(
        format=format,
        lossless=not (format == "JPEG" or _lossy_webp(data)),
        exif=exif,
        icc=info.get("icc_profile") or None,
        xmp=xmp.encode() if isinstance(xmp, str) else xmp or None,
        dpi=_positive(dpi),
        png_chunks=chunks,
        jpeg_segments=segments,
        comments=tuple(c.encode() if isinstance(c, str) else c for c in comments),
        dropped=dropped,
    )


def read_tiff_notes(data: bytes) -> Notes:
    """The notes of a TIFF of one page that Pillow has no mode for."""
    stored = Image.Exif()
    stored.load(data)  # EXIF is a TIFF's directory
    return Notes(
        format="TIFF",
        exif=_descriptive(stored).tobytes().removeprefix(b"Exif\0\0") or None,
        icc=_content(stored.get(34675)),
        xmp=_content(stored.get(700)),
        dpi=_positive(_exif_resolution(data)),
        dropped=_left_of_tiff(stored, pages=1),
    )


def _content(value: Any) -> bytes | None:
    """A tag's bytes, which some programs declare as text."""
    value = value.encode("latin-1") if isinstance(value, str) else value
    return value if isinstance(value, bytes) else None


def _positive(dpi: Any) -> tuple[float, float] | None:
    """A resolution, where the file states a possible one."""
    return (float(dpi[0]), float(dpi[1])) if dpi and all(d > 0 for d in dpi) else None


def _left_of_tiff(tags: Mapping[int, Any], *, pages: int) -> tuple[str, ...]:
    """The parts of a TIFF that are not taken over."""
    samples = int(tags.get(277, 1))
    # Of no stated kind: infrared, for example.
    extra = samples - meant_channels(tags, samples)
    dropped = [f"{extra} samples a pixel of no stated kind"] if extra > 0 else []
    unknown = [str(tag) for tag in tags if tag not in TIFF_STORAGE and tag not in TIFF_NOTES]
    dropped += [f"the tags {first_of(unknown, 8)}"] if unknown else []
    # ImageJ's size of a pixel; 1 is what tifffile writes where there is none.
    if tags.get(296, 2) == 1 and (tags.get(282, 1), tags.get(283, 1)) != (1, 1):
        dropped.append("the resolution without a unit")
    return (*dropped, "previews") if pages > 1 or _PREVIEW in tags else tuple(dropped)


def _descriptive(stored: Image.Exif) -> Image.Exif:
    exif = Image.Exif()
    for tag in TIFF_NOTES:
        value = stored.get_ifd(tag) or None if tag in _DIRECTORIES else stored.get(tag)
        if value is not None:
            exif[tag] = as_stored(value)
    return exif


class _Text(str):
    """Text of a file, in whatever encoding: Pillow reads Latin-1, and writes all but ASCII as ?."""

    def encode(self, *_: str) -> bytes:
        return super().encode("latin-1")


def as_stored(value: Any) -> Any:
    """A tag's value, or a directory of them, whose texts Pillow writes byte for byte."""
    if isinstance(value, dict):
        return {tag: as_stored(inner) for tag, inner in value.items()}
    return _Text(value) if isinstance(value, str) else value


def exif_tags(content: bytes | None) -> tuple[dict[int, Any], tuple[str, ...]]:
    """The tags of EXIF that can be read, and a list of the parts that cannot.

    Those of its directories are dictionaries; see `as_stored`.
    """
    exif = Image.Exif()
    if not content:
        return {}, ()
    try:
        exif.load(content)
        tags = {tag: as_stored(value) for tag, value in exif.items()}
    except Exception:  # Pillow raises SyntaxError, struct.error, …
        tags = {}
    is_empty = content[8:10] == bytes(2)  # no tags where they begin
    damaged = [] if tags or is_empty else ["damaged EXIF"]
    for tag in (*_DIRECTORIES, _INTEROPERABILITY):
        holder = tags.get(0x8769, {}) if tag == _INTEROPERABILITY else tags
        if (pointer := holder.pop(tag, None)) is None:
            continue
        try:
            inner = exif.get_ifd(tag)
            is_empty = content[pointer : pointer + 2] == bytes(2)
        except Exception:
            inner, is_empty = None, False
        if inner:
            holder[tag] = as_stored(inner)
        elif not is_empty:
            damaged.append(f"a damaged part of EXIF (tag {tag})")
    return tags, tuple(damaged)


def _exif_resolution(exif: bytes | None) -> tuple[float, float] | None:
    if exif is None:
        return None
    tags: Any = Image.Exif()
    try:
        tags.load(exif)
        factor = {2: 1.0, 3: 2.54}[tags.get(296, 2)]
        return float(tags[282]) * factor, float(tags[283]) * factor
    except Exception:  # the orientation is missing, or the EXIF is damaged
        return None


def with_resolution(notes: Notes) -> bytes:
    """EXIF for formats that say a resolution only there."""
    if notes.dpi is None or _exif_resolution(notes.exif) is not None:
        return notes.exif or b""
    exif = Image.Exif()
    for tag, value in exif_tags(notes.exif)[0].items():
        exif[tag] = value
    exif[282], exif[283], exif[296] = *notes.dpi, 2
    return exif.tobytes().removeprefix(b"Exif\0\0")


def _is_deep_avif(data: bytes) -> bool:
    at = data.find(b"av1C")  # AV1 codec configuration: high_bitdepth is a bit of its third byte
    return at >= 0 and len(data) > at + 6 and bool(data[at + 6] & 0x40)


def _lossy_webp(data: bytes) -> bool:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return False
    at = 12  # the samples' chunk comes after a profile of any length
    while len(name := data[at : at + 4]) == 4 and name not in (b"VP8 ", b"VP8L"):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        # An animation's frame, here the only one, holds chunks of its own after its place.
        at += 24 if name == b"ANMF" else 8 + length + length % 2
    return name != b"VP8L"


def _png_notes(data: bytes, dpi: Any) -> tuple[tuple[tuple[bytes, bytes], ...], tuple[str, ...]]:
    """The chunks that are kept, and remarks on the others."""
    chunks, dropped = [], {}
    for name, at, length in png_chunks(io.BytesIO(data)):
        content = data[at : at + length]
        if (name in _PNG_NOTES and not content.startswith(_PNG_PROFILES)) or (
            name == b"pHYs" and dpi is None and length == 9  # a shape of pixels, and no size
        ):
            chunks.append((name, content))
        elif name not in (*_PNG_NOTES, *_PNG_READ):
            dropped[name.decode("latin-1")] = None
    return tuple(chunks), (f"the chunks {first_of(dropped, 8)}",) if dropped else ()


def _jpeg_segments(data: bytes) -> tuple[tuple[tuple[int, bytes], ...], tuple[bytes, ...]]:
    """Application segments before the samples, and comments, in order."""
    segments, comments, at = [], [], 2
    while (marker := _MARKER.match(data, at)) and len(data) >= marker.end() + 2:
        code, at = data[marker.end() - 1], marker.end()
        length = int.from_bytes(data[at : at + 2], "big")
        if code == 0xDA or length < 2:
            break
        content = data[at + 2 : at + length]
        # Not JFIF's, which is written anew, nor Adobe's, which says how colours are encoded.
        if 0xE1 <= code <= 0xED:
            segments.append((code, content))
        if code == 0xFE:
            comments.append(content)
        at += length
    return tuple(segments), tuple(comments)


def lost_in(notes: Notes, format: str) -> tuple[str, ...]:
    """The notes that a file of this format cannot hold."""
    lost = list(notes.dropped)
    if format != "JPEG" and notes.jpeg_segments:
        lost.append("JPEG's application segments")
    if format != "PNG" and (texts := {name for name, _ in notes.png_chunks}):
        lost.append(f"the chunks {first_of(sorted(name.decode('latin-1') for name in texts), 8)}")
    if format == "TIFF" or (format == "WEBP" and with_resolution(notes) != notes.exif):
        lost += exif_tags(notes.exif)[1]
    if format in ("WEBP", "TIFF") and notes.comments:
        lost.append("the comment")
    if format == "JPEG":
        for name, content in (("EXIF", notes.exif), ("XMP", notes.xmp)):
            if content and len(content) >= JPEG_SEGMENT:
                lost.append(f"{name} of {len(content):,} bytes, more than a JPEG holds")
    return tuple(lost)


_MARKER = re.compile(rb"\xff++[^\xff]")
"""Any number of bytes FF may stand before a marker's code."""
JPEG_SEGMENT = 65500
"""Bytes of EXIF or XMP that a JPEG holds."""


def with_size(notes: Notes, *, height: int, width: int) -> Notes:
    """The notes with EXIF's own statement of the size, if it makes one, brought up to date."""
    if not notes.exif:
        return notes
    exif = bytearray(notes.exif)
    try:
        order = {b"II": "<", b"MM": ">"}[bytes(exif[:2])]
        (first,) = struct.unpack_from(order + "I", exif, 4)
        pointers = [at for _, at in entries(exif, order, first, (0x8769,))]
        inner = [struct.unpack_from(order + "I", exif, at + 8)[0] for at in pointers]
        sizes = {0x0100: width, 0x0101: height, 0xA002: width, 0xA003: height}
        for directory in (first, *inner):
            for tag, entry in entries(exif, order, directory, tuple(sizes)):
                # Type LONG: SHORT may be too narrow for the new size, and the field holds both.
                struct.pack_into(order + "HII", exif, entry + 2, 4, 1, sizes[tag])
    except (KeyError, struct.error):  # damaged EXIF is handed on as it came
        return notes
    return replace(notes, exif=bytes(exif))


def entries(
    exif: bytearray, order: str, ifd: int, tags: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """(tag, offset) of some tags of one image file directory."""
    (count,) = struct.unpack_from(order + "H", exif, ifd)
    for index in range(count):
        at = ifd + 2 + 12 * index
        (tag,) = struct.unpack_from(order + "H", exif, at)
        if tag in tags:
            yield tag, at
