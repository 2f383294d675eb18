"""Decodes image files to 8-bit RGB arrays, or describes their fault.

`picture_file` decides which decoder reads a file; OpenCV also reads formats that Pillow does not
know.

Images that are not 8-bit RGB are converted: EXIF orientation is applied; 16 bits are rounded to 8
(65535 to 255); gray is repeated into three channels; palettes are looked up; transparency is laid
over white, as viewers show it; CMYK is converted without its colour profile, and other profiles are
ignored, too. Floating-point samples must lie in 0…1. Animations and TIFFs of several pages are
refused.
"""

import io
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from jaxsr.data.picture_file import (
    ORIENTATION,
    ChangedFileError,
    UnreadablePicture,
    check_still,
    gray_key,
    has_late_notes,
    is_tiff,
    is_white_zero,
    load_whole,
    meant_channels,
    not_a_still,
    open_image,
    opencv_samples,
    read_file,
    stored_size,
    tifffile_samples,
    with_gray_key,
)
from jaxsr.data.picture_limits import too_large
from jaxsr.errors import one_line

# A file with one of these extensions claims to be an image: if it is not, that is an error. Files
# with other endings (labels, checksums, readmes) are images only if their content says so.
_ENDINGS = """
apng avif bmp dds dib exr gif hdr heic heif icns ico j2k jfif jp2 jpe jpeg jpg jpx jxl mpo pbm pcx
pfm pgm pic png pnm ppm psd qoi ras sgi sr tga tif tiff webp
"""
PICTURE_ENDINGS = frozenset("." + ending for ending in _ENDINGS.split())

# First bytes of the formats that turn up under foreign or missing names.
_PILLOW_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")
_SIGNATURES = (
    *_PILLOW_SIGNATURES[:-1],
    b"II*\x00",
    b"MM\x00*",
    b"\x00\x00\x00\x0cjP  ",
    b"\xffO\xffQ",
    b"v/1\x01",
    b"qoif",
    b"8BPS",
)


def claims_to_be_picture(path: Path) -> bool:
    """Whether `path` should be read as an image, by its ending or else by its first bytes."""
    if path.suffix.lower() in PICTURE_ENDINGS:
        return True
    with path.open("rb") as file:
        head = file.read(12)
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    is_avif = head[4:12] in (b"ftypavif", b"ftypavis")
    return is_webp or is_avif or head.startswith(_SIGNATURES)


def decode_rgb(
    path: Path, *, cut: Callable[[Image.Image], Image.Image] = lambda image: image
) -> UInt8[np.ndarray, "h w 3"]:
    """Reads an image file as 8-bit RGB, as the module's docstring says.

    Args:
      path: of the file.
      cut: makes a part of the upright image, where no more is needed: all else is not converted.

    Raises:
      UnreadablePicture: not an image, truncated, or of a kind that has no RGB form.
      ChangedFileError: `cut` raised it.
      OSError: the file cannot be opened.
    """
    data = read_file(path)
    try:
        with open_image(io.BytesIO(data)) as image:
            _check_size(stored_size(image))
            check_still(image)
            # The raw mode, gone after loading, tells 16-bit colour that Pillow would cut.
            deep = any(";16" in str(tile.args) for tile in image.tile)
            planes = isinstance(image, TiffImageFile) and _in_planes(image)
            if not planes:
                load_whole(image, data)  # also in the cases below, as others fill truncated files
            if planes:
                narrow = _by_tifffile(data)
            elif deep and image.mode in ("RGB", "RGBA", "RGBX", "LA"):
                narrow = _by_opencv(data)
                is_tiff_of_4 = isinstance(image, TiffImageFile) and narrow.mode == "RGBA"
                if is_tiff_of_4 and meant_channels(image.tag_v2, 4) == 3:
                    narrow = narrow.convert("RGB")  # OpenCV takes any fourth sample for alpha
            elif image.mode.startswith("I") or image.mode == "F":
                pixels = np.asarray(image)
                if image.mode.startswith("I;16") and is_white_zero(image):
                    pixels = 65535 - pixels
                narrow = Image.fromarray(_narrow(pixels))
                if (key := gray_key(data)) is not None:
                    narrow.putalpha(Image.fromarray(np.where(pixels == key, 0, 255).astype("u1")))
            else:
                narrow = with_gray_key(image, data)
            if narrow is not image:  # exif_transpose looks for the tag on the image it turns
                narrow.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
            # In place, and _to_rgb does not copy RGB images: a copy takes as long as unpacking.
            ImageOps.exif_transpose(narrow, in_place=True)
            return np.asarray(_to_rgb(cut(narrow)))
    except (UnreadablePicture, ChangedFileError):
        raise
    except UnidentifiedImageError:
        pass
    except MemoryError:
        raise UnreadablePicture("out of memory while decoding") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, IndexError …
        raise UnreadablePicture(one_line(error)) from error
    try:
        return np.asarray(_to_rgb(cut(_unidentified(data))))
    except (UnreadablePicture, ChangedFileError):
        raise
    except Exception as error:
        raise UnreadablePicture(one_line(error)) from error


def is_deep(path: Path) -> bool:
    """Whether an image has more than 8 bits a sample, where Pillow knows its format."""
    try:
        with path.open("rb") as file, open_image(file) as image:
            return image.mode[0] in "IF" or any(";16" in str(tile.args) for tile in image.tile)
    except Exception:  # as in `decode_rgb`, which names the fault
        return False


FEW_LEVELS = 64
"""Levels of a byte; fewer, of samples of more than 8 bits, may lose what an image shows."""


def levels_of(images: Iterable[np.ndarray]) -> int:
    """Levels of a byte from the least to the greatest: the most of several images."""
    return max(int(image.max()) - int(image.min()) + 1 for image in images)


