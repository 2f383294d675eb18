"""Oracles of cuts, warps and measures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from scipy.interpolate import RBFInterpolator
from skimage import color, metrics

from jaxsr import ops
from tests.oracles.images.oracle import LEVELS, Arguments, Oracle
from tests.oracles.images.pixels import factors, planes
from tests.oracles.images.resize import WIDE, torchs

BORDERS: dict[str, Any] = {
    "edge": "edge",
    "reflect101": "reflect",
    "symmetric": "symmetric",
    "wrap": "wrap",
    "constant": "constant",
}


def _pad(border: str) -> Oracle:
    return Oracle(
        function="pad",
        rule=border,
        by="NumPy",
        call=partial(ops.pad, padding=(3, 0, 50, 2), border=border),
        reference=lambda x: np.pad(x, ((3, 0), (50, 2), (0, 0)), mode=BORDERS[border]),
        span=WIDE,
        scale="levels",
        atol=0,
        weighs=True,
    )


def _flags(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    return tuple(rng.random((2, len(images))) < 0.5)


def _flipped(image: np.ndarray, horizontal: bool, vertical: bool) -> np.ndarray:
    return image[:: -1 if vertical else 1, :: -1 if horizontal else 1]


def _corners(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    return tuple(rng.integers(-3, 40, (2, len(images))))


def _cropped(image: np.ndarray, top: int, left: int) -> np.ndarray:
    height, width = image.shape[:2]
    y, x = np.clip(top, 0, height - min(height, 2)), np.clip(left, 0, width - min(width, 1))
    return image[y : y + min(height, 2), x : x + min(width, 1)]


def _crop(images: Any, top: Any, left: Any) -> Any:
    return ops.crop(images, top, left, (min(images.shape[1], 2), min(images.shape[2], 1)))


def _boxes(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    """Boxes of whole pixels, inside the image."""
    height, width = images.shape[1:3]
    ends = [
        np.stack([np.sort(rng.permutation(n + 1)[:2]) for _ in images]) for n in (width, height)
    ]
    return (np.stack([ends[0][:, 0], ends[1][:, 0], ends[0][:, 1], ends[1][:, 1]], -1),)


def _cut(method: str, antialias: bool) -> Oracle:
    def reference(image: np.ndarray, box: np.ndarray) -> np.ndarray:
        x1, y1, x2, y2 = box
        return torchs(image[y1:y2, x1:x2], (7, 50), method, antialias)

    return Oracle(
        function="crop_and_resize",
        rule=f"{method}{' antialias' * antialias}",
        by="torch",
        call=partial(ops.crop_and_resize, size=(7, 50), method=method, antialias=antialias),
        reference=reference,
        draw=_boxes,
        span=WIDE,
        atol=3e-5,
    )


SCIPY = {
    "constant": "grid-constant",
    "edge": "nearest",
    "reflect101": "mirror",
    "symmetric": "reflect",
    "wrap": "grid-wrap",
}


def read(
    image: np.ndarray, rows: Any, columns: Any, border: str = "constant", order: int = 1
) -> np.ndarray:
    """SciPy's reading at positions in float64, for each channel."""
    places = np.asarray([rows, columns], float)
    at = partial(ndimage.map_coordinates, coordinates=places, order=order, mode=SCIPY[border])
    return planes(at)(image)


