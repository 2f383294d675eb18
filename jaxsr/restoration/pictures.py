"""Reads an image file without losing anything of it: samples, depth, alpha, EXIF, colour profile.

Samples are (height, width, channels) uint8 or uint16 as they are stored: EXIF orientation is kept
as a note and not applied, alpha is not premultiplied, no profile is applied. Palettes are looked up
(the restored image has colours that the palette lacks), bilevel becomes gray.

Pillow decodes, restricted to the formats below; for files read by other decoders see
`jaxsr.data.picture_file`.
"""

import io
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped
from PIL import Image, UnidentifiedImageError

from jaxsr.data.picture_file import (
    UnreadablePicture,
    check_still,
    gray_key,
    is_tiff,
    is_white_zero,
    load_whole,
    meant_channels,
    open_image,
    opencv_samples,
    read_file,
    stored_size,
    tifffile_samples,
    with_gray_key,
)
from jaxsr.data.picture_limits import MAX_PIXELS, too_large
from jaxsr.errors import one_line
from jaxsr.restoration.notes import Notes, entries, read_notes, read_tiff_notes

Kind = Literal["gray", "gray-alpha", "rgb", "rgb-alpha", "cmyk"]

CHANNELS: dict[Kind, int] = {"gray": 1, "gray-alpha": 2, "rgb": 3, "rgb-alpha": 4, "cmyk": 4}

_DEEP_KINDS: tuple[Kind, ...] = ("gray", "gray-alpha", "rgb", "rgb-alpha")

# Whose samples and notes are kept.
_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "AVIF")


class PictureError(UnreadablePicture):
    """An image file that cannot be read or written; the message is the reason, a short phrase."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A decoded image."""

    pixels: Shaped[np.ndarray, "h w c"]
    """uint8 or uint16 samples as stored."""
    kind: Kind
    """Meaning of the channels."""
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
    """Decodes a still image whole.

    Args:
      path: PNG, JPEG, WebP, TIFF, BMP or single-frame GIF, by content and not by name.
      max_pixels: more than this is refused before anything is decoded.

    Raises:
      PictureError: not an image, damaged, cut short, animated, or of samples other than 8 or 16
        bits.
      OSError: the file cannot be opened.
    """
    try:
        data = read_file(path, max_pixels=max_pixels)
    except UnreadablePicture as error:
        raise PictureError(str(error)) from None
    try:
        with open_image(io.BytesIO(data), _FORMATS) as image:
            _check_header(image, max_pixels)
            if image.format == "PNG":
                load_whole(image, data)  # notes may lie behind the samples
            notes = read_notes(image, data)  # before a TIFF is loaded, which turns it
            pixels, kind = _samples(image, data, max_pixels)
    except UnreadablePicture as error:
        raise PictureError(str(error)) from error
    except UnidentifiedImageError:
        if is_tiff(data):
            return _unusual_tiff(data, max_pixels)
        raise PictureError("not a PNG, JPEG, WebP, TIFF, BMP or GIF image") from None
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
        with path.open("rb") as file, open_image(file, _FORMATS) as image:
            size = stored_size(image)
            return None if too_large(size, max_pixels=max_pixels) else size
    except Exception:  # the same file is read again, and refused with a reason then
        return None


_ADVICE = "raise --max-pixels if you trust the file"


def _check_header(image: Image.Image, max_pixels: int) -> None:
    if reason := too_large(stored_size(image), max_pixels=max_pixels):
        raise PictureError(f"{reason}: {_ADVICE}")
    check_still(image)


