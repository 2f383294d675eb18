"""MS-SSIM against scikit-image's SSIM of each scale."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from skimage import data
from skimage.measure import block_reduce
from skimage.metrics import structural_similarity

from jaxsr import ops

CASES = 64
SMALL = {"weights": (0.2, 0.3, 0.5), "sigma": 0.5, "window_size": 5}


def pairs(shape, dtype="float32", count=CASES):
    """Windows of a photo and noisier and noisier copies."""
    photo, rng = data.astronaut(), np.random.default_rng(0)
    tops, lefts = (rng.integers(0, photo.shape[k] - shape[k], count) for k in (0, 1))
    clean = np.stack(
        [photo[y : y + shape[0], x : x + shape[1]] for y, x in zip(tops, lefts, strict=True)]
    )
    noise = rng.normal(size=clean.shape) * np.geomspace(1, 90, count)[:, None, None, None]
    noisy = np.rint(np.clip(clean + noise, 0, 255))
    scale = 1 if dtype == "uint8" else 255
    return jnp.asarray(noisy / scale, dtype), jnp.asarray(clean / scale, dtype)


def reference(noisy, clean, weights, sigma, **_):
    """Contrast and structure are SSIM with a luminance term that a huge constant makes 1."""
    result = []
    for channel in range(noisy.shape[-1]):
        x, y = noisy[..., channel], clean[..., channel]
        product = 1.0
        for level, weight in enumerate(weights, start=1):
            constant = 0.01 if level == len(weights) else 1e9
            similarity = structural_similarity(
                x, y, data_range=1, gaussian_weights=True, sigma=sigma,
                use_sample_covariance=False, K1=constant,
            )  # fmt: skip
            product *= max(similarity, 0) ** weight
            sides = [(0, extent % 2) for extent in x.shape]
            x, y = (block_reduce(np.pad(v, sides, mode="edge"), 2, np.mean) for v in (x, y))
        result.append(product)
    return np.mean(result)


def exactly(x):
    return np.asarray(x.astype(jnp.float32), np.float64)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_small_windows(dtype):
    noisy, clean = pairs((19, 22), dtype)
    got = jax.jit(partial(ops.ms_ssim, **SMALL))(noisy, clean)
    assert got.dtype == jnp.float32 and got.shape == (CASES,)
    peak = 255 if dtype == "uint8" else 1
    exact = [exactly(x) / peak for x in (noisy, clean)]
    want = [reference(x, y, **SMALL) for x, y in zip(*exact, strict=True)]
    np.testing.assert_allclose(got, want, atol=2e-5)  # as SSIM's, at each of three scales


def test_the_papers_five_scales():
    noisy, clean = pairs((177, 162), count=3)
    weights = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
    want = [
        reference(exactly(x), exactly(y), weights, 1.5) for x, y in zip(noisy, clean, strict=True)
    ]
    np.testing.assert_allclose(ops.ms_ssim(noisy, clean), want, atol=2e-5)


@pytest.mark.slow
def test_layouts_meshes_and_gradient():
    noisy, clean = pairs((19, 22), count=8)
    metric = jax.jit(
        partial(ops.ms_ssim, weights=(0.4, 0.6), sigma=0.5, window_size=5),
        static_argnames=("axes", "channel"),
    )
    want = metric(noisy, clean)
    planes = [jnp.moveaxis(x, -1, 1) for x in (noisy, clean)]
    np.testing.assert_allclose(metric(*planes, axes=(-2, -1), channel=1), want, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(metric)(noisy, clean), want, rtol=1e-5)
    grey = metric(noisy[..., 0], clean[..., 0], axes=(-2, -1), channel=None)
    assert grey.shape == (8,)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in (noisy, clean)]
    compiled = metric.lower(*placed).compile()
    assert "all-" not in (compiled.as_text() or "")
    np.testing.assert_allclose(compiled(*placed), want, rtol=1e-5)
    slope = jax.grad(lambda x: metric(x, clean).sum())(noisy)
    assert np.isfinite(slope).all()
    step = 1e-3 * jnp.sign(slope)
    change = (metric(noisy + step, clean) - metric(noisy - step, clean)).sum() / 2
    np.testing.assert_allclose(jnp.vdot(slope, step), change, rtol=2e-2)
    assert metric(noisy[:0], clean[:0]).shape == (0,)
    np.testing.assert_allclose(metric(clean, clean), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "161 are needed"),
        ({**SMALL, "window_size": 4}, "window_size must be odd"),
        ({**SMALL, "weights": (0.5, 0.0)}, "weights must be a finite number above 0"),
        ({**SMALL, "weights": ()}, "one number for each scale"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ops.ms_ssim(*pairs((19, 22), count=1), **options)
