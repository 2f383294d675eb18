"""Mask files of any mode to one channel of 0 and 1, and what is wrong with those that are neither.

A mask has one value for its background, 0, and at most one other for its targets, 1 or 255 in most
data sets. Modes 1, L, I, I;16 and F are taken as they are; of RGB, palettes and transparency the
largest channel of the colours counts, or the alpha channel where all colours are equal and it
varies. Pictures whose targets have soft edges (JPEG, resized masks) need a threshold.
"""

import io
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from jaxsr.data.picture_file import UnreadablePicture, read_file, stored_size
from jaxsr.data.picture_limits import too_large
from jaxsr.errors import one_line

_MOST_LISTED = 2**20
"""Gray values that are sorted to find some for the message."""


def decode_mask(path: Path, *, threshold: int | None = None) -> UInt8[np.ndarray, "h w"]:
    """Reads a mask: 1 on targets, 0 elsewhere.

    Args:
      path: the picture.
      threshold: values above it are targets; None admits masks of two values only.

    Raises:
      UnreadablePicture: not a picture, truncated, or, without a threshold, gray.
      OSError: the file cannot be opened.
    """
    data = read_file(path)
    try:
        with Image.open(io.BytesIO(data)) as image:
            if reason := too_large(stored_size(image)):
                raise UnreadablePicture(reason)
            image.load()
            values = _one_channel(image)
    except UnreadablePicture:
        raise
    except UnidentifiedImageError:
        raise UnreadablePicture("not a picture that Pillow reads") from None
    except MemoryError:
        raise UnreadablePicture("out of memory while decoding") from None
    except Exception as error:  # decoders raise SyntaxError, struct.error, IndexError …
        raise UnreadablePicture(one_line(error)) from error
    if threshold is not None:
        return (values > threshold).astype(np.uint8)
    target = values.max()
    gray = np.unique(values[(values != 0) & (values != target)][:_MOST_LISTED])
    if gray.size or target < 0:
        grays = ", ".join(f"{value:g}" for value in [*gray[:3], target])
        raise UnreadablePicture(
            f"a mask with gray values ({grays}{' …' if gray.size > 3 else ''}), where 0 and one "
            "other are expected"
        )
    return (values != 0).astype(np.uint8)


def _one_channel(image: Image.Image) -> np.ndarray:
    if image.mode == "1":
        return np.asarray(image).astype(np.uint8)
    if image.mode in ("L", "F") or image.mode.startswith("I"):
        return np.asarray(image)
    rgba = np.asarray(image.convert("RGBA"))
    colour, alpha = rgba[..., :3].max(axis=-1), rgba[..., 3]
    flat = (rgba[..., :3] == rgba[:1, :1, :3]).all()
    return alpha if flat and alpha.min() != alpha.max() else colour
