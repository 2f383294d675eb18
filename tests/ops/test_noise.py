"""Noise by its distribution (SciPy's tests) and by scikit-image's amounts; keys and meshes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.stats import kstest, poisson
from skimage.util import random_noise

from jaxsr import ops
from jaxsr.ops import _random
from tests.ops.dtypes import EVERY_DTYPE

KEY = jax.random.key(0)
NO_KEY: Any = 7
LIGHT = np.linspace(0.1, 0.8, 8, dtype=np.float32)


def flat(dtype="float32", side=40):
    scale = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    levels = np.broadcast_to(LIGHT[:, None, None, None], (8, side, side, 3)) * scale
    return jnp.asarray(np.round(levels) if scale > 1 else levels, dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_numbers_are_those_of_jax(draw):
    ours, theirs = getattr(_random, draw), getattr(jax.random, draw)
    shape = (3, 151, 149, 3)
    for key in (KEY, jax.random.PRNGKey(2**31 + 7), jax.random.key(1, impl="rbg")):
        np.testing.assert_array_equal(ours(key, shape), theirs(key, shape))
    keys = jax.random.split(KEY, 2)
    np.testing.assert_array_equal(
        jax.vmap(lambda key: ours(key, shape))(keys), jax.vmap(lambda key: theirs(key, shape))(keys)
    )


def test_gaussian_noise_is_normal():
    sigma = np.linspace(0.01, 0.2, 8).astype(np.float32)
    noisy = np.asarray(ops.gaussian_noise(KEY, flat(), sigma))
    theirs = random_noise(np.asarray(flat()), var=0.05**2, clip=False, rng=0)
    assert abs((theirs - flat()).std() - 0.05) < 1e-3  # scikit-image's amount is ours
    for picture, light, deviation in zip(noisy, LIGHT, sigma, strict=True):
        assert kstest((picture - light).ravel() / deviation, "norm").pvalue > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "uint8", "uint16"])
def test_sensor_noise_grows_with_light(dtype):
    white = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    images = flat(dtype)
    noisy = ops.sensor_noise(KEY, images, shot=0.004, read=0.01)
    assert noisy.dtype == images.dtype
    got = (np.asarray(noisy, float) / white).var((1, 2, 3))
    rounding = 1 / 12 / 255**2 if dtype == "uint8" else 0
    np.testing.assert_allclose(got, 0.004 * LIGHT + 0.01**2 + rounding, rtol=0.1)


def test_poisson_noise_counts_photons():
    photons = 12.0
    counts = np.asarray(ops.poisson_noise(KEY, flat(), photons)) * photons
    np.testing.assert_allclose(counts, counts.round(), atol=1e-4)
    for picture, light in zip(counts, LIGHT, strict=True):
        numbers = np.arange(12)
        seen = np.bincount(picture.ravel().round().astype(int), minlength=40)[:12] / picture.size
        np.testing.assert_allclose(seen, poisson.pmf(numbers, light * photons), atol=0.02)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_salt_and_pepper(dtype):
    share = np.linspace(0, 1, 8).astype(np.float32)
    images = flat(dtype)
    noisy = ops.salt_and_pepper(KEY, images, share, salt=0.25)
    assert noisy.dtype == images.dtype
    white = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    replaced = np.asarray(noisy != images)
    assert set(np.unique(np.asarray(noisy, float)[replaced])) <= {0, white}
    np.testing.assert_allclose(replaced.mean((1, 2, 3)), share, atol=0.03)
    whites = np.asarray(noisy, float)[-1] == white
    assert abs(whites.mean() - 0.25) < 0.03
    theirs = random_noise(np.asarray(flat()), "s&p", amount=float(share[3]), rng=0)
    assert abs((theirs != flat()).mean() - replaced[3].mean()) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise",
    [
        partial(ops.gaussian_noise, sigma=0.1),
        partial(ops.sensor_noise, shot=0.1, read=0.1),
        partial(ops.salt_and_pepper, share=0.3),
    ],
    ids=["gaussian", "sensor", "salt_and_pepper"],
)
def test_any_mesh(noise):
    images = flat(side=9)
    run = jax.jit(lambda images: noise(KEY, images))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    compiled = run.lower(jax.device_put(images, NamedSharding(mesh, P("data")))).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    meshed = compiled(jax.device_put(images, NamedSharding(mesh, P("data"))))
    np.testing.assert_allclose(meshed, noise(KEY, images), atol=1e-6)
    assert (np.asarray(noise(jax.random.key(1), images)) != np.asarray(meshed)).any()


@pytest.mark.slow
def test_gradients():
    slope = jax.grad(lambda x: ops.sensor_noise(KEY, x, shot=0.0, read=0.0).sum())(flat())
    np.testing.assert_array_equal(slope, 1)
    images = flat()
    normal = (ops.sensor_noise(KEY, images, shot=1.0, read=0.0) - images) / jnp.sqrt(images)
    slope = jax.grad(lambda x: ops.sensor_noise(KEY, x, shot=1.0, read=0.0).sum())(images)
    np.testing.assert_allclose(slope, 1 + normal / (2 * jnp.sqrt(images)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.gaussian_noise, KEY, flat(), np.ones(3)), ValueError, "read of shape"),
        (partial(ops.salt_and_pepper, KEY, flat(), "a"), TypeError, "share must hold numbers"),
        (partial(ops.poisson_noise, KEY, flat().astype(int), 3), TypeError, "int32; cast it"),
        (
            partial(ops.poisson_noise, NO_KEY, flat(), 3),
            TypeError,
            "one key of jax.random, such as",
        ),
        (partial(ops.augment, NO_KEY, flat(), ()), TypeError, "one key of jax.random, .* got 7"),
        (
            partial(ops.gaussian_noise, jax.random.split(KEY), flat(), 1.0),
            TypeError,
            r"got key<fry>\[2\]",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_poisson_noise_of_bright_and_broken_pixels():
    key, image = jax.random.key(0), np.array([[[np.nan], [np.inf], [0.5]]], np.float32)
    noisy = np.asarray(ops.poisson_noise(key, image, 1e10))
    np.testing.assert_allclose(noisy, image, rtol=1e-6)
    few = np.asarray(ops.poisson_noise(key, image, 10))
    np.testing.assert_array_equal(np.isfinite(few), np.isfinite(image))
