"""Lens distortion against OpenCV: maps in float64, and pictures read by SciPy."""

from functools import partial

import cv2
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxsr import ops

CASES, HEIGHT, WIDTH = 64, 20, 24
ROWS, COLUMNS = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
LIMITS = [0.2, 0.05, 0.01, 0.01, 0.02, 0.05, 0.02, 0.01, 0.01, 0.005, 0.01, 0.005]


def draw(count):
    """Images, cameras and coefficients, by numbers that float32 holds."""
    rng = np.random.default_rng(0)
    images = rng.random((CASES, HEIGHT, WIDTH, 1)).astype(np.float32)
    cameras = np.zeros((2, CASES, 3, 3), np.float32)
    cameras[..., 0, 0], cameras[..., 1, 1] = rng.uniform(18, 26, (2, 2, CASES))
    cameras[..., 0, 2] = rng.uniform(10, 14, (2, CASES))
    cameras[..., 1, 2], cameras[..., 2, 2] = rng.uniform(8, 12, (2, CASES)), 1
    limits = np.array(LIMITS[:count])
    return images, *cameras, rng.uniform(-limits, limits, (CASES, count)).astype(np.float32)


def read(image, rows, columns):
    return ndimage.map_coordinates(
        image[..., 0].astype(np.float64), [rows, columns], order=1, mode="grid-constant"
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [4, 5, 8, 12])
def test_undistort_matches_opencv(count):
    images, cameras, new_cameras, coefficients = draw(count)
    got = ops.undistort(images, cameras, coefficients, new_camera=new_cameras)
    want = []
    for image, camera, new_camera, distortion in zip(
        images, cameras, new_cameras, coefficients, strict=True
    ):
        columns, rows = cv2.initUndistortRectifyMap(
            camera.astype(np.float64),
            distortion.astype(np.float64),
            np.eye(3),
            new_camera.astype(np.float64),
            (WIDTH, HEIGHT),
            cv2.CV_32FC1,
        )
        want.append(read(image, rows.astype(np.float64), columns.astype(np.float64)))
    # OpenCV's maps and our positions are float32 numbers near 20.
    np.testing.assert_allclose(got[..., 0], np.stack(want), atol=2e-5)


def test_distort_matches_opencv():
    """OpenCV's forward model takes the places that we read to the pixels that we make."""
    _, cameras, new_cameras, coefficients = draw(5)
    ramp = np.broadcast_to(np.stack([COLUMNS, ROWS], -1), (CASES, HEIGHT, WIDTH, 2))
    got = ops.distort(
        ramp.astype(np.float32), cameras, coefficients, new_camera=new_cameras, border="edge"
    )
    seen = 0
    for places, camera, new_camera, distortion in zip(
        np.asarray(got, np.float64), cameras, new_cameras, coefficients, strict=True
    ):
        inside = (places > 0.01).all(-1) & (places < [WIDTH - 1.01, HEIGHT - 1.01]).all(-1)
        rays = np.concatenate([places[inside], np.ones((inside.sum(), 1))], -1)
        rays = rays @ np.linalg.inv(new_camera.astype(np.float64)).T
        zero = np.zeros(3)
        back, _ = cv2.projectPoints(
            rays, zero, zero, camera.astype(np.float64), distortion.astype(np.float64)
        )
        want = np.stack([COLUMNS[inside], ROWS[inside]], -1)
        seen += inside.mean()
        np.testing.assert_allclose(back[:, 0], want, atol=1e-4)
    assert seen / CASES > 0.5


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "bfloat16"])
def test_both_undo_each_other(dtype):
    """A smooth picture comes back, in every dtype."""
    scale = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    smooth = (0.5 + 0.4 * np.sin(ROWS / 7) * np.cos(COLUMNS / 6))[..., None] * scale
    image = jnp.asarray(smooth, dtype)
    camera = [[22, 0, 11.5], [0, 22, 9.5], [0, 0, 1]]
    lens = [-0.15, 0.03, 0.004, -0.003]
    bent = ops.distort(image, camera, lens, method="bicubic", border="edge")
    back = ops.undistort(bent, camera, lens, method="bicubic", border="edge")
    assert back.dtype == jnp.dtype(dtype)
    off = np.abs(np.asarray(back, np.float64) - np.asarray(image, np.float64))[4:-4, 4:-4]
    assert off.max() / scale < 2e-2
    assert np.abs(np.asarray(bent, np.float64) - smooth).max() / scale > 0.02


IMAGE = np.zeros((2, 5, 6, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.undistort, IMAGE, np.eye(2), [0] * 4), ValueError, "camera must have"),
        (partial(ops.undistort, IMAGE, np.eye(3), [0] * 3), ValueError, "4, 5, 8 or 12"),
        (partial(ops.undistort, IMAGE, np.eye(3), "a"), TypeError, "distortion must hold"),
        (partial(ops.distort, IMAGE, np.eye(3), [0] * 4, border="zeros"), ValueError, "border"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
