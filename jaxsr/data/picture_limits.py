"""How large an image may be, judged from its header before anything is decoded or allocated."""

import os
import sys

MAX_PIXELS = 178_956_970
"""Pixels above which a header is not believed: Pillow's own limit against decompression bombs."""

_FILE_BYTES_PER_PIXEL = 8
_FILE_BYTES_OF_NOTES = 2**28
_OPENCV_LIMIT = "OPENCV_IO_MAX_IMAGE_PIXELS"


def too_large(size: tuple[int, int], *, max_pixels: int = MAX_PIXELS) -> str | None:
    """The reason to refuse an image of (height, width), or None."""
    height, width = size
    if height < 1 or width < 1:
        return f"{width}×{height} pixels claimed"
    if height * width > max_pixels:
        return f"{width}×{height} pixels claimed; more than {max_pixels:,} pixels"
    return None


def max_file_bytes(max_pixels: int = MAX_PIXELS) -> int:
    """Bytes of the largest file of that many pixels: 16-bit RGBA, not compressed, and notes."""
    return _FILE_BYTES_PER_PIXEL * max_pixels + _FILE_BYTES_OF_NOTES


def limit_opencv(max_pixels: int = MAX_PIXELS) -> None:
    """Makes OpenCV judge headers as well; it reads the limit once, when it is imported."""
    if "cv2" not in sys.modules:
        os.environ.setdefault(_OPENCV_LIMIT, str(max_pixels))
