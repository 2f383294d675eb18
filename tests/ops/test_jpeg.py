"""JPEG against Pillow's files: every pixel of every case is equal."""

import io
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from skimage import data

from jaxsr import ops

pytestmark = pytest.mark.usefixtures("xla_kernels")

QUALITIES = (1, 10, 30, 50, 75, 95, 100)


def in_pillow(pixels, quality, subsampling):
    file = io.BytesIO()
    image = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
    image.save(file, "JPEG", quality=quality, subsampling=subsampling)
    return np.asarray(Image.open(file)).reshape(pixels.shape)


def pictures(height, width):
    """Noise, and cuts of a photo; one for each quality."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (len(QUALITIES), height, width, 3)).astype(np.uint8)
    photo = data.chelsea()
    cuts = [photo[8 * k : 8 * k + height, 9 * k : 9 * k + width] for k in range(len(QUALITIES))]
    return np.concatenate([noise, cuts])


SIZES = [(37, 51), (16, 16), (1, 1), (5, 4)]
CASES = [(name, size) for name in ("4:4:4", "4:2:2", "4:2:0") for size in SIZES]
QUICK = [("4:4:4", (37, 51)), ("4:2:0", (37, 51)), ("4:2:0", (5, 4))]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("subsampling", "size"),
    [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow, id=str(c)) for c in CASES],
)
def test_every_pixel_is_libjpegs(subsampling, size):
    images, qualities = pictures(*size), QUALITIES * 2
    run = jax.jit(partial(ops.jpeg, subsampling=subsampling))
    got = run(images, np.array(qualities))
    for result, image, quality in zip(got, images, qualities, strict=True):
        np.testing.assert_array_equal(result, in_pillow(image, quality, subsampling))


def test_pillows_bound_on_foreign_files_is_not_ours(monkeypatch):
    image = data.astronaut()[:40, :48]
    expected = ops.jpeg(image, 70)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    np.testing.assert_array_equal(ops.jpeg(image, 70), expected)


@pytest.mark.slow
def test_grey_and_layouts():
    images = pictures(19, 30)
    grey = jax.jit(ops.jpeg)(images[..., :1], 60)
    for result, image in zip(grey, images[..., :1], strict=True):
        np.testing.assert_array_equal(result, in_pillow(image, 60, "4:4:4"))
    run = jax.jit(partial(ops.jpeg, axes=(-2, -1), channel=1))
    planes = run(np.moveaxis(images, -1, 1), 60)
    for result, image in zip(jnp.moveaxis(planes, 1, -1), images, strict=True):
        np.testing.assert_array_equal(result, in_pillow(image, 60, "4:2:0"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_floats_are_the_nearest_levels(dtype):
    levels = pictures(19, 30)
    got = ops.jpeg(jnp.asarray(levels / 255, dtype), 60)
    assert got.dtype == jnp.dtype(dtype)
    if dtype == "float32":
        np.testing.assert_allclose(got, np.asarray(ops.jpeg(levels, 60)) / 255, atol=1e-6)
    bad = np.full((8, 8, 3), np.nan, np.float32)
    assert np.asarray(ops.jpeg(bad.astype(dtype), 60)).shape == (8, 8, 3)


@pytest.mark.slow
def test_gradients_pass_as_if_nothing_were_rounded():
    image = jnp.asarray(pictures(18, 22)[8] / 255, jnp.float32)
    weight = jnp.asarray(np.random.default_rng(1).random(image.shape), jnp.float32)

    def loss(image, subsampling):
        return (ops.jpeg(image, 50, subsampling=subsampling) * weight).sum()

    slope = jax.jit(jax.grad(loss), static_argnums=1)(image, "4:2:0")
    # A file of quality 100 rounds least: it moves with its picture as the gradient says.
    step = jnp.asarray(np.random.default_rng(2).integers(-9, 10, image.shape) / 255, jnp.float32)
    image = 0.25 + image / 2
    ends = jax.jit(ops.jpeg)(jnp.stack([image - step, image + step]), 100)
    rise = ((ends[1] - ends[0]) * weight).sum()
    np.testing.assert_allclose(rise, 2 * (slope * step).sum(), rtol=0.05, atol=0.2)


IMAGE = np.zeros((2, 8, 9, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.jpeg, IMAGE.astype(np.uint16), 50), TypeError, "JPEG has 8 bits"),
        (partial(ops.jpeg, IMAGE, np.ones(2)), TypeError, "quality must be an integer"),
        (partial(ops.jpeg, IMAGE, np.ones(3, int)), ValueError, "no value for each image"),
        (partial(ops.jpeg, IMAGE[..., :2], 50), ValueError, "must hold R, G and B"),
        (partial(ops.jpeg, IMAGE, 50, subsampling="4:1:1"), ValueError, "unknown subsampling"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