def _samples(image: Image.Image, data: bytes, max_pixels: int) -> tuple[np.ndarray, Kind]:
    """Samples in their own depth, and their kind."""
    if image.format == "TIFF":
        bits, sample_format = image.tag_v2.get(258, (1,)), image.tag_v2.get(339, (1,))
        _check_tiff(max(bits), sample_format)
        orientation = int(image.tag_v2.get(274, 1))
        size = stored_size(image)
        in_planes = image.tag_v2.get(284) == 2 and len(bits) > 1 and max(bits) >= 8
        if in_planes and image.tag_v2.get(262) in (1, 2, 5):  # which Pillow has no decoder for
            return _deep(image, _deep_tiff(image, data, max_pixels), size)
        load_whole(image, data)  # refuses truncated files, which the decoders below may fill up
        if max(bits) == 16 and len(bits) > 1:
            return _deep(image, _deep_tiff(image, data, max_pixels), size)
        pixels, kind = _shallow(image, data)
        return upright(pixels, _INVERSE.get(orientation, orientation)), kind
    if image.format != "PNG":
        load_whole(image, data)
    image = with_gray_key(image, data)
    if image.format == "PNG" and data[24] == 16 and image.mode != "I;16":
        pixels = _by_opencv(data)
        if data[25] == 4:  # gray with alpha, for which OpenCV repeats the gray
            pixels = pixels[..., (0, 3)]
        return _deep(image, pixels, stored_size(image))
    return _shallow(image, data)


def _check_tiff(depth: int, sample_format: tuple[int, ...]) -> None:
    if depth not in (1, 2, 4, 8, 16) or any(value not in (1, 4) for value in sample_format):
        raise PictureError(f"{depth}-bit samples that are not unsigned 8 or 16 bits")


def _shallow(image: Image.Image, data: bytes) -> tuple[np.ndarray, Kind]:
    mode = image.mode
    if mode.startswith("I;16"):
        gray = np.asarray(image).astype(np.uint16)[..., None]  # in this machine's byte order
        if is_white_zero(image):
            gray = 65535 - gray
        key = gray_key(data)
        return (gray, "gray") if key is None else (_keyed(gray, (key,)), "gray-alpha")
    if mode in ("I", "F"):
        raise PictureError("32-bit samples; restore takes 8 or 16 bits")
    if mode in ("LAB", "HSV"):
        raise PictureError(f"colour model {mode}; convert it to RGB first")
    if mode == "CMYK":
        return np.asarray(image), "cmyk"
    alpha = mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info
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
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.shape[:2] != size:
        raise PictureError("samples that could not be decoded")
    pixels = pixels.reshape(*size, -1)
    if image.format == "TIFF":
        pixels = pixels[..., : meant_channels(image.tag_v2, pixels.shape[2])]
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
    for _, at in entries(patched, order, first, (274,)):
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
            tags = {tag.code: tag.value for tag in page.tags}
            channels = meant_channels(tags, channels)
            pixels = pixels[..., :channels]
            notes = read_tiff_notes(data)
    except PictureError:
        raise
    except Exception as error:
        raise PictureError(one_line(error)) from error
    if pixels.dtype.newbyteorder("=") not in (np.uint8, np.uint16):
        raise PictureError(f"{pixels.dtype} samples; restore takes 8 or 16 bits")
    pixels = np.array(pixels, pixels.dtype.newbyteorder("="), order="C")
    if page.photometric == 0:  # white is zero
        pixels[..., :1] = np.iinfo(pixels.dtype).max - pixels[..., :1]
    pixels = _straight(pixels, tags.get(338))
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
    planar, samples = image.tag_v2.get(284, 1) == 2, image.tag_v2.get(277, 1)
    if planar or samples == 2 or image.mode == "CMYK":
        import tifffile

        with tifffile.TiffFile(io.BytesIO(data)) as file:
            # The page and not the series, whose shape a description may state at will.
            pixels = tifffile_samples(file.pages.first, max_pixels=max_pixels)
    else:
        pixels = _by_opencv(_unturned(data))
    return _straight(pixels, image.tag_v2.get(338))


def _straight(pixels: np.ndarray, extra_samples: Any) -> np.ndarray:
    """Samples of a TIFF whose colours are divided by alpha where they are multiplied by it."""
    first = extra_samples[:1] if isinstance(extra_samples, tuple) else (extra_samples,)
    if first != (1,) or pixels.shape[-1] not in (2, 4):
        return pixels
    alpha = np.maximum(pixels[..., -1:].astype(np.float64), 1)
    peak = np.iinfo(pixels.dtype).max
    colour = np.rint(pixels[..., :-1] * (peak / alpha)).clip(0, peak).astype(pixels.dtype)
    return np.concatenate([colour, pixels[..., -1:]], -1)