def has_few_levels(path: Path, image: UInt8[np.ndarray, "h w 3"]) -> bool:
    """Whether an image of more than 8 bits a sample became fewer than `FEW_LEVELS`."""
    return levels_of([image]) < FEW_LEVELS and is_deep(path)


def few_levels_note(images: str, *, levels: int = FEW_LEVELS - 1) -> str:
    """A sentence on images, described in a few words, that became at most so many levels."""
    return (
        f"{images}: samples of more than 8 bits become {levels} of 256 levels or fewer, and faint "
        "things may be lost: stretch them over their whole range first"
    )


def orientation_of(path: Path) -> int:
    """The orientation, 1 to 8, of an image that `decode_rgb` reads, which that applies."""
    try:
        with path.open("rb") as file, open_image(file) as image:
            return _orientation(image, file)
    except UnidentifiedImageError:  # OpenCV's formats have no such tag
        return 1


def _orientation(image: Image.Image, file: io.BufferedIOBase) -> int:
    """EXIF's orientation, or XMP's where that has none, as Pillow finds it in the loaded image."""
    if image.format == "PNG" and has_late_notes(file):
        image.load()
    # PNG's own method would decode the pixels wherever no EXIF precedes them.
    read = Image.Image.getexif if image.format == "PNG" else type(image).getexif
    value = read(image).get(ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def picture_size(path: Path) -> tuple[int, int]:
    """Height and width of the upright image, from the header alone where Pillow knows the format.

    Raises:
      UnreadablePicture: not an image. A truncated one passes, as only its header is read.
      OSError: the file cannot be opened.
    """
    if path.stat().st_size == 0:
        raise UnreadablePicture("zero bytes")
    try:
        with path.open("rb") as file, open_image(file) as image:
            height, width = stored_size(image)
            _check_size((height, width))
            check_still(image)
            orientation = _orientation(image, file)
    except UnreadablePicture:
        raise
    except UnidentifiedImageError:
        height, width = decode_rgb(path).shape[:2]
        return height, width
    except OSError as error:
        if error.errno is not None:  # from the file system, not from a decoder
            raise
        raise UnreadablePicture(one_line(error)) from error
    except Exception as error:
        raise UnreadablePicture(one_line(error)) from error
    return (width, height) if orientation >= 5 else (height, width)


def _check_size(size: tuple[int, int]) -> None:
    if reason := too_large(size):
        raise UnreadablePicture(f"{reason}: cut it into smaller ones")


def _in_planes(image: TiffImageFile) -> bool:
    return image.tag_v2.get(284, 1) == 2 and image.tag_v2.get(277, 1) > 1


def _unidentified(data: bytes) -> Image.Image:
    """Opens data that Pillow has no mode or no decoder for."""
    if data.startswith(_PILLOW_SIGNATURES):
        # OpenCV fills damaged ones up, after seconds and gigabytes if their size is damaged.
        raise UnreadablePicture("damaged in its header")
    if is_tiff(data):
        import tifffile

        try:
            with tifffile.TiffFile(io.BytesIO(data)) as file:
                page = file.pages.first
                _check_size((page.imagelength, page.imagewidth))
                if any(not other.is_reduced for other in file.pages[1:]):
                    raise not_a_still(len(file.pages), "pages")
                mistaken = 2 in (page.samplesperpixel, page.planarconfig) or page.photometric == 0
        except UnreadablePicture:
            raise
        except Exception as error:
            raise UnreadablePicture(one_line(error)) from error
        if mistaken:
            return _by_tifffile(data)
    return _by_opencv(data)


def _by_tifffile(data: bytes) -> Image.Image:
    """The first page of a gray or RGB TIFF, not turned."""
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages.first
        samples = page.samplesperpixel
        if page.photometric not in (0, 1, 2, 5) or samples > 4:
            raise UnreadablePicture(f"TIFF of {samples} samples a pixel, not gray, RGB or CMYK")
        try:
            pixels = _narrow(tifffile_samples(page))
        except UnreadablePicture:
            raise
        except Exception as error:
            raise UnreadablePicture(one_line(error)) from error
    if page.photometric == 5:
        return Image.fromarray(np.ascontiguousarray(pixels), "CMYK")
    colours = 3 if samples > 2 else 1
    if page.photometric == 0:
        pixels = np.concatenate((255 - pixels[..., :1], pixels[..., 1:]), axis=-1)
    kind = int(page.extrasamples[0]) if page.extrasamples else 0
    mode = {(1, 1): "La", (1, 2): "LA", (3, 1): "RGBa", (3, 2): "RGBA"}.get((colours, kind))
    if mode is None or len(mode) > samples:
        mode = {1: "L", 3: "RGB"}[colours]
    height, width = pixels.shape[:2]
    pixels = np.ascontiguousarray(pixels[..., : len(mode)])
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def _by_opencv(data: bytes) -> Image.Image:
    pixels = opencv_samples(data)
    if pixels is None:
        raise UnreadablePicture("not an image that Pillow or OpenCV reads")
    pixels = _narrow(np.ascontiguousarray(pixels))
    gray_alpha = pixels.ndim == 3 and pixels.shape[-1] == 2
    return Image.fromarray(pixels, "LA") if gray_alpha else Image.fromarray(pixels)


def _narrow(pixels: np.ndarray) -> UInt8[np.ndarray, "..."]:
    if pixels.dtype == np.uint8:
        return pixels
    if np.issubdtype(pixels.dtype, np.floating):
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):  # also true for NaN
            raise UnreadablePicture(
                f"floating-point samples from {low:g} to {high:g}, not within 0 to 1"
            )
        return np.rint(pixels * 255).astype(np.uint8)
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > 65535:
        raise UnreadablePicture(f"integer samples from {low} to {high}, not within 0 to 65535")
    return ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
