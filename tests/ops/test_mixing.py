"""Mixup and CutMix against torchvision's rules and distributions, and on a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.stats import beta, ks_2samp, kstest

from jaxsr import ops

KEY = jax.random.key(0)
COUNT, HEIGHT, WIDTH = 16, 12, 15
STEPS = {"mixup": ops.Mixup(alpha=0.8), "cutmix": ops.CutMix(alpha=0.8)}


def pictures(dtype="float32", count=COUNT):
    levels = np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, 3))
    scale = {"uint8": 1, "uint16": 257}.get(dtype, 1 / 255)
    return jnp.asarray(levels * scale, dtype)


def labels(count=COUNT):
    return jax.nn.one_hot(jnp.arange(count), count)


def exchanged(x):
    return np.asarray(x)[np.arange(len(x)) ^ 1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_mixup_blends_as_the_labels_say(dtype):
    images = pictures(dtype)
    out = jax.jit(lambda x, y: ops.augment(KEY, x, (STEPS["mixup"],), labels=y))(images, labels())
    assert out.labels is not None and out.images.dtype == images.dtype
    share = np.asarray(out.labels).diagonal()[:, None, None, None].astype(np.float64)
    np.testing.assert_allclose(out.labels.sum(1), 1, atol=1e-6)
    exact = np.asarray(images, np.float64)
    want = share * exact + (1 - share) * exchanged(exact)
    atol = 1e-6 if dtype == "float32" else 0.51
    np.testing.assert_allclose(np.asarray(out.images, np.float64), want, atol=atol)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_cutmix_cuts_pictures_masks_and_labels_alike(dtype):
    images, masks = pictures(dtype), pictures("uint8")[..., :1]
    run = jax.jit(lambda x, m, y: ops.augment(KEY, x, (STEPS["cutmix"],), masks=m, labels=y))
    out = run(images, masks, labels())
    assert out.labels is not None and out.masks is not None
    other = (np.asarray(out.images) == exchanged(images)).all(-1)
    np.testing.assert_array_equal(
        np.where(other[..., None], exchanged(images), np.asarray(images)), out.images
    )
    np.testing.assert_array_equal(
        np.where(other[..., None], exchanged(masks), np.asarray(masks)), out.masks
    )
    share = np.asarray(out.labels).diagonal()
    np.testing.assert_allclose(share, 1 - other.mean((1, 2)), atol=1e-6)
    for inside in other:  # one box
        box = np.ix_(inside.any(1), inside.any(0))
        assert inside[box].all()


@pytest.mark.slow
def test_boxes_of_cutmix_are_torchvisions():
    """The distribution of CutMix.make_params, whose lines stand here."""
    count = 4000
    images = np.zeros((count, HEIGHT, WIDTH, 1), np.float32)
    one_hot = np.eye(2, dtype=np.float32)[np.arange(count) % 2]
    policy = (ops.CutMix(alpha=1.0),)
    out = jax.jit(lambda x, y: ops.augment(KEY, x, policy, labels=y))(images, one_hot)
    got = (np.asarray(out.labels) * one_hot).sum(1)
    rng = np.random.default_rng(0)
    x, y = rng.integers(WIDTH, size=count), rng.integers(HEIGHT, size=count)
    side = 0.5 * np.sqrt(1 - rng.random(count))
    half_width, half_height = (side * WIDTH).astype(int), (side * HEIGHT).astype(int)
    across = np.minimum(x + half_width, WIDTH) - np.maximum(x - half_width, 0)
    down = np.minimum(y + half_height, HEIGHT) - np.maximum(y - half_height, 0)
    pixels = np.round((1 - got) * WIDTH * HEIGHT)
    assert ks_2samp(pixels, across * down).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.4, 1.0, 7.0])
def test_shares_of_mixup_are_beta(alpha):
    count = 4000
    images = np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1) % 2
    share = ops.augment(KEY, images, (ops.Mixup(alpha=alpha, probability=0.5),)).images.ravel()
    share = np.where(np.arange(count) % 2, share, 1 - share)
    assert abs((share == 1).mean() - 0.5) < 0.04
    assert kstest(share[share < 1], beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_any_mesh_and_layout(name):
    """Shards of an even number of pictures do not communicate."""
    images, policy = pictures(), (STEPS[name],)

    def run(images, shares):
        return ops.augment(KEY, images, policy, labels=shares)

    plain = jax.jit(run)(images, labels())
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put((images, labels()), NamedSharding(mesh, P("data")))
    compiled = jax.jit(run).lower(*placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    on_planes = jax.jit(lambda x: ops.augment(KEY, x, policy, axes=(-2, -1)).images)
    planes = on_planes(jnp.moveaxis(images, -1, 1))
    meshed = compiled(*placed)
    assert plain.labels is not None
    np.testing.assert_allclose(meshed.images, plain.images, atol=1e-6)
    np.testing.assert_allclose(meshed.labels, plain.labels, atol=1e-6)
    np.testing.assert_allclose(jnp.moveaxis(planes, 1, -1), plain.images, atol=1e-6)


IMAGES = np.zeros((2, 8, 9, 3), np.float32)
MIXUP, CUTMIX = (ops.Mixup(),), (ops.CutMix(),)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.augment, KEY, IMAGES[:1], MIXUP), "even batch, got 1 images"),
        (partial(ops.augment, KEY, IMAGES, MIXUP, masks=IMAGES), "cannot mix masks"),
        (partial(ops.augment, KEY, IMAGES, CUTMIX, boxes=np.zeros((2, 1, 4))), "cannot mix boxes"),
        (partial(ops.Mixup, alpha=0), "alpha must be a finite number above 0"),
        (partial(ops.CutMix, probability=2), "probability must be 0 to 1"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
