"""PSNR-B against sewar."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from skimage import data

from jaxsr import ops

sewar = pytest.importorskip("sewar", reason="sewar is not installed: pip install -e '.[test]'")
ATOL = 1e-4  # dB: a float32 logarithm of a mean, 1e-6 relative
CASES = 64


def pairs(shape, dtype="float32", count=CASES):
    """Windows of a photo, (n, h, w, 1), with steps between blocks of 8 that grow from none."""
    rng = np.random.default_rng(0)
    photo = data.camera()
    tops, lefts = (rng.integers(0, photo.shape[k] - shape[k], count) for k in (0, 1))
    clean = np.stack(
        [photo[y : y + shape[0], x : x + shape[1]] for y, x in zip(tops, lefts, strict=True)]
    )
    levels = rng.normal(size=(count, -(-shape[0] // 8), -(-shape[1] // 8)))
    steps = np.kron(levels, np.ones((1, 8, 8)))[:, : shape[0], : shape[1]]
    noise = rng.normal(size=clean.shape) + steps * np.linspace(0, 20, count)[:, None, None]
    judged = np.rint(np.clip(clean + noise, 0, 255))
    scale = 1 if dtype == "uint8" else 255
    return tuple(jnp.asarray(x / scale, dtype)[..., None] for x in (judged, clean))


def reference(judged, clean):
    peak = 255 if judged.dtype == jnp.uint8 else 1
    exact = (np.asarray(x.astype(jnp.float32), np.float64)[..., 0] for x in (judged, clean))
    return [sewar.psnrb(y, x, MAX=peak) for x, y in zip(*exact, strict=True)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_sewars(dtype):
    judged, clean = pairs((33, 46), dtype)
    got = jax.jit(ops.psnr_b)(judged, clean)
    assert got.dtype == jnp.float32 and got.shape == (CASES,)
    np.testing.assert_allclose(got, reference(judged, clean), atol=ATOL)
    counts = got < ops.psnr(judged, clean) - 0.01
    assert counts[-1] and not counts.all()  # some are blocky, some are not


@pytest.mark.slow
def test_luma_layouts_and_gradient():
    judged, clean = (jnp.concatenate([x, 0.9 * x, 0.8 * x], -1) for x in pairs((17, 25), count=8))
    judge = partial(ops.psnr_b, luma="matlab")
    want = judge(judged, clean)
    y = [ops.rgb_to_y(x, convention="matlab") for x in (judged, clean)]
    np.testing.assert_allclose(want, reference(*y), atol=ATOL)
    planes = [jnp.moveaxis(x, -1, 1) for x in (judged, clean)]
    np.testing.assert_allclose(judge(*planes, axes=(-2, -1), channel=1), want, atol=ATOL)
    np.testing.assert_allclose(jax.vmap(judge)(judged, clean), want, atol=ATOL)
    assert judge(judged[:0], clean[:0]).shape == (0,)
    np.testing.assert_array_equal(np.isinf(judge(clean, clean)), np.isinf(reference(y[1], y[1])))

    total = jax.jit(jax.value_and_grad(lambda x: judge(x, clean).sum()))
    slope = total(judged)[1]
    step = 1e-4 * jnp.sign(slope)  # against noise of 4e-3
    change = (total(judged + step)[0] - total(judged - step)[0]) / 2
    np.testing.assert_allclose(jnp.vdot(slope, step), change, rtol=2e-2)


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (np.zeros((9, 9, 3), np.float32), {}, "judges one channel, got 3; name luma"),
        (np.zeros((9, 8, 1), np.float32), {}, "but 9 are needed"),
        (np.zeros((9, 9, 1), np.float32), {"block_size": 1}, "block_size must be a whole number"),
    ],
)
def test_bad_arguments(image, options, message):
    with pytest.raises(ValueError, match=message):
        ops.psnr_b(image, image, **options)
