"""A row of every function that a library has, too: 64 pictures of 224², as in a training batch.

Pictures are smooth with noise, channels last.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.ops.peers import (
    COUNT,
    SIDE,
    Library,
    Peer,
    by_jax,
    by_other_rule,
    by_torch,
    colours,
    cv,
    each,
    enhance,
    kornia,
    ours,
    pixel,
    row,
    with_augmax,
)
from benchmarks.ops.race import Row


def _flips(lib: Library) -> dict[str, Peer | None]:
    turned = lib.Image.Transpose.FLIP_LEFT_RIGHT
    return {
        "OpenCV": each(lambda x: lib.cv2.flip(x, 1)),
        "Pillow": each(lambda x: x.transpose(turned), pillow=True),
        "torch": by_torch(lambda x: x.flip(-1), levels=True),
        "dm_pix": by_jax(lib.dm_pix.flip_left_right) if lib.dm_pix else None,
    }


def _turns(lib: Library) -> dict[str, Peer | None]:
    flag, turned = lib.cv2.ROTATE_90_COUNTERCLOCKWISE, lib.Image.Transpose.ROTATE_90
    return {
        "OpenCV": each(lambda x: lib.cv2.rotate(x, flag)),
        "Pillow": each(lambda x: x.transpose(turned), pillow=True),
        "torch": by_torch(lambda x: x.rot90(1, (-2, -1)).contiguous(), levels=True),
    }


def _paddings(lib: Library) -> dict[str, Peer | None]:
    return {"OpenCV": each(lambda x: lib.cv2.copyMakeBorder(x, *(16,) * 4, lib.cv2.BORDER_REFLECT))}


def _crops(lib: Library) -> dict[str, Peer | None]:
    return {
        "NumPy": each(lambda x: x[20:212, 10:202].copy()),
        "torch": by_torch(lambda x: x[..., 20:212, 10:202].contiguous(), levels=True),
    }


_rng = np.random.default_rng(0)
_ANGLES = _rng.uniform(-0.5, 0.5, COUNT)
_FORWARD = np.stack(
    [
        np.array([[np.cos(a), -np.sin(a), 30 * a + 40], [np.sin(a), np.cos(a), 20 * a - 10]])
        for a in _ANGLES
    ]
)
_HOMOGRAPHIES = np.stack(
    [np.vstack([m, [a * 1e-3, -a * 5e-4, 1]]) for m, a in zip(_FORWARD, _ANGLES, strict=True)]
)
_Y, _X = np.meshgrid(*(np.arange(SIDE, dtype=np.float32),) * 2, indexing="ij")
_ROWS = np.stack([_Y + 6 * np.sin(_X / 9 + k) for k in range(COUNT)]).astype(np.float32)
_COLUMNS = np.stack([_X + 6 * np.sin(_Y / 9 + k) for k in range(COUNT)]).astype(np.float32)
_PLACES = np.stack([_ROWS[0], _COLUMNS[0]])
_GRIDS = np.stack([(_COLUMNS + 0.5) / SIDE * 2 - 1, (_ROWS + 0.5) / SIDE * 2 - 1], -1)
_BOXES = np.stack(
    [_rng.uniform(0, 60, COUNT), _rng.uniform(0, 60, COUNT),
     _rng.uniform(120, 224, COUNT), _rng.uniform(120, 224, COUNT)], -1,
).astype(np.float32)  # fmt: skip
_WHOLE_BOXES = np.floor(_BOXES)
_CAMERA = np.array([[160, 0, 111.5], [0, 160, 111.5], [0, 0, 1]], np.float32)
_LENS = np.array([-0.3, 0.08, 0.001, 0.0], np.float32)
_SQUARE = np.array([[0, 0], [200, 0], [200, 200], [0, 200]])
_QUADS = (_rng.uniform(0, 20, (COUNT, 4, 2)) + _SQUARE).astype(np.float32)


def _affine(lib: Library) -> dict[str, Peer | None]:
    contenders: dict[str, Peer | None] = {
        "OpenCV": each(lambda x, m: lib.cv2.warpAffine(x, m, (SIDE, SIDE)), _FORWARD)
    }
    if lib.kornia:
        matrices = lib.torch.from_numpy(_FORWARD).float()
        affine = lib.kornia.geometry.transform.warp_affine
        contenders["kornia"] = by_torch(lambda x: affine(x, matrices, (SIDE, SIDE)), same=False)
    return contenders


def _rotations(side: int, angles: np.ndarray) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        middle = (side - 1) / 2, (side - 1) / 2
        matrices = [lib.cv2.getRotationMatrix2D(middle, float(a), 1.0) for a in angles]
        turns = lib.torch.deg2rad(lib.torch.from_numpy(angles))
        zero, cos, sin = lib.torch.zeros_like(turns), turns.cos(), turns.sin()
        theta = lib.torch.stack([cos, -sin, zero, sin, cos, zero], -1).reshape(-1, 2, 3)
        functional = lib.torch.nn.functional

        def by_grid(x: Any) -> Any:
            grid = functional.affine_grid(theta, [*x.shape], align_corners=False)
            return functional.grid_sample(x, grid, align_corners=False)

        contenders: dict[str, Peer | None] = {
            "OpenCV": each(lambda x, m: lib.cv2.warpAffine(x, m, (side, side)), matrices),
            "torch": by_torch(by_grid),
        }
        if lib.kornia:
            rotate, degrees = lib.kornia.geometry.transform.rotate, lib.torch.from_numpy(angles)
            contenders["kornia"] = by_torch(lambda x: rotate(x, degrees))
        return contenders

    return peers


def _rotate_row(count: int, side: int) -> Row:
    """An angle for each picture, black beyond the edge."""
    angles = np.random.default_rng(0).uniform(-45, 45, count).astype(np.float32)
    return row(
        "rotate", ours("rotate"), _rotations(side, angles), arguments=(angles,), dtype="float32",
        tolerance=NEAR, count=count, side=side,
    )  # fmt: skip


def _perspective(lib: Library) -> dict[str, Peer | None]:
    warp = lib.cv2.warpPerspective
    return {"OpenCV": each(lambda x, m: warp(x, m, (SIDE, SIDE)), _HOMOGRAPHIES)}


def _remap(lib: Library) -> dict[str, Peer | None]:
    linear = lib.cv2.INTER_LINEAR
    return {"OpenCV": each(lambda x, r, c: lib.cv2.remap(x, c, r, linear), _ROWS, _COLUMNS)}


def _grid(lib: Library) -> dict[str, Peer | None]:
    grid, sample = lib.torch.from_numpy(_GRIDS), lib.torch.nn.functional.grid_sample
    return {"torch": by_torch(lambda x: sample(x, grid, align_corners=False))}


def _coordinates(order: int) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        def read(x: np.ndarray) -> np.ndarray:
            planes = [
                lib.ndimage.map_coordinates(x[..., c], _PLACES, order=order, mode="mirror")
                for c in range(3)
            ]
            return np.stack(planes, -1)

        return {"SciPy": each(read)}

    return peers


def _cut(lib: Library) -> dict[str, Peer | None]:
    def cut(x: np.ndarray, box: np.ndarray) -> np.ndarray:
        x1, y1, x2, y2 = box.astype(int)
        return lib.cv2.resize(x[y1:y2, x1:x2], (SIDE, SIDE))

    return {"OpenCV": each(cut, _WHOLE_BOXES)}


def _filtered(name: str, ksize: int = 3) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        if name == "sobel":
            function = lambda x: lib.cv2.Sobel(x, lib.cv2.CV_32F, 1, 0, ksize=ksize)  # noqa: E731
        elif name == "laplacian":
            function = lambda x: lib.cv2.Laplacian(x, lib.cv2.CV_32F, ksize=1)  # noqa: E731
        else:
            kernel, kind = np.ones((3, 3), np.uint8), getattr(lib.cv2, f"MORPH_{name}")
            function = lambda x: lib.cv2.morphologyEx(x, kind, kernel)  # noqa: E731
        return {"OpenCV": each(function)}

    return peers


def _gamma(lib: Library) -> dict[str, Peer | None]:
    table = np.rint(255 * (np.arange(256) / 255) ** 0.7).astype(np.uint8)
    return {"OpenCV's LUT, the table given": each(lambda x: lib.cv2.LUT(x, table))}


def _inverted(lib: Library) -> dict[str, Peer | None]:
    return {
        "OpenCV": each(lib.cv2.bitwise_not),
        "Pillow": each(lib.ImageOps.invert, pillow=True),
    }


def _jpeg(lib: Library) -> dict[str, Peer | None]:
    from io import BytesIO

    def by_pillow(x: Any) -> np.ndarray:
        file = BytesIO()
        x.save(file, "JPEG", quality=60)
        return np.asarray(lib.Image.open(file))

    def by_opencv(x: np.ndarray) -> np.ndarray:
        ok, data = lib.cv2.imencode(".jpg", x, [lib.cv2.IMWRITE_JPEG_QUALITY, 60])
        assert ok
        return lib.cv2.imdecode(data, lib.cv2.IMREAD_COLOR)

    return {
        "Pillow, the file too": each(by_pillow, pillow=True),
        "OpenCV, the file too": by_other_rule(each(by_opencv)),
    }


def _hue(lib: Library) -> dict[str, Peer | None]:
    found: dict[str, Peer | None] = {}
    if lib.albumentations:
        from albumentations.augmentations.pixel import functional  # pyright: ignore

        adjust = functional.adjust_hue_torchvision
        found["albumentations, OpenCV's table"] = by_other_rule(each(lambda x: adjust(x, 0.1)))
    if lib.kornia:
        hue = lib.kornia.enhance.adjust_hue
        found["kornia"] = by_torch(lambda x: hue(x, 0.1 * 2 * np.pi), same=False)
    if lib.dm_pix:
        found["dm_pix"] = by_jax(lambda x: lib.dm_pix.adjust_hue(x, 0.1))
    return found


def _guided(lib: Library) -> dict[str, Peer | None]:
    if lib.kornia is None:
        return {}
    blur = lib.kornia.filters.guided_blur
    return {"kornia": by_torch(lambda x: blur(x, x, 5, 0.01), same=False)}


def _noise(lib: Library) -> dict[str, Peer | None]:
    import threading

    local = threading.local()

    def add(x: np.ndarray) -> np.ndarray:
        if not hasattr(local, "rng"):
            local.rng = np.random.default_rng(0)
        noise = local.rng.standard_normal(x.shape, np.float32)
        return np.clip(np.rint(x + 10 * noise), 0, 255).astype(np.uint8)

    return {"NumPy": by_other_rule(each(add))}


def _standardised(lib: Library) -> dict[str, Peer | None]:
    mean, std = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    scale, shift = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    found: dict[str, Peer | None] = {"NumPy": each(lambda x: x * scale + shift)}
    if lib.albumentations:
        from albumentations import Normalize  # pyright: ignore

        transform = Normalize()
        found["albumentations"] = each(transform.apply)
    return found


def _normalised(lib: Library) -> dict[str, Peer | None]:
    half = np.float32(1 / 127.5)
    return {
        "NumPy": each(lambda x: x * half - np.float32(1)),
        "torch": by_torch(lambda x: x.float().mul_(1 / 127.5).sub_(1), levels=True),
    }


def _distances(lib: Library) -> dict[str, Peer | None]:
    precise = lib.cv2.DIST_L2, lib.cv2.DIST_MASK_PRECISE

    def by_opencv(x: np.ndarray) -> np.ndarray:
        return lib.cv2.distanceTransform((x > 128).view(np.uint8), *precise)

    return {
        "SciPy": each(lambda x: lib.ndimage.distance_transform_edt(x > 128)),
        "OpenCV": each(by_opencv),
    }


def _matrices(lib: Library) -> dict[str, Peer | None]:
    return {
        "OpenCV": each(
            lambda _, a, b: lib.cv2.getPerspectiveTransform(a, b), _QUADS, _QUADS[::-1] + 1
        )
    }


def _components(lib: Library) -> dict[str, Peer | None]:
    def label(x: np.ndarray) -> np.ndarray:
        return lib.cv2.connectedComponents((x > 128).view(np.uint8), connectivity=4)[1]

    return {"OpenCV": each(label)}


def _clahe(lib: Library) -> dict[str, Peer | None]:
    return {"OpenCV": each(lambda x: lib.cv2.createCLAHE(2.0, (8, 8)).apply(x))}


def _noisy(images: Any) -> Any:
    import jax

    from jaxsr import ops

    return ops.gaussian_noise(jax.random.key(0), images, 10 / 255)


def _skimage(name: str, *, pair: bool = False) -> Callable[[Library], dict[str, Peer | None]]:
    """scikit-image's function of pictures in 0…50, and with `pair` of their mirror images."""

    def peers(lib: Library) -> dict[str, Peer | None]:
        from skimage import color

        function = getattr(color, name)
        second = (lambda x: (x[::-1] * 50,)) if pair else (lambda x: ())
        return {"scikit-image": each(lambda x: function(x * 50, *second(x)))}

    return peers


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEVEL, READ, NEAR = 1, 0.01, 0.05
"""Tolerances: a level at ties, float32 positions against OpenCV's, and positions in steps of 1/32
pixel."""

