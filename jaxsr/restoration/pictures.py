"""Reads a picture file without losing anything of it: samples, depth, alpha, EXIF, colour profile.

Samples are (height, width, channels) uint8 or uint16 as they are stored: EXIF orientation is kept
as a note and not applied, alpha is not premultiplied, no profile is applied. Palettes are looked up
(the restored picture has colours that the palette lacks), bilevel becomes gray.

Pillow decodes, restricted to the formats below; for what other decoders take over see
`jaxsr.data.picture_file`.
"""

import io
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped
from PIL import Image, UnidentifiedImageError

from jaxsr.data.picture_file import (
    ORIENTATION,
    UnreadablePicture,
    is_tiff,
    is_white_zero,
    opencv_samples,
    read_file,
    stored_size,
    tifffile_samples,
)
from jaxsr.data.picture_limits import MAX_PIXELS, too_large
from jaxsr.errors import one_line

Kind = Literal["gray", "gray-alpha", "rgb", "rgb-alpha", "cmyk"]

CHANNELS: dict[Kind, int] = {"gray": 1, "gray-alpha": 2, "rgb": 3, "rgb-alpha": 4, "cmyk": 4}

_DEEP_KINDS: tuple[Kind, ...] = ("gray", "gray-alpha", "rgb", "rgb-alpha")

# Pillow's other decoders stay out: some start programs, and none of them is asked for.
_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")

# Chunks that say what a PNG's samples mean or what the picture is, not how it is encoded.
_PNG_NOTES = (
    b"gAMA",
    b"cHRM",
    b"sRGB",
    b"cICP",
    b"mDCV",
    b"cLLI",
    b"tEXt",
    b"zTXt",
    b"iTXt",
    b"tIME",
)


_PNG_PROFILES = (b"XML:com.adobe.xmp\0", b"Raw profile type")


class PictureError(UnreadablePicture):
    """A file that is no picture this reads or writes; the message is the reason, a short phrase."""


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What a picture file holds besides samples."""

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

    @property
    def orientation(self) -> int:
        """EXIF orientation, 1 to 8; 1 where none is said."""
        if not self.exif:
            return 1
        exif = Image.Exif()
        try:
            exif.load(self.exif)
            value = exif.get(ORIENTATION, 1)
        except Exception:  # damaged EXIF says nothing
            return 1
        return value if value in range(1, 9) else 1


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A decoded picture."""

    pixels: Shaped[np.ndarray, "h w c"]
    """uint8 or uint16 samples as stored."""
    kind: Kind
    """What the channels are."""
    notes: Notes = field(default_factory=Notes)
    """Everything else."""


_INVERSE = {6: 8, 8: 6}
"""Orientation that undoes another; every other one undoes itself."""


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Samples turned as EXIF's orientation asks, for showing and comparing."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 7, 6):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def read_picture(path: Path, *, max_pixels: int = MAX_PIXELS) -> Picture:
    """Decodes a still picture whole.

    Args:
      path: PNG, JPEG, WebP, TIFF, BMP or single-frame GIF, by content and not by name.
      max_pixels: more than this is refused before anything is decoded.

    Raises:
      PictureError: not a picture, damaged, cut short, animated, or of samples other than 8 or 16
        bits.
      OSError: the file cannot be opened.
    """
    try:
        data = read_file(path, max_pixels=max_pixels)
    except UnreadablePicture as error:
        raise PictureError(str(error)) from None
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_header(image, max_pixels)
            notes = _notes(image, data)  # before loading, which turns a TIFF and drops the tag
            pixels, kind = _samples(image, data, max_pixels)
    except UnreadablePicture as error:
        raise PictureError(str(error)) from error
    except UnidentifiedImageError:
        if is_tiff(data):
            return _unusual_tiff(data, max_pixels)
        raise PictureError("not a PNG, JPEG, WebP, TIFF, BMP or GIF picture") from None
    except Image.DecompressionBombError as error:
        raise PictureError(f"{one_line(error)}: {_ADVICE}") from None
    except MemoryError:
        raise PictureError("out of memory while decoding") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, IndexError …
        raise PictureError(one_line(error)) from error
    return Picture(pixels=np.ascontiguousarray(pixels), kind=kind, notes=notes)


