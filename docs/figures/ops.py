"""Draws ops/*.jpg for docs/ops.md: the picture before, and after each function.

    python docs/figures/ops.py

The photo is scikit-image's `chelsea` (CC0).
"""

from pathlib import Path

import jax
import numpy as np
from PIL import Image
from skimage import data

from jaxsr import ops

SIDE = 112


def shades_of(plane: jax.Array) -> np.ndarray:
    """From the least value in black to the greatest in white."""
    x = np.asarray(plane)
    return np.broadcast_to((x - x.min()) / np.ptp(x) * 255, (SIDE, SIDE, 3)).astype(np.uint8)


def colours_of(labels: jax.Array) -> np.ndarray:
    """A colour for each number, black for 0."""
    palette = np.random.default_rng(0).integers(60, 256, (int(labels.max()) + 1, 3), np.uint8)
    return np.where(labels > 0, palette[labels[..., 0]], np.uint8(0))


def results(photo: np.ndarray) -> dict[str, object]:
    """The picture that each function makes of the photo."""
    y, x = np.meshgrid(*(np.arange(SIDE, dtype=np.float32),) * 2, indexing="ij")
    rows, columns = y + 6 * np.sin(x / 9), x + 6 * np.sin(y / 9)
    unit = np.stack([columns, rows], -1) / SIDE * 2 - 1
    tilt = np.array([[1, 0.1, 0], [0, 1.1, 0], [0, 0.004, 1]])
    dark = ops.rgb_to_gray(ops.gaussian_blur(photo, sigma=2)) < 100
    key = jax.random.key(0)
    noise = np.random.default_rng(0).uniform(-1, 1, (2, SIDE, SIDE))
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * (SIDE - 1)
    sheet = square + np.array([[12, 6], [-20, 18], [-4, -22], [3, -5]])
    points = np.concatenate([square, [[SIDE / 2, SIDE / 2]]])
    pull = np.array([[0, 0], [0, 0], [0, 0], [0, 0], [14, -12]])
    camera, lens = [[80, 0, 55.5], [0, 80, 55.5], [0, 0, 1]], [-0.4, 0.1, 0, 0]
    policy = (
        ops.RandomResizedCrop(size=SIDE, scale=(0.4, 0.8)),
        ops.RandomFlip(),
        ops.RandomAffine(degrees=25),
        ops.ColorJitter(brightness=0.3, saturation=0.5, hue=0.1),
        ops.RandomErasing(probability=1.0),
    )
    return {
        "perspective_matrix": ops.warp_perspective(photo, ops.perspective_matrix(square, sheet)),
        "elastic": ops.elastic(photo, noise, alpha=80, sigma=5),
        "thin_plate_spline": ops.thin_plate_spline(photo, points, points + pull, border="edge"),
        "distort": ops.distort(photo, camera, lens),
        "undistort": ops.undistort(photo, camera, lens),
        "adjust_brightness": ops.adjust_brightness(photo, 1.5),
        "adjust_contrast": ops.adjust_contrast(photo, 2.0),
        "adjust_gamma": ops.adjust_gamma(photo, 0.5),
        "adjust_hue": ops.adjust_hue(photo, 0.3),
        "adjust_saturation": ops.adjust_saturation(photo, 2.5),
        "motion_blur": ops.motion_blur(photo, 15, 30),
        "jpeg": ops.jpeg(photo, 8),
        "gaussian_noise": ops.gaussian_noise(key, photo, 0.12),
        "sensor_noise": ops.sensor_noise(key, photo, shot=0.04, read=0.02),
        "poisson_noise": ops.poisson_noise(key, photo, 12),
        "salt_and_pepper": ops.salt_and_pepper(key, photo, 0.1),
        "bayer_mosaic": ops.bayer_mosaic(photo).repeat(3, -1),
        "demosaic": ops.demosaic(ops.bayer_mosaic(photo)),
        "adjust_sharpness": ops.adjust_sharpness(photo, 5.0),
        "augment": ops.augment(jax.random.key(3), photo[None], policy).images[0],
        "autocontrast": ops.autocontrast(photo, cutoff=5),
        "bilateral_filter": ops.bilateral_filter(photo, 40, 4),
        "box_filter": ops.box_filter(photo, 9),
        "center_crop": ops.center_crop(photo, 64),
        "canny": np.asarray(ops.canny(ops.rgb_to_gray(photo), 60, 150), np.uint8).repeat(3, -1)
        * 255,
        "clahe": ops.clahe(photo, 3.0, tiles=4),
        "closing": ops.closing(photo, 7),
        "connected_components": colours_of(ops.connected_components(dark).labels),
        "crop": ops.crop(photo, 20, 30, 64),
        "crop_and_resize": ops.crop_and_resize(photo, (30.5, 22, 90, 80), SIDE, antialias=True),
        "dilate": ops.dilate(photo, 5),
        "distance_transform": shades_of(ops.distance_transform(dark)),
        "equalize": ops.equalize(photo),
        "erode": ops.erode(photo, 5),
        "flip": ops.flip(photo),
        "gaussian_blur": ops.gaussian_blur(photo, sigma=3),
        "grid_sample": ops.grid_sample(photo, unit, padding_mode="reflection"),
        "guided_filter": ops.guided_filter(photo, photo, 9, 0.02),
        "invert": ops.invert(photo),
        "map_coordinates": ops.map_coordinates(photo, np.stack([rows, columns]), mode="mirror"),
        "laplacian": shades_of(ops.laplacian(photo).clip(-99, 99)),
        "median_filter": ops.median_filter(photo, 7),
        "morphological_gradient": ops.morphological_gradient(photo, 3),
        "opening": ops.opening(photo, 7),
        "pad": ops.pad(photo[20:90, 20:90], 21, border="symmetric"),
        "posterize": ops.posterize(photo, 2),
        "remap": ops.remap(photo, rows, columns, border="edge"),
        "resize": ops.resize(photo, (56, 84), method="bicubic", antialias=True),
        "rgb_to_y": ops.rgb_to_y(photo).repeat(3, -1),
        "rgb_to_gray": ops.rgb_to_gray(photo).repeat(3, -1),
        "rgb_to_lab": ops.rgb_to_lab(photo, convention="opencv"),
        "rgb_to_yuv": ops.rgb_to_yuv(photo),
        "rgb_to_hls": ops.rgb_to_hls(photo),
        "rgb_to_hsv": ops.rgb_to_hsv(photo),
        "rot90": ops.rot90(photo),
        "rotate": ops.rotate(photo, 30),
        "srgb_to_linear": (255 * ops.srgb_to_linear(photo)).astype(np.uint8),
        "sobel": shades_of(ops.sobel(photo, (0, 1)).clip(-400, 400)),
        "solarize": ops.solarize(photo, 128),
        "transpose": ops.transpose(photo),
        "white_balance": ops.white_balance(photo),
        "unsharp_mask": ops.unsharp_mask(photo, 2.0, 2.0),
        "warp_affine": ops.warp_affine(photo, [[1, 0.3, -16], [0, 1, 0]]),
        "warp_perspective": ops.warp_perspective(photo, tilt),
    }


def main() -> None:
    photo = np.asarray(ops.resize(data.chelsea()[:300, 90:390], SIDE, antialias=True))
    folder = Path(__file__).parent / "ops"
    folder.mkdir(exist_ok=True)
    for name, picture in {"before": photo, **results(photo)}.items():
        Image.fromarray(np.asarray(picture)).save(folder / f"{name}.jpg", quality=80)


if __name__ == "__main__":
    main()
