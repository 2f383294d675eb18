"""Elastic noise and thin plates against SciPy, in float64 there: 64 draws in one compilation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage
from scipy.interpolate import RBFInterpolator

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

CASES, HEIGHT, WIDTH = 64, 20, 24
Y, X = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)


def pictures(dtype="float32"):
    values = np.random.default_rng(0).random((CASES, HEIGHT, WIDTH, 1))
    if dtype in ("uint8", "uint16"):
        return (values * np.iinfo(dtype).max).round().astype(dtype)
    return jnp.asarray(values, dtype)


def check(got, want, dtype, atol):
    """Integers are the reference rounded; a difference may lie within float32 of a half."""
    most = np.iinfo(dtype).max if dtype in ("uint8", "uint16") else 1
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5)
    off = np.abs(np.asarray(got, np.float64)[..., 0] - np.stack(want))
    assert got.dtype == jnp.dtype(dtype)
    assert off.max() <= rounding + most * atol


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_elastic_matches_scipy(dtype):
    rng = np.random.default_rng(1)
    images = pictures(dtype)
    noise = rng.uniform(-1, 1, (CASES, 2, HEIGHT, WIDTH)).astype(np.float32)
    alpha = rng.uniform(1, 20, CASES).astype(np.float32)
    got = ops.elastic(images, noise, alpha=alpha, sigma=2)
    want = []
    for image, field, factor in zip(np.asarray(images, np.float64), noise, alpha, strict=True):
        down, across = (
            ndimage.gaussian_filter(plane.astype(np.float64), 2, mode="mirror") * factor
            for plane in field
        )
        places = [Y + down, X + across]
        want.append(ndimage.map_coordinates(image[..., 0], places, order=1, mode="mirror"))
    check(got, want, dtype, 5e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_thin_plate_spline_matches_scipy(dtype):
    rng = np.random.default_rng(2)
    images = pictures(dtype)
    source = rng.uniform(0, HEIGHT, (CASES, 9, 2)).astype(np.float32)
    target = (source + rng.normal(0, 1.5, source.shape)).astype(np.float32)
    smoothing = np.linspace(0, 3, CASES).astype(np.float32)
    got = ops.thin_plate_spline(images, source, target, smoothing=smoothing)
    want = []
    for k, image in enumerate(np.asarray(images, np.float64)):
        plate = RBFInterpolator(
            target[k].astype(np.float64),
            source[k].astype(np.float64),
            kernel="thin_plate_spline",
            smoothing=float(smoothing[k]),
            degree=1,
        )
        across, down = plate(np.stack([X.ravel(), Y.ravel()], -1)).T.reshape(2, HEIGHT, WIDTH)
        places = [down, across]
        want.append(ndimage.map_coordinates(image[..., 0], places, order=1, mode="grid-constant"))
    # Systems of nearby points magnify float32's rounding by up to a hundred.
    check(got, want, dtype, 1e-4)


def test_a_thin_plate_moves_its_points():
    """A value at a point of the source is at that of the target afterwards."""
    ramp = np.stack([X, Y], -1)[None].astype(np.float32)
    source = np.array([[2, 3], [20, 4], [4, 17], [19, 15], [11, 9]], np.float32)
    target = source + np.array([[1, 2], [-2, 1], [2, -2], [-1, -1], [2, 1]], np.float32)
    out = ops.thin_plate_spline(ramp, source, target, border="edge")
    columns, rows = target.astype(int).T
    np.testing.assert_allclose(out[0, rows, columns], source, atol=1e-4)


@pytest.mark.slow
def test_gradients_of_points():
    """In float64, against a small move."""
    with jax.enable_x64(True):
        images = jnp.asarray(
            ndimage.gaussian_filter(np.asarray(pictures(), np.float64)[0, ..., 0], 2)
        )[..., None]
        source = jnp.asarray([[2.0, 3.0], [20, 4], [4, 17], [19, 15]])
        points = source + 0.3

        @jax.jit
        @jax.value_and_grad
        def loss(target):
            return ops.thin_plate_spline(images, source, target).sum()

        step = 1e-6 * np.random.default_rng(4).random(points.shape)
        rise = loss(points + step)[0] - loss(points - step)[0]
        np.testing.assert_allclose(rise, 2 * (loss(points)[1] * step).sum(), rtol=1e-4)


IMAGE = np.zeros((2, 5, 6, 3), np.float32)
POINTS = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.elastic, IMAGE, np.ones((2, 5, 5)), alpha=1, sigma=1), "noise must have"),
        (partial(ops.elastic, IMAGE, np.ones((2, 5, 6)), alpha=1, sigma=0), "sigma must be"),
        (partial(ops.thin_plate_spline, IMAGE, POINTS, POINTS[:3]), "of one shape"),
        (partial(ops.thin_plate_spline, IMAGE, POINTS[:2], POINTS[:2]), "at least 3 points, got 2"),
        (partial(ops.thin_plate_spline, IMAGE, POINTS, POINTS, border="zeros"), "unknown border"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
