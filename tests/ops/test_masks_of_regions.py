"""Connected components and distances against SciPy and OpenCV."""

from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxsr import ops
from jaxsr.ops import _regions, distance

pytestmark = pytest.mark.usefixtures("xla_kernels")

CASES = 60
scipy_label: Any = ndimage.label  # whose stubs know one of two results


def masks(shape=(CASES, 23, 29)):
    """From empty to full."""
    rng = np.random.default_rng(0)
    share = np.linspace(0, 1, CASES)[:, None, None]
    return rng.random(shape) < share


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("shape", "connectivity"), [((23, 29), 4), ((23, 29), 8), ((1, 1), 4), ((1, 8), 8)]
)
def test_components_are_scipys(shape, connectivity):
    drawn = masks((CASES, *shape))
    labels, total = ops.connected_components(drawn, connectivity=connectivity, axes=(-2, -1))
    structure = np.ones((3, 3)) if connectivity == 8 else None
    for mask, got, number in zip(drawn, labels, total, strict=True):
        want, _ = scipy_label(mask, structure)
        np.testing.assert_array_equal(got, want)
        opencv, _ = cv2.connectedComponents(mask.astype(np.uint8), connectivity=connectivity)
        assert number == opencv - 1  # which counts the background


def test_a_spiral_is_one_component():
    spiral = np.zeros((33, 33), bool)
    y, x, step, turn = 16, 16, 2, 0
    while 0 <= y < 33 and 0 <= x < 33:
        for _ in range(2):
            dy, dx = [(0, 1), (1, 0), (0, -1), (-1, 0)][turn % 4]
            for _ in range(step):
                if 0 <= y < 33 and 0 <= x < 33:
                    spiral[y, x] = True
                y, x = y + dy, x + dx
            turn += 1
        step += 2
    labels, total = ops.connected_components(spiral, axes=(0, 1))
    np.testing.assert_array_equal(labels, spiral)
    assert total == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ["cpu", "default"])
def test_distances_are_scipys(form, monkeypatch):
    monkeypatch.setattr(distance, "platform_dependent", lambda x, **forms: forms[form](x))
    jax.clear_caches()
    drawn = masks()
    got = ops.distance_transform(drawn, axes=(-2, -1))
    full = drawn.all((1, 2))
    assert full.any() and np.isinf(got[full]).all()
    want = np.array([ndimage.distance_transform_edt(mask) for mask in drawn[~full]])
    np.testing.assert_allclose(got[~full], want, rtol=1e-7)  # the root, rounded to float32
    jax.clear_caches()


def labels_of(drawn, **options):
    return ops.connected_components(drawn, **options).labels


@pytest.mark.slow
@pytest.mark.parametrize("function", [ops.distance_transform, labels_of])
def test_layouts_dtypes_and_batches(function):
    drawn = masks((CASES, 5, 7))[20:40, ..., None]
    want = function(drawn)
    for dtype in ("bfloat16", "uint8"):
        np.testing.assert_array_equal(function(jnp.asarray(drawn, dtype)), want)
    planes = function(np.moveaxis(drawn, -1, 1), axes=(-2, -1))
    np.testing.assert_array_equal(jnp.moveaxis(planes, 1, -1), want)
    np.testing.assert_array_equal(jax.vmap(function)(drawn), want)
    assert function(drawn[:0]).shape == (0, 5, 7, 1)


def test_the_forms_of_accelerators_hand_on_alike():
    drawn = masks((CASES, 5, 13))
    values = jnp.asarray(np.random.default_rng(1).integers(1, 99, drawn.shape) * drawn, jnp.int32)
    forms = (_regions._line_by_line, _regions._in_logarithmic_depth)
    serial, parallel = (form(values, jnp.asarray(drawn), axis=2) for form in forms)
    np.testing.assert_array_equal(serial, parallel)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.connected_components, np.zeros((3, 3, 1)), connectivity=6), "4 or 8, got 6"),
        (partial(ops.distance_transform, np.zeros((1, 20000, 1), bool)), "sides up to 16384 px"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