def picture_size(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int] | None:
    """(height, width) as stored, from the header; None where `read_picture` will say why not."""
    try:
        with path.open("rb") as file, Image.open(file, formats=_FORMATS) as image:
            size = stored_size(image)
            return None if too_large(size, max_pixels=max_pixels) else size
    except Exception:  # the same file is read again, and refused with a reason then
        return None


_ADVICE = "raise --max-pixels if the file is what it says"


def _check_header(image: Image.Image, max_pixels: int) -> None:
    if reason := too_large(stored_size(image), max_pixels=max_pixels):
        raise PictureError(f"{reason}: {_ADVICE}")
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if frames > 1:
        what = "pages" if image.format == "TIFF" else "frames"
        raise PictureError(f"{frames} {what}: restore takes stills and videos; split it first")


def _samples(image: Image.Image, data: bytes, max_pixels: int) -> tuple[np.ndarray, Kind]:
    """Samples in their own depth, and what they are."""
    if image.format == "TIFF":
        bits, sample_format = image.tag_v2.get(258, (1,)), image.tag_v2.get(339, (1,))
        _check_tiff(max(bits), sample_format)
        orientation = int(image.tag_v2.get(274, 1))
        size = stored_size(image)
        image.load()  # refuses a file cut short, which the decoders below may fill up
        if max(bits) == 16 and len(bits) > 1:
            return _deep(image, _deep_tiff(image, data, max_pixels), size)
        pixels, kind = _shallow(image)
        return upright(pixels, _INVERSE.get(orientation, orientation)), kind
    image.load()
    if image.format == "PNG" and data[24] == 16 and image.mode != "I;16":
        pixels = _by_opencv(data)
        if data[25] == 4:  # gray with alpha, for which OpenCV repeats the gray
            pixels = pixels[..., (0, 3)]
        return _deep(image, pixels, stored_size(image))
    return _shallow(image)


def _check_tiff(depth: int, sample_format: tuple[int, ...]) -> None:
    if depth not in (1, 2, 4, 8, 16) or any(value not in (1, 4) for value in sample_format):
        raise PictureError(f"{depth}-bit samples that are not unsigned 8 or 16 bits")


def _shallow(image: Image.Image) -> tuple[np.ndarray, Kind]:
    mode = image.mode
    if mode.startswith("I;16"):
        gray = np.asarray(image).astype(np.uint16)[..., None]  # in this machine's byte order
        if is_white_zero(image):
            gray = 65535 - gray
        key = image.info.get("transparency")
        return (gray, "gray") if key is None else (_keyed(gray, (key,)), "gray-alpha")
    if mode in ("I", "F"):
        raise PictureError("32-bit samples; restore takes 8 or 16 bits")
    if mode in ("LAB", "HSV"):
        raise PictureError(f"colour model {mode}; convert it to RGB first")
    if mode == "CMYK":
        return np.asarray(image), "cmyk"
    alpha = mode in ("LA", "La", "RGBA", "RGBa", "PA")
    alpha |= mode != "1" and "transparency" in image.info
    # A profile for colours would not fit gray samples, so such a palette stays colour.
    gray = mode in ("1", "L", "LA", "La") or (mode == "P" and not alpha and _gray_palette(image))
    target = ("L" if gray else "RGB") + ("A" if alpha else "")
    kinds: dict[str, Kind] = {"L": "gray", "LA": "gray-alpha", "RGB": "rgb", "RGBA": "rgb-alpha"}
    pixels = np.asarray(image if mode == target else image.convert(target))
    return (pixels[..., None] if pixels.ndim == 2 else pixels), kinds[target]


