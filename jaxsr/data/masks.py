"""Reads mask files of any mode as one channel of 0 and 1, or describes their fault.

A mask has one value for its background, 0, and at most one other for its targets, 1 or 255 in most
data sets. Modes 1, L, I, I;16 and F are taken as they are; of RGB, palettes and transparency the
largest channel of the colours counts, or the alpha channel where all colours are equal and it
varies. Where targets have soft edges (JPEG, resized masks), values above half of white are targets.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from jaxsr.data.picture_file import (
    ORIENTATION,
    UnreadablePicture,
    check_still,
    load_whole,
    open_image,
    read_file,
    stored_size,
)
from jaxsr.data.picture_limits import too_large
from jaxsr.errors import one_line

_MOST_LISTED = 2**20
"""Gray values that are sorted to find some for the message."""


@dataclass(frozen=True, eq=False)
class Mask:
    """A decoded mask."""

    pixels: UInt8[np.ndarray, "h w"]
    """1 on targets, 0 elsewhere."""
    is_soft: bool
    """Whether it had gray values, of which those above half of white became targets."""
    orientation: int
    """EXIF's, which was not applied."""


def read_mask(path: Path, *, threshold: int | None = None) -> Mask:
    """Reads a mask.

    Args:
      path: the image.
      threshold: values above it are targets; None admits masks of two values, and those whose
        edges alone are gray.

    Raises:
      UnreadablePicture: not an image, truncated, of two colours that are both not black, of two
        values that are both not above the threshold, or, without a threshold, gray.
      OSError: the file cannot be opened.
    """
    data = read_file(path)
    try:
        with open_image(io.BytesIO(data)) as image:
            if reason := too_large(stored_size(image)):
                raise UnreadablePicture(reason)
            check_still(image)
            load_whole(image, data)
            values = _one_channel(image)
            orientation = int(image.getexif().get(ORIENTATION, 1))
    except UnreadablePicture:
        raise
    except UnidentifiedImageError:
        raise UnreadablePicture("not an image that Pillow reads") from None
    except MemoryError:
        raise UnreadablePicture("out of memory while decoding") from None
    except Exception as error:  # decoders raise SyntaxError, struct.error, IndexError …
        raise UnreadablePicture(one_line(error)) from error
    target = values.max()
    if threshold is not None:
        if 0 < target <= threshold and ((values == 0) | (values == target)).all():
            raise UnreadablePicture(
                f"a mask of 0 and {target:g}, whose values are not above the threshold {threshold}"
            )
        return Mask((values > threshold).astype(np.uint8), False, orientation)
    gray = np.unique(values[(values != 0) & (values != target)][:_MOST_LISTED])
    if gray.size and _has_soft_edges(values):
        half = np.iinfo(np.uint8 if target < 256 else np.uint16).max // 2
        return Mask((values > half).astype(np.uint8), True, orientation)
    if gray.size or target < 0:
        grays = ", ".join(f"{value:g}" for value in [*gray[:3], target])
        raise UnreadablePicture(
            f"a mask with gray values ({grays}{' …' if gray.size > 3 else ''}), where 0 and one "
            "other are expected"
        )
    return Mask((values != 0).astype(np.uint8), False, orientation)


def _has_soft_edges(values: np.ndarray) -> bool:
    """Whether few pixels are neither background nor target: other gray images are not masks."""
    if not np.issubdtype(values.dtype, np.integer) or values.min() < 0:
        return False
    target = values.max()
    if target < 128 or 256 <= target < 32768:  # numbers of classes
        return False
    between = np.count_nonzero((values > target // 10) & (values < target - target // 10))
    solid = np.count_nonzero(values >= target - target // 10)
    return bool(between <= 2 * solid + 8)


def _one_channel(image: Image.Image) -> np.ndarray:
    if image.mode == "1":
        return np.asarray(image).astype(np.uint8)
    if image.mode in ("L", "F") or image.mode.startswith("I"):
        return np.asarray(image)
    rgba = np.asarray(image.convert("RGBA"))
    colour, alpha = rgba[..., :3].max(axis=-1), rgba[..., 3]
    if (kinds := _two_colours(rgba[..., :3])) is not None:
        raise UnreadablePicture(
            f"a mask of the colours {kinds}, neither of which is black; make its background black"
        )
    flat = (rgba[..., :3] == rgba[:1, :1, :3]).all()
    return alpha if flat and alpha.min() != alpha.max() else colour


def _two_colours(colours: np.ndarray) -> str | None:
    """Names of two colours, if there are no others, neither is black, and one is not gray."""
    codes = colours.astype(np.int64) @ (65536, 256, 1)
    one, other = int(codes.min()), int(codes.max())
    if one in (0, other) or not ((codes == one) | (codes == other)).all():
        return None
    is_gray = [code // 65536 == code // 256 % 256 == code % 256 for code in (one, other)]
    return None if all(is_gray) else f"#{one:06x} and #{other:06x}"
