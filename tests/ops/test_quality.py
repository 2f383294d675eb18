"""PSNR and SSIM against scikit-image, and the literature's recipe built from its pieces."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.signal import convolve2d
from skimage import color, data
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from jaxsr.ops.quality import psnr, ssim


def pair(shape=(3, 37, 41, 3), dtype: type = np.uint8, noise=12.0):
    """A photo's crops and their noisy copies."""
    rng = np.random.default_rng(0)
    photo = data.astronaut()
    n, h, w, c = shape
    crops = np.stack([photo[40 * k : 40 * k + h, 150 : 150 + w, :c] for k in range(n)])
    noisy = np.clip(np.rint(crops + rng.normal(0, noise, shape)), 0, 255).astype(np.uint8)
    if dtype == np.uint8:
        return noisy, crops
    return (noisy / 255).astype(dtype), (crops / 255).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_psnr_matches_skimage(dtype):
    noisy, clean = pair(dtype=dtype)
    got = jax.jit(psnr)(noisy, clean)
    want = [
        peak_signal_noise_ratio(b, a, data_range=255 if dtype == np.uint8 else 1)
        for a, b in zip(noisy, clean, strict=True)
    ]
    assert got.shape == (3,)
    np.testing.assert_allclose(got, want, atol=1e-4)  # float32 logarithm of a mean: 1e-6 relative


def test_psnr_of_a_large_image_does_not_drift():
    noisy, clean = pair((1, 470, 360, 3))
    noisy, clean = (np.tile(x, (1, 4, 5, 1)) for x in (noisy, clean))
    want = peak_signal_noise_ratio(clean[0], noisy[0])
    np.testing.assert_allclose(psnr(noisy, clean), [want], atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("luma", [None, "matlab", "full"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_equal_images_are_infinitely_good(dtype, luma):
    _, clean = pair(dtype=dtype)
    assert np.all(np.isposinf(psnr(clean, clean, luma=luma)))
    np.testing.assert_allclose(ssim(clean, clean, luma=luma), 1, atol=1e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"gaussian_weights": True, "use_sample_covariance": False}),
        ({"sample_covariance": True}, {"gaussian_weights": True}),
        ({"sigma": 0.8}, {"gaussian_weights": True, "use_sample_covariance": False, "sigma": 0.8}),
        ({"window": "uniform", "sample_covariance": True}, {}),
        ({"window": "uniform", "window_size": 9}, {"win_size": 9, "use_sample_covariance": False}),
    ],
)
def test_ssim_matches_skimage(dtype, ours, theirs):
    noisy, clean = pair(dtype=dtype)
    got = jax.jit(partial(ssim, **ours))(noisy, clean)
    peak = 255 if dtype == np.uint8 else 1
    want = [
        structural_similarity(
            a.astype(float), b.astype(float), data_range=peak, channel_axis=-1, **theirs
        )
        for a, b in zip(noisy, clean, strict=True)
    ]
    # Float32 second moments below 0.25 over the stabiliser 9e-4: 1e-5 in the worst pixel.
    np.testing.assert_allclose(got, want, atol=5e-6)


def test_ssim_of_flat_regions_keeps_its_digits():
    dark, bright = np.full((1, 32, 32, 1), 3, np.uint8), np.full((1, 32, 32, 1), 252, np.uint8)
    dark[0, 16, 16], bright[0, 16, 16] = 4, 251
    want = structural_similarity(
        dark[0, ..., 0].astype(float), bright[0, ..., 0].astype(float), data_range=255,
        gaussian_weights=True, use_sample_covariance=False,
    )  # fmt: skip
    np.testing.assert_allclose(ssim(dark, bright), [want], rtol=1e-3)


def literature_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Wang's ssim.m: an 11x11 Gaussian of sigma 1.5, 'valid' convolutions, in float64."""
    axis = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    window = np.outer(axis, axis) / axis.sum() ** 2
    blur = partial(convolve2d, in2=window, mode="valid")
    mu_a, mu_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mu_a**2, blur(b * b) - mu_b**2
    covariance = blur(a * b) - mu_a * mu_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    top = (2 * mu_a * mu_b + c1) * (2 * covariance + c2)
    return float((top / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))).mean())


