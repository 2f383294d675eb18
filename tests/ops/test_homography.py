"""Homographies from points against OpenCV, in float64 there."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr import ops

CASES = 64
SQUARE = np.array([[0.0, 0], [200, 0], [200, 150], [0, 150]])


def moved(matrix, points):
    homogeneous = np.concatenate([points, np.ones((*points.shape[:-1], 1))], -1)
    places = homogeneous @ np.asarray(matrix, np.float64).T
    return places[:, :2] / places[:, 2:]


def test_perspective_matrix_matches_opencv():
    rng = np.random.default_rng(0)
    source, target = (
        (SQUARE + rng.uniform(-40, 40, (CASES, 4, 2))).astype(np.float32) for _ in range(2)
    )
    got = jax.vmap(ops.perspective_matrix)(source, target)
    np.testing.assert_allclose(got, ops.perspective_matrix(source, target), rtol=1e-5, atol=1e-6)
    points = rng.uniform(0, 150, (20, 2))
    for ours, before, behind in zip(got, source, target, strict=True):
        theirs = cv2.getPerspectiveTransform(before, behind)
        # Float32 has places of some hundred pixels to 2e-5; quotients of the far corners grow it.
        np.testing.assert_allclose(moved(ours, points), moved(theirs, points), atol=3e-4)


@pytest.mark.slow
def test_gradients():
    """A small move of a corner moves the matrix as the gradient says, in float64."""
    with jax.enable_x64(True):
        target = jnp.asarray(SQUARE + np.arange(8).reshape(4, 2))

        def loss(target):
            return ops.perspective_matrix(np.asarray(SQUARE, np.float64), target).sum()

        slope = jax.grad(loss)(target)
        step = 1e-4 * np.random.default_rng(0).random((4, 2))
        rise = loss(target + step) - loss(target - step)
        np.testing.assert_allclose(rise, 2 * (slope * step).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.perspective_matrix, SQUARE[:3], SQUARE), ValueError, "source must have"),
        (partial(ops.perspective_matrix, SQUARE, "a"), TypeError, "target must hold numbers"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