def _gray_palette(image: Any) -> bool:
    colours = np.asarray(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
    used = colours[[value for _, value in image.getcolors(256)]]
    return bool((used == used[:, :1]).all()) and not image.info.get("icc_profile")


def _deep(image: Image.Image, pixels: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, Kind]:
    """Names the channels of 16-bit samples that Pillow only identified."""
    if pixels.dtype != np.uint16 or pixels.shape[:2] != size:
        raise PictureError("16-bit samples that could not be decoded")
    pixels = pixels.reshape(*size, -1)
    channels, key = pixels.shape[2], image.info.get("transparency")
    if channels == 3 and key is not None and image.format == "PNG":
        return _keyed(pixels, key), "rgb-alpha"
    if channels > 4:
        raise PictureError(f"{channels} channels")
    return pixels, "cmyk" if channels == 4 and image.mode == "CMYK" else _DEEP_KINDS[channels - 1]


def _unturned(data: bytes) -> bytes:
    """The TIFF with its orientation tag set to 1: some releases of OpenCV obey it, some do not."""
    patched = bytearray(data)
    order = "<" if data[:2] == b"II" else ">"
    (first,) = struct.unpack_from(order + "I", patched, 4)
    for _, at in _entries(patched, order, first, (274,)):
        struct.pack_into(order + "H", patched, at + 8, 1)
    return bytes(patched)


def _unusual_tiff(data: bytes, max_pixels: int) -> Picture:
    """A TIFF that Pillow has no mode for: 16-bit gray with alpha is one that people have."""
    import tifffile

    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages[0]
            if reason := too_large((page.imagelength, page.imagewidth), max_pixels=max_pixels):
                raise PictureError(f"{reason}: {_ADVICE}")
            _check_tiff(page.bitspersample, (page.sampleformat,))
            channels = page.samplesperpixel
            if channels not in (1, 2, 3, 4) or len(file.pages) != 1:
                raise PictureError(f"{channels} channels on {len(file.pages)} pages")
            pixels = tifffile_samples(page, max_pixels=max_pixels)
            exif = Image.Exif()
            for tag in _TIFF_NOTES:
                if tag in page.tags and isinstance(page.tags[tag].value, str | int):
                    exif[tag] = page.tags[tag].value
            icc = page.tags.get(34675)
    except PictureError:
        raise
    except Exception as error:
        raise PictureError(one_line(error)) from error
    notes = Notes(
        format="TIFF",
        exif=exif.tobytes().removeprefix(b"Exif\0\0") if len(exif) else None,
        icc=bytes(icc.value) if icc is not None else None,
    )
    if pixels.dtype.newbyteorder("=") not in (np.uint8, np.uint16):
        raise PictureError(f"{pixels.dtype} samples; restore takes 8 or 16 bits")
    pixels = np.array(pixels, pixels.dtype.newbyteorder("="), order="C")
    if page.photometric == 0:  # white is zero
        pixels[..., :1] = np.iinfo(pixels.dtype).max - pixels[..., :1]
    return Picture(pixels=pixels, kind=_DEEP_KINDS[channels - 1], notes=notes)


def _keyed(pixels: np.ndarray, key: tuple[int, ...]) -> np.ndarray:
    """Adds the alpha channel that a PNG's one transparent colour stands for."""
    clear = (pixels == np.asarray(key, np.uint16)).all(-1, keepdims=True)
    return np.concatenate([pixels, np.where(clear, 0, 65535).astype(np.uint16)], -1)


def _by_opencv(data: bytes) -> np.ndarray:
    pixels = opencv_samples(data)
    if pixels is None:
        raise PictureError("16-bit samples that could not be decoded")
    return pixels


def _deep_tiff(image: Image.Image, data: bytes, max_pixels: int) -> np.ndarray:
    planar, samples = image.tag_v2.get(284, 1) == 2, len(image.tag_v2[258])
    if planar or samples == 2 or image.mode == "CMYK":
        import tifffile

        with tifffile.TiffFile(io.BytesIO(data)) as file:
            # The page and not the series, whose shape a description may state at will.
            pixels = tifffile_samples(file.pages.first, max_pixels=max_pixels)
    else:
        pixels = _by_opencv(_unturned(data))
    if image.tag_v2.get(338) == (1,) and pixels.shape[-1] in (2, 4):  # premultiplied
        alpha = np.maximum(pixels[..., -1:].astype(np.float64), 1)
        colour = np.rint(pixels[..., :-1] * (65535 / alpha)).clip(0, 65535).astype(np.uint16)
        pixels = np.concatenate([colour, pixels[..., -1:]], -1)
    return pixels


def _notes(image: Any, data: bytes) -> Notes:
    info = image.info
    exif = info.get("exif")
    if exif is None and (image.format == "TIFF" or "Raw profile type exif" in info):
        exif = _descriptive(image).tobytes()
    if exif is not None:
        exif = exif.removeprefix(b"Exif\x00\x00") or None
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp")
    dpi = info.get("dpi")
    return Notes(
        format={"MPO": "JPEG"}.get(image.format, image.format),
        lossless=not (image.format in ("JPEG", "MPO") or _lossy_webp(data)),
        exif=exif,
        icc=info.get("icc_profile") or None,
        xmp=xmp.encode() if isinstance(xmp, str) else xmp or None,
        dpi=(float(dpi[0]), float(dpi[1])) if dpi and all(d > 0 for d in dpi) else None,
        png_chunks=_png_chunks(data) if image.format == "PNG" else (),
    )


# What a TIFF says of the picture; its other tags say how the samples are stored.
_TIFF_NOTES = (270, 271, 272, 274, 305, 306, 315, 316, 33432, 0x8769, 0x8825)


def _descriptive(image: Image.Image) -> Image.Exif:
    stored, exif = image.getexif(), Image.Exif()
    for tag in _TIFF_NOTES:
        value = stored.get_ifd(tag) or None if tag in (0x8769, 0x8825) else stored.get(tag)
        if value is not None:
            exif[tag] = value
    return exif


def _lossy_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP" and b"VP8L" not in data[12:4096]


def _png_chunks(data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    chunks, at = [], 8
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + length]
        if name in _PNG_NOTES and not content.startswith(_PNG_PROFILES):
            chunks.append((name, content))
        at += length + 12
    return tuple(chunks)


def with_size(notes: Notes, *, height: int, width: int) -> Notes:
    """The notes with EXIF's own statement of the size, if it makes one, brought up to date."""
    if not notes.exif:
        return notes
    exif = bytearray(notes.exif)
    try:
        order = {b"II": "<", b"MM": ">"}[bytes(exif[:2])]
        (first,) = struct.unpack_from(order + "I", exif, 4)
        for _, at in _entries(exif, order, first, (0x8769,)):
            (inner,) = struct.unpack_from(order + "I", exif, at + 8)
            for tag, entry in _entries(exif, order, inner, (0xA002, 0xA003)):
                value = width if tag == 0xA002 else height
                # Type LONG: SHORT may be too narrow for the new size, and the field holds both.
                struct.pack_into(order + "HII", exif, entry + 2, 4, 1, value)
    except (KeyError, struct.error):  # damaged EXIF is handed on as it came
        return notes
    return replace(notes, exif=bytes(exif))


def _entries(exif: bytearray, order: str, ifd: int, tags: tuple[int, ...]):
    """(tag, offset) of some tags of one image file directory."""
    (count,) = struct.unpack_from(order + "H", exif, ifd)
    for index in range(count):
        at = ifd + 2 + 12 * index
        (tag,) = struct.unpack_from(order + "H", exif, at)
        if tag in tags:
            yield tag, at
