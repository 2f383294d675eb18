"""Degradation by key: blur, smaller sizes, noise and JPEG in the order of a policy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import ndimage

from jaxsr import ops

KEY = jax.random.key(0)
CAMERA = (
    ops.RandomBlur(sigma=(0.2, 1.5)),
    ops.RandomMotionBlur(length=(1, 4)),
    ops.Resize(size=(12, 14), method="bicubic"),
    ops.RandomNoise(),
    ops.RandomJPEG(),
)


def pictures(count=8, dtype="float32"):
    smooth = ndimage.gaussian_filter(np.random.default_rng(0).random((count, 24, 28, 3)), 1)
    return jnp.asarray(smooth * 255 if dtype == "uint8" else smooth, dtype)


def test_random_blur_is_scipys():
    """A point shows the Gaussian; its sigmas fill the range."""
    images = np.zeros((64, 33, 33, 1), np.float32)
    images[:, 16, 16] = 1
    out = np.asarray(ops.augment(KEY, images, (ops.RandomBlur(sigma=(0.5, 2.0)),)).images)
    # A Gaussian falls by exp(-1 / (2 sigma²)) to the next pixel.
    sigmas = np.sqrt(-0.5 / np.log(out[:, 16, 17, 0] / out[:, 16, 16, 0]))
    assert sigmas.min() < 0.7 and sigmas.max() > 1.8
    for image, sigma in zip(out[..., 0], sigmas, strict=True):
        want = ndimage.gaussian_filter(images[0, ..., 0].astype(np.float64), sigma, radius=8)
        np.testing.assert_allclose(image, want, atol=2e-6)


@pytest.mark.parametrize(
    "step",
    [
        ops.RandomBlur(probability=0.5),
        pytest.param(ops.RandomNoise(probability=0.5, read=(0.1, 0.1)), marks=pytest.mark.slow),
        pytest.param(ops.RandomMotionBlur(probability=0.5, length=(2, 4)), marks=pytest.mark.slow),
        pytest.param(ops.RandomJPEG(probability=0.5), marks=pytest.mark.slow),
    ],
    ids=lambda step: type(step).__name__,
)
def test_steps_are_as_frequent_as_asked_for(step):
    images = jnp.tile(pictures(1)[:, :8, :8], (400, 1, 1, 1))
    out = jax.jit(lambda x: ops.augment(KEY, x, (step,)).images)(images)
    # A window of weight 1 in its middle may round the last bit.
    changed = np.abs(np.asarray(out) - np.asarray(images)).max((1, 2, 3)) > 1e-5
    assert abs(changed.mean() - 0.5) < 0.09


@pytest.mark.slow
def test_a_camera_on_any_mesh():
    images = pictures()
    run = jax.jit(lambda images: ops.augment(KEY, images, CAMERA).images)
    plain = run(images)
    assert plain.shape == (8, 12, 14, 3)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(images, NamedSharding(mesh, P("data")))
    compiled = run.lower(placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    off = np.abs(np.asarray(compiled(placed)) - np.asarray(plain))
    # A level beside a half may become another one, and its block with it.
    assert np.quantile(off, 0.9) < 1e-6 and off.max() < 0.2


def test_places_are_scaled():
    points = np.full((8, 1, 2), 7.0, np.float32)
    boxes = np.broadcast_to(np.array([[[4, 6, 14, 18]]], np.float32), (8, 1, 4))
    masks = np.zeros((8, 24, 28, 1), np.uint8)
    masks[:, 6:18, 4:14] = 3
    out = ops.augment(KEY, pictures(), CAMERA[2:4], masks=masks, boxes=boxes, points=points)
    assert out.masks is not None and out.points is not None and out.boxes is not None
    np.testing.assert_allclose(out.points, 3.5)
    np.testing.assert_allclose(out.boxes, boxes / 2)
    np.testing.assert_array_equal(out.masks, masks[:, ::2, ::2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.RandomBlur, sigma=(0, 1)), "sigma must be a finite number above 0"),
        (partial(ops.RandomMotionBlur, length=(3, 2)), "least, greatest"),
        (partial(ops.RandomNoise, read=(-1, 0)), "read must be a finite number of at least 0"),
        (partial(ops.RandomJPEG, quality=(0, 50)), "of 1 to 100"),
        (partial(ops.RandomJPEG, subsampling="4:1:1"), "unknown subsampling"),
        (partial(ops.Resize, size=0), "size must be 1 to"),
        (partial(ops.Resize, size=8, method="foo"), "unknown method of the torch convention 'foo'"),
        (partial(ops.Resize, size=8, method="nearest"), "antialias=True needs method bilinear"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
