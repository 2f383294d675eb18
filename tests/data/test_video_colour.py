"""Frames as RGB and back, against FFmpeg's 4:4:4 and OpenCV."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from jaxsr.data.video import UnreadableVideo
from jaxsr.data.video_colour import fill_plane, frame_of, plane_samples, rgb_of

av = pytest.importorskip("av", reason="videos need PyAV")

LEVELS = [(100, 128, 128), (100, 110, 140), (60, 150, 120), (200, 120, 131), (235, 128, 128)]
"""Y, U and V in 8 bits, of colours inside RGB."""


def frame(pixels: str, levels, *, matrix: int, colour_range: int, size=(18, 34)):
    made = av.VideoFrame(size[1], size[0], pixels)
    made.colorspace, made.color_range = matrix, colour_range
    bits = made.format.components[0].bits
    for plane, level in zip(made.planes, levels, strict=False):
        fill_plane(plane, np.full((plane.height, plane.width), level << bits - 8, np.uint16), bits)
    return made


def encoder(pixels: str, shape, *, matrix: int = 1, colour_range: int = 1):
    height, width = shape[:2]
    form = av.VideoFormat(pixels, width, height)
    return SimpleNamespace(pix_fmt=pixels, format=form, width=width, height=height,
                           colorspace=matrix, color_range=colour_range)  # fmt: skip


@pytest.mark.parametrize("matrix", [1, 2, 5, 9])
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv422p", "yuv410p", "yuv444p", "yuva420p",
                                    "yuv420p10le", "yuv444p16le"])  # fmt: skip
def test_every_sampling_of_chroma_and_every_depth_is_one_colour(pixels, matrix):
    """As FFmpeg has it in 4:4:4 and 8 bits, the one case that its swscale rounds itself."""
    off = []
    for levels in LEVELS:
        facts = {"matrix": matrix, "colour_range": 1}
        want = frame("yuv444p", levels, **facts).to_ndarray(format="rgb24")[0, 0].astype(float)
        source = frame(pixels, levels, **facts)
        got, deep = rgb_of(source), rgb_of(source, deep=True) / 257
        assert got.shape == deep.shape == (18, 34, 3) and got.dtype == np.uint8
        assert np.abs(got - want).max() <= 1 and np.abs(deep - want).max() <= 0.6
        off.append(deep - want)
    assert abs(np.mean(off)) < 0.15  # rounding evens out: nothing is darker


@pytest.mark.parametrize("pixels", ["yuvj420p", "yuvj444p", "yuv422p", "yuv444p10le", "gray"])
def test_the_full_range_is_that_of_opencv(pixels):
    colours = np.random.default_rng(0).integers(0, 256, (40, 3), np.uint8)
    off = []
    for colour in colours:
        image = np.broadcast_to(colour, (6, 8, 3))
        made = frame_of(image, encoder(pixels, image.shape, matrix=5, colour_range=2))
        bits = made.format.components[0].bits
        y, cr, cb = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2YCrCb)[0, 0]
        # OpenCV's middle is 0.5, that of samples half a level above it.
        want = np.array([y, cb, cr]) * (2**bits - 1) + [0, 0.5, 0.5]
        got = np.array([plane_samples(plane, bits)[0, 0] for plane in made.planes])
        off.append(got - want[: len(got)])
        assert np.abs(off[-1]).max() <= (0.6 if bits == 8 else 1)  # 0.713 for 0.7133
        back = rgb_of(made)[0, 0].astype(int)
        assert len(got) == 1 or np.abs(back - colour).max() <= 2
    assert abs(np.mean(off)) < 0.1


@pytest.mark.parametrize("shape", [(1, 1, 3), (31, 47, 3)])
@pytest.mark.parametrize(
    "pixels",
    ["rgb24", "bgr0", "gbrp", "gbrap", "gbrp10le", "gbrap10le", "gbrap12le", "rgb48le", "gray16le"],
)
def test_samples_come_back(pixels, shape):
    bits = av.VideoFormat(pixels, 2, 2).components[0].bits
    levels = np.random.default_rng(1).integers(0, 2**bits, shape)
    levels = levels[..., :1].repeat(3, -1) if pixels.startswith("gray") else levels
    deep = bits > 8
    rgb = np.rint(levels * ((65535 if deep else 255) / (2**bits - 1)))
    rgb = rgb.astype(np.uint16 if deep else np.uint8)
    made = frame_of(rgb, encoder(pixels, shape))
    assert made.format.name == pixels
    back = rgb_of(made, deep=deep).astype(float)
    assert np.abs(back - rgb).max() <= deep  # FFmpeg repeats bits where 65535 / 1023 is no whole
    assert np.abs(rgb_of(made) - rgb / (257 if deep else 1)).max() <= 0.51


def test_a_matrix_without_weights_is_refused():
    """YCgCo; FFmpeg said "Operation not supported"."""
    with pytest.raises(UnreadableVideo, match=r"its colour matrix is YCgCo.*zscale=matrix=709"):
        rgb_of(frame("yuv420p", LEVELS[0], matrix=8, colour_range=1))
    assert rgb_of(frame("gray", LEVELS[0], matrix=8, colour_range=1))[0, 0].tolist() == [100] * 3
