"""Video frames as RGB, and RGB as frames, by the matrix and the range that they state.

Matrices and ranges are those of ITU-T H.273. FFmpeg's swscale only resamples chroma and rearranges
RGB: its own matrices are up to two levels off where chroma is subsampled, make 65280 the white of
16 bits, and round down towards full range.
"""

import functools
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, UInt

from jaxsr.data.video import UnreadableVideo, has_matrix

_BT601 = 5
_LIMITED, _FULL = 1, 2
# Weights of red and blue in luma by the number of the matrix, H.273 table 4.
_LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114),
         7: (0.212, 0.087), 9: (0.2627, 0.0593)}  # fmt: skip
_UNSTATED = {0: _BT601, 2: _BT601}
"""YUV that states no matrix is BT.601, as swscale takes it."""
_NAMES = {8: "YCgCo", 10: "BT.2020 with constant luminance", 11: "Y'D'zD'x", 14: "ICtCp",
          16: "YCgCo-Re", 17: "YCgCo-Ro"}  # fmt: skip
_DEPTHS = (8, 9, 10, 12, 14)
"""Bits of FFmpeg's planar formats below 16."""


def rgb_of(
    frame: Any, *, deep: bool = False, size: tuple[int, int] | None = None
) -> UInt[np.ndarray, "h w 3"]:
    """A frame as RGB; its alpha is left out.

    Args:
      frame: of PyAV, in any pixel format.
      deep: uint16 instead of uint8.
      size: height and width to scale the frame to; its own by default.

    Raises:
      UnreadableVideo: its matrix has no fixed weights of red, green and blue.
    """
    height, width = size or (frame.height, frame.width)
    planar, bits = _planar(frame.format)
    if planar is None:
        layout = "rgb48le" if deep or bits > 8 else "rgb24"
        pixels = _resampled(frame, format=layout, width=width, height=height).to_ndarray()
        is_deeper = pixels.dtype == np.uint16 and not deep
        return cv2.convertScaleAbs(pixels, alpha=255 / 65535) if is_deeper else pixels
    is_full = _is_full(frame.format, frame.color_range)
    to_rgb = _to_rgb(planar, frame.colorspace, is_full, bits) * (65535 if deep else 255)
    planes = _resampled(frame, is_full, format=planar, width=width, height=height).planes
    samples = cv2.merge([plane_samples(plane, bits) for plane in planes])
    pixels = cv2.transform(samples.astype(np.uint16), to_rgb)
    return pixels if deep else cv2.convertScaleAbs(pixels)  # ends at 255


def frame_of(pixels: UInt[np.ndarray, "h w 3"], coded: Any) -> Any:
    """A frame for an encoder, in its size and pixel format and by the matrix and range it states.

    Args:
      pixels: RGB, uint8 or uint16.
      coded: the encoder's context.

    Raises:
      UnreadableVideo: as `rgb_of`.
    """
    import av

    peak = np.iinfo(pixels.dtype).max
    form = {"format": coded.pix_fmt, "width": coded.width, "height": coded.height}
    planar, bits = _planar(coded.format)
    if planar is None:
        if peak > 255:  # swscale cuts bits off: these are the values whose rest is nothing
            step = 65535 / (2**bits - 1)
            pixels = np.rint(np.rint(pixels / step) * step).astype(np.uint16)
        layout = "rgb48le" if peak > 255 else "rgb24"
        return _resampled(av.VideoFrame.from_ndarray(pixels, format=layout), **form)
    is_full = _is_full(coded.format, coded.color_range)
    of_rgb = _of_rgb(planar, coded.colorspace, is_full, bits)
    samples = cv2.transform(pixels.astype(np.uint16), of_rgb / [peak, peak, peak, 1])
    frame = av.VideoFrame(pixels.shape[1], pixels.shape[0], planar)
    for plane, values in zip(frame.planes, cv2.split(samples), strict=True):
        fill_plane(plane, np.minimum(values, 2**bits - 1), bits)
    frame.colorspace, frame.color_range = coded.colorspace, _FULL if is_full else _LIMITED
    return _resampled(frame, is_full, **form)


