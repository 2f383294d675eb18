"""Which of the included enlargers suits a picture: one for photos after JPEG, else a clean one.

A file says so itself (JPEG, lossy WebP), or its pixels do: JPEG sets most high frequencies of its
blocks of 8 × 8 to zero, which stays visible on that grid alone, wherever a crop has moved it.
"""

import statistics
from collections.abc import Iterable

import numpy as np
from jaxtyping import Shaped
from scipy.fft import dct

from jaxsr.data.sources import Source
from jaxsr.errors import UserError
from jaxsr.restoration.pictures import Picture, PictureError, read_picture

_BLOCK = 8
_SIDE = 256
# Rounding of colours to 8 bits moves a coefficient of their luma by some 0.4 (one standard
# deviation).
_ZERO = 1.0
# Share of coefficients that are zero on the grid alone. In 38 photos, whole and shrunk: below 0.07
# if never a JPEG; above 0.11 at quality 95, above 0.15 at quality 90.
_SHARE = 0.1


def choose(picture: Picture, enlargers: tuple[str, str]) -> str:
    """One of the weights for clean pictures and for those with JPEG's artefacts."""
    clean, photo = enlargers
    return photo if not picture.notes.lossless or shows_jpeg(picture.pixels) else clean


def choose_for_files(
    sources: Iterable[Source], enlargers: tuple[str, str], *, max_pixels: int
) -> dict[str, list[Source]]:
    """The sources of each of two weights, see `choose`.

    Videos are compressed, and unreadable images count as clean.

    Decodes every image once more than restoring does, until a JPEG's header answers.
    """
    groups: dict[str, list[Source]] = {}
    for source in sources:
        word, photo = enlargers
        try:
            if source.is_video:
                word = photo
            else:
                word = choose(read_picture(source.path, max_pixels=max_pixels), enlargers)
        except (PictureError, UserError, OSError):
            pass  # the restorer says so
        groups.setdefault(word, []).append(source)
    return groups


def shows_jpeg(pixels: Shaped[np.ndarray, "h w c"]) -> bool:
    """Whether one grid of 8 × 8 blocks has many more zero coefficients than the others.

    Looks at the middle 256 × 256 pixels. 16-bit samples have no traces that this finds.
    """
    if pixels.dtype != np.uint8 or min(pixels.shape[:2]) < 4 * _BLOCK:
        return False
    top, left = (max(side - _SIDE, 0) // 2 for side in pixels.shape[:2])
    middle = pixels[top : top + _SIDE, left : left + _SIDE].astype(np.float32)
    colours = middle.shape[-1] >= 3
    luma = (
        middle[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32) if colours else middle[..., 0]
    )
    shares = [_zeros(luma[row:, column:]) for row in range(_BLOCK) for column in range(_BLOCK)]
    return max(shares) - statistics.median(shares) > _SHARE


def _zeros(luma: np.ndarray) -> float:
    """The share of a grid's coefficients, the lowest ones apart, that are next to zero."""
    rows, columns = (side // _BLOCK for side in luma.shape)
    blocks = luma[: rows * _BLOCK, : columns * _BLOCK].reshape(rows, _BLOCK, columns, _BLOCK)
    spectrum = dct(dct(blocks, axis=1, norm="ortho"), axis=3, norm="ortho")
    row, column = np.indices((_BLOCK, _BLOCK))
    high = np.asarray(spectrum).transpose(1, 3, 0, 2)[row + column >= 4]
    return float((np.abs(high) < _ZERO).mean())
