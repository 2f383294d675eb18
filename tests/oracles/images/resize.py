"""Oracles of resizes."""

from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from jaxsr import ops
from tests.oracles.images.oracle import FLOATS, Oracle
from tests.oracles.images.pixels import U8, planes

WIDE = (-3.0, 5.0)
SIZES = ((5, 30), (50, 1))
TORCH_MODES = {"bilinear": "bilinear", "bicubic": "bicubic", "nearest": "nearest", "area": "area"}


def torchs(image: np.ndarray, size: Any, mode: str, antialias: bool) -> np.ndarray:
    """torch's `interpolate`."""
    if antialias and size[0] > 1 == size[1] and image.dtype != np.uint8:
        # A column of floats comes out of torch 2.13 as its first pixel, repeated; a row does not.
        return torchs(image.swapaxes(0, 1), size[::-1], mode, antialias).swapaxes(0, 1)
    plane = torch.from_numpy(image.copy()).movedim(-1, 0)[None]
    return F.interpolate(plane, size, mode=mode, antialias=antialias)[0].movedim(0, -1).numpy()


def _resize(method: str, antialias: bool, size: tuple[int, int]) -> Oracle:
    return Oracle(
        function="resize",
        rule=f"torch's {method}{' antialias' * antialias} {size[0]} × {size[1]}",
        by="torch",
        call=partial(ops.resize, size=size, method=method, antialias=antialias),
        reference=lambda x: torchs(x, size, method, antialias),
        span=WIDE,
        atol=0 if method == "nearest" else 2e-5,
        weighs=True,
        dtypes=FLOATS if method == "nearest" else (*FLOATS, "uint16"),
    )


def _resize_levels(method: str, antialias: bool, size: tuple[int, int]) -> Oracle:
    return Oracle(
        function="resize",
        rule=f"torch's {method}{' antialias' * antialias} {size[0]} × {size[1]}, uint8",
        by="torch",
        call=partial(ops.resize, size=size, method=method, antialias=antialias),
        reference=lambda x: torchs(x, size, method, antialias),
        dtypes=U8,
        scale="levels",
    )


PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}


def _resize_pillow(method: str, size: Any) -> Oracle:
    def of_plane(plane: np.ndarray) -> np.ndarray:
        plane = plane if plane.dtype == np.uint8 else plane.astype(np.float32)
        return np.asarray(Image.fromarray(plane).resize(size[::-1], PILLOW[method]))

    return Oracle(
        function="resize",
        rule=f"Pillow's {method} {size[0]} × {size[1]}",
        by="Pillow",
        call=partial(ops.resize, size=size, method=method, convention="pillow"),
        reference=planes(of_plane),
        dtypes=U8,
        scale="levels",
    )


OPENCV = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
}


def _resize_opencv(method: str, size: tuple[int, int]) -> Oracle:
    return Oracle(
        function="resize",
        rule=f"OpenCV's {method} {size[0]} × {size[1]}",
        by="OpenCV",
        call=partial(ops.resize, size=size, method=method, convention="opencv"),
        reference=planes(lambda x: cv2.resize(x, size[::-1], interpolation=OPENCV[method])),
        dtypes=U8,
        scale="levels",
        ties=1e-3 if method == "bicubic" else 0,
    )


RESIZES: list[Oracle] = [
    *(
        _resize(method, antialias, size)
        for method, antialias in (
            ("bilinear", False),
            ("bilinear", True),
            ("bicubic", False),
            ("bicubic", True),
            ("nearest", False),
            ("area", False),
        )
        for size in SIZES
    ),
    *(
        _resize_levels(method, antialias, size)
        for method, antialias in (
            ("bilinear", False),
            ("bilinear", True),
            ("bicubic", False),
            ("bicubic", True),
            ("nearest", False),
        )
        for size in SIZES
    ),
    *(_resize_pillow(method, size) for method in PILLOW for size in SIZES),
    *(_resize_opencv(method, size) for method in OPENCV for size in SIZES),
]