def _fields(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    height, width = images.shape[1:3]
    rows = rng.uniform(-0.7 * height - 1, 1.7 * height + 1, (len(images), 6, 7))
    columns = rng.uniform(-0.7 * width - 1, 1.7 * width + 1, (len(images), 6, 7))
    places = np.stack([rows, columns]).astype(np.float32)
    places[:, :2] = np.rint(places[:, :2])  # on pixels
    return tuple(places)


def _remap(border: str) -> Oracle:
    return Oracle(
        function="remap",
        rule=border,
        by="SciPy",
        call=partial(ops.remap, border=border),
        reference=partial(read, border=border),
        draw=_fields,
        atol=4e-5,
        weighs=True,
    )


def _into(places: np.ndarray, shape: tuple[int, ...], mode: str) -> np.ndarray:
    """Positions of a picture mirrored about its edges, within one period of it."""
    if mode != "reflect":
        return places
    periods = 2 * np.array(shape[:2])[:, None, None]
    return (places + 0.5) % periods - 0.5


def _coordinates(order: int, mode: str) -> Oracle:
    def draw(rng: np.random.Generator, images: np.ndarray) -> Arguments:
        # No halves, where order 0 jumps: SciPy mirrors before it rounds.
        places = np.stack(_fields(rng, images), 1)
        return (((2 * np.round(places * 256) + 1) / 512).astype(np.float32),)

    def reference(image: np.ndarray, places: np.ndarray) -> np.ndarray:
        # SciPy's splines of "reflect" are approximate on lines of 2 and 3 pixels, by 1e-4.
        margin = 40 if mode == "reflect" else 0
        wide = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric")
        at = partial(
            ndimage.map_coordinates,
            coordinates=_into(places.astype(float), image.shape, mode) + margin,
            order=order,
            mode="mirror" if margin else mode,
        )
        return planes(at)(wide)

    return Oracle(
        function="map_coordinates",
        rule=f"order {order}, {mode}",
        by="SciPy",
        call=partial(ops.map_coordinates, order=order, mode=mode),
        reference=reference,
        draw=draw,
        atol=1e-4,
        channels=1,
    )


def _grids(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    return (rng.uniform(-1.7, 1.7, (len(images), 6, 7, 2)).astype(np.float32),)


def _grid(method: str, padding_mode: str, align_corners: bool) -> Oracle:
    options: Any = {"padding_mode": padding_mode, "align_corners": align_corners}

    def reference(image: np.ndarray, grid: np.ndarray) -> np.ndarray:
        plane = torch.from_numpy(image).movedim(-1, 0)[None]
        places = torch.from_numpy(grid.astype(float))[None]
        return F.grid_sample(plane, places, mode=method, **options)[0].movedim(0, -1).numpy()

    return Oracle(
        function="grid_sample",
        rule=f"{method}, {padding_mode}{', corners aligned' * align_corners}",
        by="torch",
        call=partial(ops.grid_sample, method=method, **options),
        reference=reference,
        draw=_grids,
        atol=5e-5,
        weighs=True,
    )


def _matrices(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    """Powers of two and quarter turns, whose inverses are exact, moved by parts of pixels."""
    linear = rng.choice([0.5, 1.0, 2.0], (len(images), 2))[:, None] * np.eye(2)
    turned = rng.random(len(images)) < 0.5
    linear[turned] = linear[turned][:, ::-1] * [[1], [-1]]
    moved = np.rint(rng.uniform(-4, 12, (len(images), 2, 1)) * 64) / 64
    return (np.concatenate([linear, moved], -1).astype(np.float32),)


def _homographies(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    (affine,) = _matrices(rng, images)
    bottom = np.tile([0, 0, 1], (len(images), 1, 1))
    return (np.concatenate([affine, bottom], 1).astype(np.float32),)


def _warped(image: np.ndarray, matrix: np.ndarray, border: str = "constant") -> np.ndarray:
    matrix33 = np.vstack([matrix[:2].astype(float), [0, 0, 1]])
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(float)
    places = np.tensordot(np.linalg.inv(matrix33), np.stack([x, y, np.ones_like(x)]), 1)
    return read(image, places[1], places[0], border)


def _rotated(image: np.ndarray, degrees: float) -> np.ndarray:
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(float)
    angle, cy, cx = np.deg2rad(float(degrees)), (height - 1) / 2, (width - 1) / 2
    columns = np.cos(angle) * (x - cx) - np.sin(angle) * (y - cy) + cx
    rows = np.sin(angle) * (x - cx) + np.cos(angle) * (y - cy) + cy
    return read(image, rows, columns)


def _noise(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    noise = rng.uniform(-1, 1, (len(images), 2, *images.shape[1:3])).astype(np.float32)
    return noise, rng.uniform(1, 20, len(images)).astype(np.float32)


def _bent(image: np.ndarray, noise: np.ndarray, alpha: float) -> np.ndarray:
    y, x = np.mgrid[: image.shape[0], : image.shape[1]].astype(float)
    down, across = (
        ndimage.gaussian_filter(field.astype(float), 1.5, mode="mirror") * float(alpha)
        for field in noise
    )
    return read(image, y + down, x + across, "reflect101")


def _points(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    source = rng.uniform(0, 20, (len(images), 6, 2)).astype(np.float32)
    return source, (source + rng.normal(0, 1, source.shape)).astype(np.float32)


def _plate(image: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(float)
    plate = RBFInterpolator(
        target.astype(float), source.astype(float), kernel="thin_plate_spline", degree=1
    )
    columns, rows = plate(np.stack([x.ravel(), y.ravel()], -1)).T.reshape(2, height, width)
    return read(image, rows, columns)


def _lenses(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    height, width = images.shape[1:3]
    cameras = np.tile(np.eye(3), (len(images), 1, 1))
    cameras[:, [0, 1], [0, 1]] = rng.uniform(18, 26, (len(images), 2))
    cameras[:, :2, 2] = rng.uniform(0.3, 0.7, (len(images), 2)) * (width, height)
    limits = [0.2, 0.05, 0.01, 0.01, 0.02]
    lenses = rng.uniform(-1, 1, (len(images), 5)) * limits
    return cameras.astype(np.float32), lenses.astype(np.float32)


def _straight(image: np.ndarray, camera: np.ndarray, lens: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    matrix = camera.astype(float)
    columns, rows = cv2.initUndistortRectifyMap(
        matrix, lens.astype(float), np.eye(3), matrix, (width, height), cv2.CV_32FC1
    )
    return read(image, rows, columns)


def _others(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    noise = rng.random(images.shape)
    if images.dtype.name in LEVELS:
        return (np.rint(noise * np.iinfo(images.dtype).max).astype(images.dtype),)
    return ((images + 0.3 * (noise - 0.5)).astype(np.float32),)


def _white(images: Any) -> float:
    return {"uint8": 255, "uint16": 65535}.get(str(images.dtype), 1)


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of pictures and others of the same dtype."""
    return lambda x, y: function(x, y.astype(x.dtype), data_range=_white(x))


def _ssim(x: np.ndarray, y: np.ndarray) -> Any:
    return metrics.structural_similarity(
        x.astype(float),
        y.astype(float),
        data_range=_white(x),
        channel_axis=-1,
        gaussian_weights=True,
        use_sample_covariance=False,
    )


def _psnr(x: np.ndarray, y: np.ndarray) -> Any:
    return metrics.peak_signal_noise_ratio(x.astype(float), y.astype(float), data_range=_white(x))


def _four_points(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    square = np.array([[0.0, 0], [200, 0], [200, 150], [0, 150]])
    return tuple(
        (square + rng.uniform(-40, 40, (len(images), 4, 2))).astype(np.float32) for _ in range(2)
    )


PLACES: list[Oracle] = [
    *map(_pad, BORDERS),
    Oracle(
        function="flip",
        by="NumPy",
        draw=_flags,
        reference=_flipped,
        scale="levels",
        atol=0,
        weighs=True,
        call=lambda x, h, v: ops.flip(x, horizontal=h, vertical=v),
        span=WIDE,
    ),
    *(
        Oracle(
            function="rot90",
            rule=f"{turns}",
            by="NumPy",
            call=partial(ops.rot90, turns=turns),
            reference=partial(np.rot90, k=turns),
            scale="levels",
            atol=0,
            span=WIDE,
        )
        for turns in (-1, 0, 2, 5)
    ),
    Oracle(
        function="transpose",
        by="NumPy",
        call=ops.transpose,
        scale="levels",
        atol=0,
        span=WIDE,
        reference=lambda x: x.swapaxes(0, 1),
    ),
    Oracle(
        function="crop",
        by="NumPy",
        call=_crop,
        reference=_cropped,
        draw=_corners,
        scale="levels",
        atol=0,
        span=WIDE,
    ),
    *(
        _cut(*rule)
        for rule in (("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True))
    ),
    *map(_remap, SCIPY),
    *(_coordinates(order, "mirror") for order in range(6)),
    *(_coordinates(3, mode) for mode in ("reflect", "constant", "nearest", "grid-wrap")),
    _grid("bilinear", "zeros", False),
    _grid("bilinear", "reflection", True),
    _grid("bicubic", "border", False),
    _grid("bicubic", "zeros", True),
    *(
        Oracle(
            function="warp_affine",
            rule=border,
            by="SciPy",
            reference=partial(_warped, border=border),
            call=partial(ops.warp_affine, border=border),
            draw=_matrices,
            atol=4e-5,
            weighs=True,
        )
        for border in SCIPY
    ),
    Oracle(
        function="warp_perspective",
        by="SciPy",
        call=ops.warp_perspective,
        reference=_warped,
        draw=_homographies,
        atol=4e-5,
        weighs=True,
    ),
    Oracle(
        function="rotate",
        by="SciPy",
        call=ops.rotate,
        reference=_rotated,
        draw=factors(-400, 400),
        atol=4e-5,
        weighs=True,
    ),
    Oracle(
        function="elastic",
        by="SciPy",
        reference=_bent,
        draw=_noise,
        atol=6e-5,
        call=lambda x, noise, alpha: ops.elastic(x, noise, alpha=alpha, sigma=1.5),
    ),
    Oracle(
        function="thin_plate_spline",
        by="SciPy",
        call=ops.thin_plate_spline,
        reference=_plate,
        draw=_points,
        atol=1e-3,
    ),
    Oracle(
        function="undistort",
        by="OpenCV's maps, SciPy",
        call=ops.undistort,
        reference=_straight,
        draw=_lenses,
        atol=6e-5,
        weighs=True,
    ),
    Oracle(
        function="perspective_matrix",
        by="OpenCV",
        dtypes=("float32",),
        draw=_four_points,
        call=lambda _, source, target: ops.perspective_matrix(source, target),
        reference=lambda _, source, target: cv2.getPerspectiveTransform(source, target),
        derivative=False,
        atol=1e-3,
    ),
    Oracle(
        function="psnr",
        by="scikit-image",
        call=_measured(ops.psnr),
        dtypes=("float32",),
        reference=_psnr,
        draw=_others,
        results="float32",
        white=1,
        atol=1e-4,
    ),
    Oracle(
        function="ssim",
        by="scikit-image",
        call=_measured(ops.ssim),
        dtypes=("float32",),
        reference=_ssim,
        draw=_others,
        results="float32",
        white=1,
        atol=2e-5,
        shapes=((11, 11), (11, 12), (17, 11), (34, 19)),
    ),
    Oracle(
        function="delta_e",
        by="scikit-image",
        dtypes=("float32",),
        call=lambda x, y: ops.delta_e(x, y.astype(x.dtype)),
        reference=color.deltaE_ciede2000,
        draw=_others,
        span=(0, 100),
        atol=1e-3,
    ),
]
