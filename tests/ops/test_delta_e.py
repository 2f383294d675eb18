"""Differences of colours against scikit-image."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from skimage import color

from jaxsr import ops

CASES = 64


def pairs(dtype="float32", shape=(CASES, 5, 7)):
    """Pairs of colours at any distance: equal, near and far; greys, hues on both sides of 0."""
    rng = np.random.default_rng(0)
    scale, shift = np.array([100, 200, 200]), np.array([0, -100, -100])
    first = rng.random((*shape, 3)) * scale + shift
    apart = rng.normal(size=first.shape) * np.geomspace(1e-3, 30, shape[0])[:, None, None, None]
    second = first + apart
    second[:3] = first[:3]
    first[3:6, ..., 1:] = 0
    first[6:9, ..., 2], second[6:9, ..., 2] = 1.0, -1.0
    return jnp.asarray(first, dtype), jnp.asarray(second, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("method", "reference"),
    [("ciede2000", color.deltaE_ciede2000), ("cie76", color.deltaE_cie76)],
)
def test_against_scikit_image(method, reference, dtype):
    first, second = pairs(dtype)
    got = jax.jit(partial(ops.delta_e, method=method))(first, second)
    assert got.dtype == jnp.float32
    exact = [np.asarray(x.astype(jnp.float32), np.float64) for x in (first, second)]
    # Float32's chroma of 140 has steps of 1.5e-5.
    np.testing.assert_allclose(got, reference(*exact), rtol=1e-5, atol=5e-5)
    np.testing.assert_array_equal(got[:3], 0)


@pytest.mark.slow
def test_layouts_batches_and_symmetry():
    first, second = pairs()
    want = ops.delta_e(first, second)
    planes = [jnp.moveaxis(x, -1, 1) for x in (first, second)]
    np.testing.assert_array_equal(ops.delta_e(*planes, channel=1), want)
    np.testing.assert_allclose(jax.vmap(ops.delta_e)(first, second), want, atol=1e-6)
    np.testing.assert_allclose(ops.delta_e(second, first), want, rtol=1e-4, atol=1e-4)
    assert ops.delta_e(first[:0], second[:0]).shape == (0, 5, 7)
    assert jnp.isnan(ops.delta_e(first.at[0, 0, 0, 1].set(jnp.nan), second)).sum() == 1


@pytest.mark.slow
def test_gradient():
    first, second = jnp.asarray([50.0, 20, -30]), jnp.asarray([55.0, 25, -20])
    step = jnp.asarray([0.1, -0.2, 0.3])
    change = (ops.delta_e(first + step, second) - ops.delta_e(first - step, second)) / 2
    np.testing.assert_allclose(jax.grad(ops.delta_e)(first, second) @ step, change, rtol=1e-3)
    for colour in (first, jnp.zeros(3)):
        assert np.isfinite(jax.grad(ops.delta_e)(colour, colour)).all()


COLOUR = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.delta_e, COLOUR.astype(np.uint8), COLOUR), TypeError, "floating point, got u"),
        (partial(ops.delta_e, COLOUR, COLOUR[None]), ValueError, "must have one shape"),
        (partial(ops.delta_e, COLOUR[:2], COLOUR[:2]), ValueError, "must hold R, G and B"),
        (partial(ops.delta_e, COLOUR, COLOUR, **{"method": "cmc"}), ValueError, "choose one of"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