@pytest.mark.sample(1)
@pytest.mark.parametrize("border", [0, 4])
def test_the_literatures_y_channel_convention(border):
    noisy, clean = pair()
    cut = slice(border, -border or None)
    rounded = [
        [np.floor(color.rgb2ycbcr(x)[cut, cut, 0] + 0.5) for x in xs] for xs in (noisy, clean)
    ]
    want_psnr = [
        peak_signal_noise_ratio(b, a, data_range=255) for a, b in zip(*rounded, strict=True)
    ]
    want_ssim = [literature_ssim(a, b) for a, b in zip(*rounded, strict=True)]
    options = {"luma": "matlab", "crop_border": border}
    np.testing.assert_allclose(psnr(noisy, clean, **options), want_psnr, atol=1e-4)
    np.testing.assert_allclose(ssim(noisy, clean, **options), want_ssim, atol=5e-6)
    # Float images keep Y unrounded, as BasicSR does.
    exact = [[color.rgb2ycbcr(x)[cut, cut, 0] for x in xs] for xs in (noisy, clean)]
    want = [peak_signal_noise_ratio(b, a, data_range=255) for a, b in zip(*exact, strict=True)]
    floats = [(x / 255).astype(np.float32) for x in (noisy, clean)]
    np.testing.assert_allclose(psnr(*floats, **options), want, atol=1e-4)
    scaled = [x * 255 for x in floats]
    np.testing.assert_allclose(psnr(*scaled, data_range=255, **options), want, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("metric", [psnr, ssim])
def test_layouts_and_vmap_agree(metric):
    noisy, clean = pair()
    want = metric(noisy, clean)
    nchw = [np.moveaxis(x, -1, 1) for x in (noisy, clean)]
    np.testing.assert_allclose(metric(*nchw, axes=(-2, -1), channel=1), want, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(metric)(noisy, clean), want, rtol=1e-6)
    grey = [x[..., 0] for x in (noisy, clean)]
    np.testing.assert_allclose(
        metric(*grey, axes=(-2, -1), channel=None), metric(*[x[..., None] for x in grey]), rtol=1e-6
    )
    assert metric(noisy[0], clean[0]).shape == ()


def test_bfloat16_is_measured_in_float32():
    noisy, clean = (jnp.asarray(x, jnp.bfloat16) for x in pair(dtype=np.float32))
    for metric in (psnr, ssim):
        got = metric(noisy, clean)
        assert got.dtype == jnp.float32
        want = metric(noisy.astype(jnp.float32), clean.astype(jnp.float32))
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.slow
def test_ssim_gradient_matches_finite_differences():
    noisy, clean = (jnp.asarray(x) for x in pair((1, 16, 16, 1), np.float32))
    slope = jax.grad(lambda x: ssim(x, clean).sum())(noisy)
    step = 3e-3 * slope / jnp.abs(slope).max()
    change = (ssim(noisy + step, clean) - ssim(noisy - step, clean)) / 2
    np.testing.assert_allclose(
        jnp.vdot(slope, step), change[0], rtol=2e-2
    )  # float32 differences of 1e-3


def test_batch_sharding_communicates_nothing():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    noisy, clean = (jnp.asarray(np.concatenate([x] * 4)) for x in pair((2, 24, 24, 3)))
    sharded = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in (noisy, clean)]
    for metric in (psnr, ssim):
        compiled = jax.jit(partial(metric, luma="matlab")).lower(*sharded).compile()
        text = compiled.as_text() or ""
        assert not any(
            word in text for word in ("all-gather", "all-reduce", "all-to-all", "collective")
        )
        np.testing.assert_allclose(
            compiled(*sharded), metric(noisy, clean, luma="matlab"), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reference": np.zeros((1, 37, 42, 3), np.uint8)}, ValueError, "one shape"),
        ({"reference": np.zeros((3, 37, 41, 3), np.float32)}, TypeError, "one dtype"),
        ({"crop_border": 19}, ValueError, "leaves -1 px"),
        ({"crop_border": -1}, ValueError, "from 0"),
        ({"crop_border": 1.5}, ValueError, "whole number"),
        ({"data_range": 0}, ValueError, "a finite number above 0"),
        ({"luma": "y"}, ValueError, "choose one of"),
        ({"luma": "full", "channel": None, "axes": (1, 2)}, ValueError, "needs a channel"),
        ({"axes": (1, 1)}, ValueError, "twice"),
        ({"axes": (1, 2), "channel": 2}, ValueError, "also one of"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(options, error, message):
    noisy, clean = pair()
    options = {"reference": clean} | options
    for metric in (psnr, ssim):
        with pytest.raises(error, match=message):
            metric(noisy, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "box"}, "choose one of"),
        ({"window_size": 8}, "odd"),
        ({"sigma": 0}, "a finite number above 0"),
        ({"window_size": 7.0}, "odd"),
        ({"window_size": 39}, "39 are needed"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_ssim_options(options, message):
    with pytest.raises(ValueError, match=message):
        ssim(*pair(), **options)


@pytest.mark.usefixtures("unchecked_types")
def test_sigma_that_is_no_number():
    with pytest.raises(TypeError, match="sigma must be a Python number, got 'a'"):
        options: Any = {"sigma": "a"}
        ssim(*pair(), **options)