def plane_samples(plane: Any, bits: int = 8) -> UInt[np.ndarray, "h w"]:
    """The samples of a plane, little-endian above 8 bits; a view of it."""
    dtype = np.uint8 if bits == 8 else np.uint16
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height]
    return rows[:, : plane.width * np.dtype(dtype).itemsize].view(dtype)


def fill_plane(plane: Any, values: UInt[np.ndarray, "h w"], bits: int = 8) -> None:
    """Writes samples to a plane, see `plane_samples`."""
    rows = np.zeros((plane.buffer_size // plane.line_size, plane.line_size), np.uint8)
    samples = np.ascontiguousarray(values, np.uint8 if bits == 8 else np.uint16).view(np.uint8)
    rows[: samples.shape[0], : samples.shape[1]] = samples
    plane.update(rows.tobytes())


def _planar(format: Any) -> tuple[str | None, int]:
    """A format of whole planes with the same samples, and its bits; None for RGB."""
    most = max(part.bits for part in format.components)
    bits = next((depth for depth in _DEPTHS if depth >= most), 16)
    if not has_matrix(format):
        return None, bits
    kind = "gray" if sum(not part.is_alpha for part in format.components) == 1 else "yuv444p"
    return kind if bits == 8 else f"{kind}{bits}le", bits


def _is_full(format: Any, colour_range: int) -> bool:
    """Whether samples have the full range; FFmpeg takes luma alone to have it always."""
    return colour_range == _FULL or format.name.startswith(("yuvj", "gray", "ya"))


@functools.cache  # every frame asks
def _of_rgb(planar: str, matrix: int, is_full: bool, bits: int) -> Float[np.ndarray, "c 4"]:
    """Levels of each plane from RGB in 0 to 1; the last column is added."""
    is_gray = planar.startswith("gray")
    number = _UNSTATED.get(matrix, matrix)
    if number not in _LUMA and not is_gray:
        raise UnreadableVideo(
            f"its colour matrix is {_NAMES.get(matrix, f'number {matrix} of H.273')}, and only "
            "BT.601, BT.709, BT.2020, FCC and SMPTE 240M are converted to RGB; convert it first: "
            "ffmpeg -i VIDEO -vf zscale=matrix=709 FILE"
        )
    red, blue = _LUMA.get(number, _LUMA[_BT601])
    luma = np.array([red, 1 - red - blue, blue])
    to_blue = (np.array([0, 0, 1]) - luma) / (2 * (1 - blue))
    to_red = (np.array([1, 0, 0]) - luma) / (2 * (1 - red))
    level, peak = 2 ** (bits - 8), 2**bits - 1
    spans = (peak, peak, peak) if is_full else (219 * level, 224 * level, 224 * level)
    added = (0 if is_full else 16 * level, 128 * level, 128 * level)
    rows = np.stack([luma, to_blue, to_red]) * np.array(spans)[:, None]
    return np.concatenate([rows, np.array(added)[:, None]], 1)[: 1 if is_gray else 3]


@functools.cache
def _to_rgb(planar: str, matrix: int, is_full: bool, bits: int) -> Float[np.ndarray, "3 c"]:
    """RGB in 0 to 1 from levels of each plane; the last column is added."""
    if planar.startswith("gray"):
        return np.array([[1 / (2**bits - 1), 0]] * 3)
    of_rgb = _of_rgb(planar, matrix, is_full, bits)
    to_rgb = np.linalg.inv(of_rgb[:, :3])
    return np.concatenate([to_rgb, -to_rgb @ of_rgb[:, 3:]], 1)


def _resampled(frame: Any, is_full: bool | None = None, **changes: Any) -> Any:
    """A frame in another size, sampling of chroma or layout, in the same range."""
    from av.video.reformatter import Interpolation

    if is_full is not None:
        changes["src_color_range"] = changes["dst_color_range"] = _FULL if is_full else _LIMITED
    # Several threads tear planes of gbrap10le (FFmpeg 8.0).
    return frame.reformat(
        **changes, interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND, threads=1
    )