ROWS = (
    row("flip", ours("flip"), with_augmax(_flips, "HorizontalFlip", p=1.0),
        in_planes=ours("flip", axes=(-2, -1))),
    row("rot90", ours("rot90"), _turns),
    row("transpose", ours("transpose"), cv("transpose")),
    row("pad 16 symmetric", ours("pad", 16, border="symmetric"), _paddings),
    row("crop 192", ours("crop", 20, 10, 192), with_augmax(_crops, "Crop", 10, 20, 192, 192),
        in_planes=ours("crop", 20, 10, 192, axes=(-2, -1))),
    row("crop_and_resize", ours("crop_and_resize", size=SIDE), _cut, arguments=(_WHOLE_BOXES,),
        dtype="float32", tolerance=1e-4),
    row("warp_affine", ours("warp_affine"), _affine, arguments=(_FORWARD.astype(np.float32),),
        tolerance=2),
    row("warp_affine", ours("warp_affine"), with_augmax(_affine, "Rotate", (-28.6, 28.6)),
        arguments=(_FORWARD.astype(np.float32),), dtype="float32", tolerance=READ),
    _rotate_row(64, SIDE),
    _rotate_row(8, 512),
    row("warp_perspective", ours("warp_perspective"), _perspective,
        arguments=(_HOMOGRAPHIES.astype(np.float32),), dtype="float32", tolerance=READ),
    row("perspective_matrix", lambda _, a, b: ours("perspective_matrix")(a, b), _matrices,
        arguments=(_QUADS, _QUADS[::-1] + 1), tolerance=0.1),
    row("remap", ours("remap"), _remap, arguments=(_ROWS, _COLUMNS), tolerance=LEVEL),
    row("remap", ours("remap"), _remap, arguments=(_ROWS, _COLUMNS), dtype="float32",
        tolerance=READ),
    row("grid_sample", ours("grid_sample"), _grid, arguments=(_GRIDS,), dtype="float32",
        tolerance=READ),
    row("undistort", ours("undistort", _CAMERA, _LENS), cv("undistort", _CAMERA, _LENS),
        tolerance=2),
    row("map_coordinates order 1", ours("map_coordinates", _PLACES, order=1, mode="mirror"),
        _coordinates(1), dtype="float32", tolerance=READ),
    row("map_coordinates order 3", ours("map_coordinates", _PLACES, order=3, mode="mirror"),
        _coordinates(3), dtype="float32", tolerance=READ),
    row("gaussian_blur 5", ours("gaussian_blur", sigma=1.1, kernel_size=5, convention="opencv"),
        cv("GaussianBlur", (5, 5), 1.1)),
    row("gaussian_blur 5", ours("gaussian_blur", sigma=1.1, kernel_size=5),
        cv("GaussianBlur", (5, 5), 1.1), dtype="float32", tolerance=1e-5),
    row("box_filter 5", ours("box_filter", 5), cv("blur", (5, 5)), tolerance=LEVEL),
    row("box_filter 5", ours("box_filter", 5), cv("blur", (5, 5)), dtype="float32",
        tolerance=1e-5),
    row("median_filter 3", ours("median_filter", 3), cv("medianBlur", 3)),
    row("median_filter 3", ours("median_filter", 3), cv("medianBlur", 3), dtype="float32"),
    row("dilate 3", ours("dilate", 3), cv("dilate", np.ones((3, 3), np.uint8))),
    row("dilate 3", ours("dilate", 3), cv("dilate", np.ones((3, 3), np.uint8)), dtype="float32"),
    row("erode 3", ours("erode", 3), cv("erode", np.ones((3, 3), np.uint8))),
    row("opening 3", ours("opening", 3), _filtered("OPEN")),
    row("closing 3", ours("closing", 3), _filtered("CLOSE")),
    row("morphological_gradient 3", ours("morphological_gradient", 3), _filtered("GRADIENT")),
    row("bilateral_filter 5", ours("bilateral_filter", sigma_color=25.5, sigma_space=2.0, size=5),
        cv("bilateralFilter", 5, 25.5, 2.0)),
    row("guided_filter 5", lambda x: ours("guided_filter", x, 5, 0.01)(x), _guided, dtype="float32",
        count=16),
    row("unsharp_mask", ours("unsharp_mask", 1.0, 1.0),
        kornia("filters", "unsharp_mask", (9, 9), (1.0, 1.0)), dtype="float32"),
    row("sobel 3", ours("sobel", (0, 1)), _filtered("sobel"), tolerance=1e-3),
    row("sobel 3", ours("sobel", (0, 1)), _filtered("sobel"), dtype="float32", tolerance=1e-5),
    row("laplacian", ours("laplacian"), _filtered("laplacian"), tolerance=1e-3),
    row("canny", ours("canny", 50, 120),
        lambda lib: {"OpenCV": each(lambda x: lib.cv2.Canny(x, 50, 120) > 0)}, gray=True),
    row("clahe", ours("clahe", 2.0), _clahe, gray=True, tolerance=LEVEL),
    row("connected_components", lambda x: ours("connected_components")(x > 128).labels, _components,
        gray=True),
    row("distance_transform", lambda x: ours("distance_transform")(x > 128), _distances, gray=True,
        tolerance=1e-4),
    row("adjust_brightness", ours("adjust_brightness", 1.4),
        with_augmax(enhance("Brightness", "adjust_brightness_torchvision", ""),
                    "RandomBrightness", (0.4, 0.4), p=1.0)),
    row("adjust_contrast", ours("adjust_contrast", 1.4),
        with_augmax(enhance("Contrast", "", "adjust_contrast"),
                    "RandomContrast", (0.4, 0.4), p=1.0)),
    row("adjust_saturation", ours("adjust_saturation", 1.4),
        enhance("Color", "", "adjust_saturation")),
    row("adjust_sharpness", ours("adjust_sharpness", 1.4), enhance("Sharpness", "", "")),
    row("adjust_hue", ours("adjust_hue", 0.1),
        with_augmax(_hue, "ColorJitter", brightness=0, contrast=0, saturation=0, hue=0.1, p=1.0)),
    row("adjust_gamma", ours("adjust_gamma", 0.7),
        with_augmax(_gamma, "RandomGamma", (0.7, 0.7), p=1.0), tolerance=LEVEL),
    row("solarize", ours("solarize", 128),
        with_augmax(pixel("solarize", 128, albumentations=("solarize", 0.5)),
                    "Solarization", 0.5, p=1.0)),
    row("posterize", ours("posterize", 3), pixel("posterize", 3, albumentations=("posterize", 3))),
    row("invert", ours("invert"), _inverted),
    row("equalize", ours("equalize"), pixel("equalize", albumentations=("equalize",))),
    row("autocontrast", ours("autocontrast"), pixel("autocontrast")),
    row("motion_blur 9", ours("motion_blur", 9, 30.0),
        kornia("filters", "motion_blur", 9, 30.0, 0.0), dtype="float32"),
    row("jpeg 60", ours("jpeg", 60), _jpeg),
    row("gaussian_noise", _noisy, _noise),
    row("demosaic bilinear", ours("demosaic", method="bilinear"),
        lambda lib: {"OpenCV": by_other_rule(
            each(lambda x: lib.cv2.cvtColor(x, lib.cv2.COLOR_BayerRGGB2RGB)))}, gray=True),
    row("rgb_to_hsv, OpenCV's", ours("rgb_to_hsv", convention="opencv"), colours("RGB2HSV")),
    row("hsv_to_rgb, OpenCV's", ours("hsv_to_rgb", convention="opencv"), colours("HSV2RGB"),
        tolerance=LEVEL),
    row("rgb_to_hls, OpenCV's", ours("rgb_to_hls", convention="opencv"), colours("RGB2HLS"),
        tolerance=LEVEL),
    row("hls_to_rgb, OpenCV's", ours("hls_to_rgb", convention="opencv"), colours("HLS2RGB"),
        tolerance=LEVEL),
    row("rgb_to_hsv", ours("rgb_to_hsv"), kornia("color", "rgb_to_hsv"), dtype="float32"),
    row("rgb_to_lab, OpenCV's", ours("rgb_to_lab", convention="opencv"), colours("RGB2Lab")),
    row("rgb_to_lab", ours("rgb_to_lab"), kornia("color", "rgb_to_lab", same=None),
        dtype="float32", tolerance=0.05),
    row("lab_to_rgb", lambda x: ours("lab_to_rgb")(x * 50), _skimage("lab2rgb"),
        dtype="float32", tolerance=1e-3),
    row("rgb_to_luv", ours("rgb_to_luv"), kornia("color", "rgb_to_luv"), dtype="float32"),
    row("rgb_to_xyz", ours("rgb_to_xyz"), kornia("color", "rgb_to_xyz"), dtype="float32"),
    row("srgb_to_linear", ours("srgb_to_linear"), kornia("color", "rgb_to_linear_rgb", same=None),
        dtype="float32", tolerance=1e-5),
    row("linear_to_srgb", ours("linear_to_srgb"), kornia("color", "linear_rgb_to_rgb", same=None),
        dtype="float32", tolerance=1e-5),
    row("rgb_to_ycbcr full", ours("rgb_to_ycbcr", convention="full"),
        colours("RGB2YCrCb"), tolerance=255),
    row("rgb_to_yuv", ours("rgb_to_yuv"), colours("RGB2YUV")),
    row("yuv_to_rgb", ours("yuv_to_rgb"), colours("YUV2RGB")),
    row("rgb_to_gray, OpenCV's", ours("rgb_to_gray", convention="opencv"), colours("RGB2GRAY")),
    row("rgb_to_gray", ours("rgb_to_gray"),
        lambda lib: {"Pillow": each(lambda x: x.convert("L"), pillow=True)}),
    row("delta_e", lambda x: ours("delta_e")(x * 50, x[:, ::-1] * 50),
        _skimage("deltaE_ciede2000", pair=True),
        dtype="float32", count=8, tolerance=1e-2),
    row("standardise", ours("standardise", MEAN, STD), with_augmax(_standardised, "Normalize"),
        tolerance=1e-4),
    row("normalise", ours("normalise"), _normalised, tolerance=1e-5),
)  # fmt: skip
