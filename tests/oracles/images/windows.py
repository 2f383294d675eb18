"""Oracles of windows, edges and regions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from scipy import ndimage

from jaxsr import ops
from tests.oracles.images.oracle import FLOATS, LEVELS, Arguments, Oracle
from tests.oracles.images.pixels import factors, planes

MODES = {
    "reflect101": "mirror",
    "symmetric": "reflect",
    "edge": "nearest",
    "constant": "constant",
    "wrap": "wrap",
}
WINDOWS: dict[str, Any] = {
    "box_filter": ndimage.uniform_filter,
    "median_filter": ndimage.median_filter,
    "dilate": ndimage.grey_dilation,
    "erode": ndimage.grey_erosion,
    "opening": ndimage.grey_opening,
    "closing": ndimage.grey_closing,
    "morphological_gradient": ndimage.morphological_gradient,
}
SIZES = ((3, 3), (5, 5), (1, 7), (9, 3), (51, 51))
WIDE = (-3.0, 5.0)


def _window(name: str, size: tuple[int, int], border: str) -> Oracle:
    function = partial(WINDOWS[name], size=size, mode=MODES[border])
    return Oracle(
        function=name,
        rule=f"{size[0]} × {size[1]}, {border}",
        by="SciPy",
        call=partial(getattr(ops, name), size=size, border=border),
        reference=planes(function),
        span=WIDE,
        channels=2 if size[0] == 9 else 3,
        atol={"box_filter": 1.5e-5, "morphological_gradient": 5e-7}.get(name, 0),
        derivative=name == "box_filter",
        weighs=name == "box_filter",
    )


def _blur(sigma: float, border: str) -> Oracle:
    def reference(plane: np.ndarray) -> np.ndarray:
        radius = int(4 * sigma + 0.5)
        return ndimage.gaussian_filter(plane, sigma, mode=MODES[border], radius=radius)

    size = 2 * int(4 * sigma + 0.5) + 1
    return Oracle(
        function="gaussian_blur",
        rule=f"σ {sigma}, {border}",
        by="SciPy",
        call=partial(ops.gaussian_blur, sigma=sigma, kernel_size=size, border=border),
        reference=planes(reference),
        span=WIDE,
        atol=1.5e-5,
        weighs=True,
    )


def _traced_blur(plane: np.ndarray, sigma: float) -> np.ndarray:
    return ndimage.gaussian_filter(plane, float(sigma), mode="mirror", radius=4)


def _by_opencv_blur(image: np.ndarray) -> np.ndarray:
    return cv2.GaussianBlur(image, (7, 5), 1.3, sigmaY=0.8)


def _sobel(orders: tuple[int, int], size: int) -> Oracle:
    down, across = orders
    return Oracle(
        function="sobel",
        rule=f"{orders}, {size}",
        by="OpenCV",
        call=partial(ops.sobel, orders=orders, kernel_size=size),
        reference=planes(lambda x: cv2.Sobel(x, cv2.CV_64F, across, down, ksize=size)),
        results="real",
        weighs=True,
        atol=1e-5 * 2 ** (2 * size - 6),
    )


def _laplacian(size: int) -> Oracle:
    return Oracle(
        function="laplacian",
        rule=f"{size}",
        by="OpenCV",
        call=partial(ops.laplacian, kernel_size=size),
        reference=planes(lambda x: cv2.Laplacian(x, cv2.CV_64F, ksize=size)),
        results="real",
        weighs=size == 1,  # longer windows are two products, whose weights cancel
        atol=1e-5 * 2 ** max(2 * size - 6, 0),
    )


def _limits(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    return tuple(rng.uniform(0, 250, (2, len(images))).astype(np.float32))


def _canny(size: int, euclidean: bool) -> Oracle:
    def reference(plane: np.ndarray, low: float, high: float) -> np.ndarray:
        scale = 1 if size == 3 else 12
        edges = cv2.Canny(
            plane, scale * float(low), scale * float(high), apertureSize=size, L2gradient=euclidean
        )
        return edges > 0

    def call(images: Any, low: Any, high: Any) -> Any:
        scale = 1 if size == 3 else 12
        edges = ops.canny(images, scale * low, scale * high, kernel_size=size, euclidean=euclidean)
        return edges.astype("uint8")

    return Oracle(
        function="canny",
        rule=f"{size}{', Euclidean' * euclidean}",
        by="OpenCV",
        call=call,
        reference=planes(reference),
        draw=_limits,
        dtypes=("uint8",),
        scale="levels",
        derivative=False,
    )


def _sigmas(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    white = np.iinfo(images.dtype).max if images.dtype in LEVELS else 1
    color, space = rng.uniform((0.05, 0.5), (0.5, 3), (len(images), 2)).astype(np.float32).T
    return color * np.float32(white), space


def _bilateral(image: np.ndarray, color: float, space: float) -> np.ndarray:
    single = image[..., 0] if image.shape[-1] == 1 else image
    single = single if single.dtype == np.uint8 else single.astype(np.float32)
    return cv2.bilateralFilter(single, 7, float(color), float(space))


def _guided(image: np.ndarray, eps: float) -> np.ndarray:
    from kornia.filters import guided_blur

    plane = torch.from_numpy(image).movedim(-1, 0)[None]
    return guided_blur(plane, plane, 5, float(eps), border_type="reflect")[0].movedim(0, -1).numpy()


def _motion(plane: np.ndarray, length: float, degrees: float) -> np.ndarray:
    """The mean of pictures moved along the segment."""
    angle, places = np.deg2rad(float(degrees)), (np.arange(36) + 0.5) / 36 - 0.5
    shifts = [(t * np.sin(angle), -t * np.cos(angle)) for t in places * float(length)]
    return np.mean([ndimage.shift(plane, s, order=1, mode="mirror") for s in shifts], 0)


def _segments(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    return tuple(rng.uniform((0, 0), (7, 360), (len(images), 2)).astype(np.float32).T)


def _distance(mask: np.ndarray) -> np.ndarray:
    if mask.all():
        return np.full(mask.shape, np.inf)
    return np.asarray(ndimage.distance_transform_edt(mask))


def _labels(structure: Any) -> Callable[[np.ndarray], np.ndarray]:
    label: Any = ndimage.label
    return planes(lambda plane: label(plane, structure)[0])


def _unsharp(plane: np.ndarray, sigma: float, amount: float) -> np.ndarray:
    blurred = ndimage.gaussian_filter(plane, float(sigma), mode="reflect", radius=4)
    return plane + float(amount) * (plane - blurred)


def _sharpening(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    return tuple(rng.uniform((0.3, -0.5), (1.2, 2), (len(images), 2)).astype(np.float32).T)


def _half(images: Any) -> Any:
    return images > (0.5 if images.dtype.kind == "f" else np.iinfo(images.dtype).max // 2)


def _demosaic(pattern: str) -> Oracle:
    code = getattr(cv2, f"COLOR_Bayer{pattern}2RGB")

    def inside(image: np.ndarray) -> np.ndarray:
        return cv2.cvtColor(image[..., 0], code)[1:-1, 1:-1]

    return Oracle(
        function="demosaic",
        rule=f"bilinear, {pattern}",
        by="OpenCV, within the edge",
        call=lambda x: ops.demosaic(x, pattern=pattern, method="bilinear")[:, 1:-1, 1:-1],
        reference=inside,
        dtypes=LEVELS,
        scale="levels",
        channels=1,
        shapes=((3, 3), (4, 9), (13, 10), (34, 19)),
    )


E8 = np.ones((3, 3))
FILTERS: list[Oracle] = [
    *(
        _window(name, SIZES[0], border)
        for name in WINDOWS
        for border in ("reflect101", "symmetric")
    ),
    *(_window(name, SIZES[1], "edge") for name in WINDOWS),
    *(_window(name, SIZES[2], "constant") for name in WINDOWS),
    *(_window(name, SIZES[3], "wrap") for name in WINDOWS),
    *(_window(name, SIZES[4], "edge") for name in ("box_filter", "dilate", "erode")),
    *(_blur(1.1, border) for border in MODES),
    _blur(0.4, "reflect101"),
    _blur(12.0, "edge"),
    Oracle(
        function="gaussian_blur",
        rule="traced σ",
        by="SciPy",
        call=lambda x, sigma: ops.gaussian_blur(x, sigma=sigma, kernel_size=9),
        reference=planes(_traced_blur),
        draw=factors(0.3, 2),
        span=WIDE,
        atol=1.5e-5,
        weighs=True,
    ),
    Oracle(
        function="gaussian_blur",
        rule="OpenCV's",
        by="OpenCV",
        call=partial(ops.gaussian_blur, sigma=(0.8, 1.3), kernel_size=(5, 7), convention="opencv"),
        reference=planes(_by_opencv_blur),
        dtypes=LEVELS,
        scale="levels",
    ),
    *(
        _sobel(orders, size)
        for orders, size in (((0, 1), 3), ((1, 0), 3), ((1, 1), 5), ((2, 0), 7))
    ),
    *(_laplacian(size) for size in (1, 3, 7)),
    *(_canny(size, euclidean) for size in (3, 5) for euclidean in (False, True)),
    Oracle(
        function="bilateral_filter",
        by="OpenCV",
        call=partial(ops.bilateral_filter, size=7),
        reference=_bilateral,
        draw=_sigmas,
        dtypes=("uint8",),
        scale="levels",
        ties=1e-3,
        derivative=False,
    ),
    Oracle(
        function="bilateral_filter",
        rule="float",
        by="OpenCV",
        call=partial(ops.bilateral_filter, size=7),
        reference=_bilateral,
        draw=_sigmas,
        dtypes=FLOATS,
        atol=1e-5,
        derivative=False,
    ),
    Oracle(
        function="bilateral_filter",
        rule="uint16",
        by="OpenCV, of floats",
        call=partial(ops.bilateral_filter, size=7),
        reference=lambda x, color, space: 65535 * _bilateral(x / 65535, color / 65535, space),
        draw=_sigmas,
        dtypes=("uint16",),
        atol=1e-5,
        derivative=False,
    ),
    Oracle(
        function="guided_filter",
        rule="by itself",
        by="kornia",
        call=lambda x, eps: ops.guided_filter(x, x, 5, eps),
        reference=_guided,
        draw=factors(0.001, 1),
        scale="unit",
        atol=5e-6,
        channels=1,
        shapes=((3, 3), (3, 7), (9, 4), (34, 19)),
    ),
    Oracle(
        function="unsharp_mask",
        by="SciPy",
        call=partial(ops.unsharp_mask, kernel_size=9),
        reference=planes(_unsharp),
        draw=_sharpening,
        atol=6e-6,
    ),
    Oracle(
        function="motion_blur",
        by="SciPy's shifts",
        call=partial(ops.motion_blur, size=9),
        reference=planes(_motion),
        draw=_segments,
        span=WIDE,
        atol=2.5e-5,
        weighs=True,
    ),
    Oracle(
        function="distance_transform",
        by="SciPy",
        call=lambda x: ops.distance_transform(_half(x)),
        reference=planes(lambda x: _distance(x > 0.5)),
        dtypes=("float32",),
        derivative=False,
    ),
    *(
        Oracle(
            function="connected_components",
            rule=f"{connectivity}",
            by="SciPy",
            call=lambda x, c=connectivity: ops.connected_components(
                _half(x), connectivity=c
            ).labels.astype("uint16"),
            reference=lambda x, s=structure: _labels(s)(x > 127),
            dtypes=("uint8",),
            results="uint16",
            scale="levels",
            derivative=False,
        )
        for connectivity, structure in ((4, None), (8, E8))
    ),
    *map(_demosaic, ("RGGB", "BGGR", "GRBG", "GBRG")),
]
