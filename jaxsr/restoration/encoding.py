"""The form of an image file, and the limits of its format."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped

from jaxsr.restoration.notes import Notes
from jaxsr.restoration.pictures import CHANNELS, Kind, PictureError

Bands = Iterable[Shaped[np.ndarray, "_ w c"]]
"""All rows of an image from top to bottom, several at a time."""

DEFLATE_LEVEL = 4
"""Takes a quarter to a third of level 6's time for files 3 to 6 % larger: Kodak's photos and one of
them enlarged fourfold."""
_LONGEST_SIDE = {"JPEG": 65500, "WEBP": 16383}  # libjpeg's and WebP's own limits


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Form of a file, known before its first row."""

    format: str
    """`PNG`, `JPEG`, `WEBP` or `TIFF`."""
    kind: Kind
    deep: bool
    """16 bits a sample instead of 8."""
    height: int
    width: int
    notes: Notes
    quality: int
    """Quality of JPEG and lossy WebP, 1 to 100; where the source was lossless, so is WebP."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, CHANNELS[self.kind]

    @property
    def row_bytes(self) -> int:
        return self.width * CHANNELS[self.kind] * (2 if self.deep else 1)

    def check(self) -> None:
        """Rejects, before any work, samples that the format cannot store.

        Raises:
          PictureError: the samples would lose depth, alpha or their colour model, or do not fit.
        """
        format, instead = self.format, "write it with --format png or tiff"
        if format in ("JPEG", "WEBP") and self.deep:
            raise PictureError(f"{format} holds 8 bits, the image has 16; {instead}")
        if format == "JPEG" and self.kind.endswith("alpha"):
            raise PictureError(f"JPEG holds no transparency, the image has some; {instead}")
        if format in ("PNG", "WEBP") and self.kind == "cmyk":
            raise PictureError(f"{format} holds no CMYK; write it with --format tiff or jpeg")
        longest = _LONGEST_SIDE.get(format)
        if longest is not None and max(self.height, self.width) > longest:
            raise PictureError(
                f"{format} holds at most {longest} pixels a side, the result is "
                f"{self.width}×{self.height}; {instead}"
            )
        if format == "TIFF" and self.height * self.row_bytes > 2**32 - 2**26:
            raise PictureError("TIFF holds at most 4 GB; write it with --format png")
