"""Oracles of conversions between colours."""

import colorsys
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
from skimage import color

from jaxsr import ops
from tests.oracles.images.oracle import FLOATS, LEVELS, Oracle, Scale
from tests.oracles.images.pixels import U8, pillow

MATLAB = 255.0


def converted(code: int) -> Callable[[np.ndarray], np.ndarray]:
    """One of OpenCV's conversions."""
    return lambda image: cv2.cvtColor(image, code)


def _by_colorsys(name: str) -> Callable[[np.ndarray], np.ndarray]:
    function = np.vectorize(getattr(colorsys, name), signature="(),(),()->(),(),()")
    return lambda image: np.stack(function(*np.moveaxis(image, -1, 0)), -1)


def _conversion(
    function: str,
    by: str,
    reference: Callable[..., Any],
    *,
    rule: str = "",
    convention: str | None = None,
    scale: Scale = "unit",
    **more: Any,
) -> Oracle:
    call = getattr(ops, function)
    if convention is not None:
        call = partial(call, convention=convention)
    return Oracle(
        function=function, by=by, call=call, reference=reference, rule=rule, scale=scale, **more
    )


COLOURS: list[Oracle] = [
    _conversion(
        "rgb_to_gray",
        "Pillow",
        pillow(lambda x: x.convert("L")),
        rule="Pillow's",
        dtypes=U8,
        scale="levels",
    ),
    _conversion(
        "rgb_to_gray",
        "OpenCV",
        converted(cv2.COLOR_RGB2GRAY),
        rule="OpenCV's",
        convention="opencv",
        dtypes=LEVELS,
        scale="levels",
    ),
    _conversion(
        "rgb_to_gray",
        "scikit-image",
        color.rgb2gray,
        rule="scikit-image's",
        convention="scikit-image",
    ),
    _conversion(
        "rgb_to_yuv",
        "OpenCV",
        converted(cv2.COLOR_RGB2YUV),
        rule="OpenCV's",
        dtypes=LEVELS,
        scale="levels",
    ),
    _conversion(
        "yuv_to_rgb",
        "OpenCV",
        converted(cv2.COLOR_YUV2RGB),
        rule="OpenCV's",
        dtypes=LEVELS,
        scale="levels",
    ),
    _conversion("rgb_to_yuv", "scikit-image", color.rgb2yuv, rule="BT.470", dtypes=FLOATS),
    _conversion("yuv_to_rgb", "scikit-image", color.yuv2rgb, rule="BT.470", dtypes=FLOATS),
    _conversion(
        "rgb_to_ycbcr", "scikit-image", lambda x: color.rgb2ycbcr(x) / MATLAB, rule="MATLAB's"
    ),
    _conversion(
        "ycbcr_to_rgb", "scikit-image", lambda x: color.ycbcr2rgb(x * MATLAB), rule="MATLAB's"
    ),
    _conversion(
        "rgb_to_y", "scikit-image", lambda x: color.rgb2ycbcr(x)[..., 0] / MATLAB, rule="MATLAB's"
    ),
    _conversion(
        "rgb_to_y",
        "scikit-image",
        lambda x: color.rgb2yiq(x)[..., 0],
        rule="full",
        convention="full",
    ),
    _conversion("rgb_to_hsv", "scikit-image", color.rgb2hsv),
    _conversion("hsv_to_rgb", "scikit-image", color.hsv2rgb, atol=4e-6),
    _conversion("rgb_to_hls", "colorsys", _by_colorsys("rgb_to_hls")),
    _conversion("hls_to_rgb", "colorsys", _by_colorsys("hls_to_rgb"), atol=4e-6),
    _conversion(
        "rgb_to_hsv",
        "OpenCV",
        converted(cv2.COLOR_RGB2HSV),
        rule="OpenCV's",
        convention="opencv",
        dtypes=U8,
        scale="levels",
    ),
    _conversion(
        "hls_to_rgb",
        "OpenCV",
        converted(cv2.COLOR_HLS2RGB),
        rule="OpenCV's",
        convention="opencv",
        dtypes=U8,
        scale="levels",
    ),
    _conversion("rgb_to_xyz", "scikit-image", color.rgb2xyz, results="real"),
    _conversion("rgb_to_lab", "scikit-image", color.rgb2lab, results="real", white=100),
    _conversion("rgb_to_luv", "scikit-image", color.rgb2luv, results="real", white=100, atol=4e-6),
    _conversion(
        "rgb_to_lab",
        "OpenCV",
        converted(cv2.COLOR_RGB2Lab),
        rule="OpenCV's",
        convention="opencv",
        dtypes=U8,
        scale="levels",
    ),
]
