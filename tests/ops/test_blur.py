"""Gaussian blur against OpenCV, SciPy and torchvision's recipe in plain torch."""

import math
from functools import partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import ndimage

from jaxsr.ops import _separable
from jaxsr.ops.blur import gaussian_blur
from tests.covering import every_pair

pytestmark = pytest.mark.usefixtures("xla_kernels")

SHAPES = [(1, 7, 9, 1), (2, 32, 17, 3), (1, 1, 13, 3), (3, 64, 5, 4)]
OPENCV_BORDERS = {
    "reflect101": cv2.BORDER_REFLECT_101,
    "reflect": cv2.BORDER_REFLECT,
    "symmetric": cv2.BORDER_REFLECT,
    "replicate": cv2.BORDER_REPLICATE,
    "edge": cv2.BORDER_REPLICATE,
    "constant": cv2.BORDER_CONSTANT,
}
SCIPY_BORDERS = {
    "reflect101": "mirror",
    "symmetric": "reflect",
    "edge": "nearest",
    "constant": "constant",
    "wrap": "wrap",
}


def draw(shape, dtype: type = np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, shape, np.uint8) if dtype == np.uint8 else rng.random(shape, dtype)


def by_opencv(image, size=None, sigma=None, border="reflect101"):
    """`cv2.GaussianBlur` of each image; sizes and sigmas are (vertical, horizontal)."""
    (kh, kw), (sh, sw) = size or (0, 0), sigma or (0, 0)
    blurred = [
        cv2.GaussianBlur(x, (kw, kh), sigmaX=sw, sigmaY=sh, borderType=OPENCV_BORDERS[border])
        for x in image
    ]
    return np.stack(blurred).reshape(image.shape)


def by_torchvision(image, size, sigma=None):
    """torchvision.transforms.v2.functional.gaussian_blur, step by step; NHWC in and out.

    torchvision does not import beside a CPU build of torch, so its lines stand here:
    _functional_tensor._get_gaussian_kernel1d, then reflect padding and a depthwise conv2d.
    """
    sigma = sigma or tuple(0.15 * k + 0.35 for k in size)
    kernels = []
    for k, s in zip(size, sigma, strict=True):
        limit = (k - 1) / (2 * math.sqrt(2))
        kernels.append(torch.softmax(torch.linspace(-limit, limit, k).div(s).pow(2).neg(), 0))
    kernel = kernels[0].unsqueeze(-1) * kernels[1]
    x = torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))
    channels, (rh, rw) = x.shape[1], (size[0] // 2, size[1] // 2)
    padded = F.pad(x.float(), (rw, rw, rh, rh), mode="reflect")
    y = F.conv2d(padded, kernel.expand(channels, 1, *size), groups=channels)
    y = y if x.is_floating_point() else y.round().to(x.dtype)
    return y.numpy().transpose(0, 2, 3, 1)


# Two passes of float32 products that sum to at most 1 per unit of range.
TOLERANCE = 2e-6


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("border", OPENCV_BORDERS)
def test_float_matches_opencv(shape, border):
    image = draw(shape)
    options = {"sigma": (1.4, 0.8), "kernel_size": (5, 9), "border": border}
    got = jax.jit(partial(gaussian_blur, convention="opencv", **options))(image)
    want = by_opencv(image, (5, 9), (1.4, 0.8), border)
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("shape", "border", "window"),
    every_pair(SHAPES, list(OPENCV_BORDERS), [((5, 9), (1.4, 0.8)), ((31, 3), (5.0, 0.4))]),
)
def test_uint8_is_bit_equal_to_opencv(shape, border, window):
    size, sigma = window
    image = draw(shape, np.uint8)
    got = gaussian_blur(image, sigma=sigma, kernel_size=size, border=border, convention="opencv")
    np.testing.assert_array_equal(got, by_opencv(image, size, sigma, border))


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 1.5, 2.0, 3.7])
def test_opencv_derives_the_window_from_sigma(dtype, sigma):
    image = draw((1, 61, 67, 3), dtype)
    got = gaussian_blur(image, sigma=sigma, convention="opencv")
    want = by_opencv(image, sigma=(sigma, sigma))
    if dtype == np.uint8:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("size", [1, 3, 5, 7, 9, 11, 21, 31])
def test_opencv_derives_sigma_from_the_window(dtype, size):
    image = draw((1, 61, 67, 3), dtype)
    got = gaussian_blur(image, kernel_size=size, convention="opencv")
    want = by_opencv(image, size=(size, size))
    if dtype == np.uint8:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize(
    ("size", "sigma"),
    [((7, 7), (1.5, 1.5)), ((3, 11), None), ((21, 5), (3.0, 0.7)), ((1, 3), None)],
)
def test_torchvision(dtype, size, sigma):
    image = draw((2, 32, 29, 3), dtype)
    got = np.asarray(gaussian_blur(image, kernel_size=size, sigma=sigma))
    want = by_torchvision(image, size, sigma)
    assert got.dtype == dtype
    if dtype == np.uint8:
        off = np.abs(got.astype(int) - want)
        # Ties of a float32 sum: our separable sum and torchvision's 2-D one round differently.
        assert off.max() <= 1
        assert (off > 0).mean() < 1e-3
    else:
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.sample(6)
@pytest.mark.parametrize("border", SCIPY_BORDERS)
@pytest.mark.parametrize("shape", [(1, 7, 9, 1), (2, 32, 17, 3), (1, 2, 3, 2), (1, 1, 1, 1)])
def test_every_border_matches_scipy(border, shape):
    image = draw(shape)
    got = gaussian_blur(image, sigma=1.5, kernel_size=11, border=border)
    want = ndimage.gaussian_filter(
        image.astype(np.float64), (0, 1.5, 1.5, 0), mode=SCIPY_BORDERS[border], radius=(0, 5, 5, 0)
    )
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


def test_reflect_means_what_the_named_library_means():
    image = draw((1, 16, 16, 1))
    options = {"sigma": 2.0, "kernel_size": 9, "border": "reflect"}
    ours = {
        c: np.asarray(gaussian_blur(image, convention=c, **options))
        for c in ("torchvision", "opencv")
    }
    np.testing.assert_allclose(
        ours["torchvision"], by_torchvision(image, (9, 9), (2, 2)), atol=TOLERANCE
    )
    np.testing.assert_allclose(
        ours["opencv"], by_opencv(image, (9, 9), (2, 2), "reflect"), atol=TOLERANCE
    )
    assert np.abs(ours["torchvision"] - ours["opencv"]).max() > 1e-2


@pytest.mark.sample(2)
@pytest.mark.parametrize("axes", [(-2, -1), (1, 2), (0, 3), (2, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_any_layout(axes, dtype):
    image = draw((12, 14, 13, 11), dtype)
    options = {"sigma": (0.8, 2.0), "kernel_size": (3, 7), "convention": "opencv"}
    last = np.moveaxis(image, axes, (1, 2))
    want = np.moveaxis(np.asarray(gaussian_blur(last, **options)), (1, 2), [a % 4 for a in axes])
    np.testing.assert_allclose(gaussian_blur(image, axes=axes, **options), want, atol=3e-7)


def test_vmap_and_single_image():
    image = draw((4, 12, 9, 3))
    blur = partial(gaussian_blur, sigma=1.0, kernel_size=5)
    np.testing.assert_allclose(jax.vmap(blur)(image), blur(image), atol=1e-7)
    np.testing.assert_allclose(blur(image[0]), blur(image)[0], atol=1e-7)


def test_bfloat16_rounds_once():
    image = jnp.asarray(draw((2, 33, 17, 3)), jnp.bfloat16)
    got = gaussian_blur(image, sigma=1.5, kernel_size=7)
    want = gaussian_blur(image.astype(jnp.float32), sigma=1.5, kernel_size=7).astype(jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))


@pytest.mark.sample(1)
@pytest.mark.parametrize("border", ["reflect101", "symmetric", "edge", "constant", "wrap"])
def test_gradient_is_the_adjoint_of_scipys_blur(border):
    image, upstream = draw((1, 12, 11, 2)), draw((1, 12, 11, 2), seed=1)
    slope = jax.grad(
        lambda x: (gaussian_blur(x, sigma=1.2, kernel_size=5, border=border) * upstream).sum()
    )(image)
    step = draw(image.shape, seed=2)
    # The blur is linear, so the derivative along a step is the blur of the step.
    moved = ndimage.gaussian_filter(
        step.astype(np.float64), (0, 1.2, 1.2, 0), mode=SCIPY_BORDERS[border], radius=(0, 2, 2, 0)
    )
    np.testing.assert_allclose(np.vdot(slope, step), np.vdot(moved, upstream), rtol=1e-5)


def test_the_gradient_of_sigma_is_scipys_slope():
    """At 0 and beside it, too, where it is 0."""
    image, sigmas = draw((4, 9, 8, 2)), [0.0, 1e-14, 0.6, 1.0]

    def total(sigma: jax.Array) -> jax.Array:
        return jnp.square(gaussian_blur(image, sigma=sigma, kernel_size=5)).sum()

    def theirs(picture: np.ndarray, sigma: float) -> float:
        spread = (sigma, sigma, 0)
        out = ndimage.gaussian_filter(picture, spread, mode="mirror", radius=(2, 2, 0))
        return np.square(out).sum()

    want = [
        (theirs(x, s + 1e-4) - theirs(x, max(s - 1e-4, 0))) / (s + 1e-4 - max(s - 1e-4, 0))
        for x, s in zip(image.astype(np.float64), sigmas, strict=True)
    ]
    got = jax.grad(total)(jnp.asarray(sigmas))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sigma", [0.1, 1, 2.6])
def test_sigma_alone_is_scipys(sigma):
    image = draw((2, 23, 37, 3))
    got = gaussian_blur(image, sigma=sigma)
    want = ndimage.gaussian_filter(image.astype(np.float64), (0, sigma, sigma, 0), mode="mirror")
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.sample(2)
@pytest.mark.parametrize("border", SCIPY_BORDERS)
def test_long_windows_match_scipy(border):
    """Windows that are matrix products, of several times the image."""
    image = draw((2, 16, 37, 3))
    got = gaussian_blur(image, sigma=(30.0, 90.0), kernel_size=(241, 721), border=border)
    want = ndimage.gaussian_filter(
        image.astype(np.float64),
        (0, 30, 90, 0),
        mode=SCIPY_BORDERS[border],
        radius=(0, 120, 360, 0),
    )
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_long_windows_match_opencv(dtype):
    image = draw((1, 300, 417, 3), dtype)
    got = gaussian_blur(image, sigma=40.0, convention="opencv")
    atol = TOLERANCE if dtype == np.float32 else 0
    np.testing.assert_allclose(got, by_opencv(image, sigma=(40, 40)), atol=atol)


def test_programs_do_not_grow_with_the_window():
    def lines(sigma):
        image = jax.ShapeDtypeStruct((1, 16, 17, 3), np.float32)
        blur = jax.jit(partial(gaussian_blur, sigma=sigma, convention="opencv"))
        return len(blur.lower(image).as_text().splitlines())

    assert lines(1000.0) == lines(30.0)


def test_a_bad_value_stays_within_a_long_window():
    image = draw((1, 3, 400, 2))
    image[0, 1, 60, 1] = np.inf
    got = np.asarray(gaussian_blur(image, sigma=(0.5, 20.0), kernel_size=(1, 181)))
    reached = np.zeros(image.shape, bool)
    reached[0, 1, : 60 + 91, 1] = True
    np.testing.assert_array_equal(got == np.inf, reached)
    assert np.isfinite(got[~reached]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_values_stay_within_the_window(value):
    image = draw((1, 30, 31, 3))
    image[0, 14, 9, 1] = value
    got = np.asarray(gaussian_blur(image, sigma=1.5, kernel_size=(5, 7)))
    touched = np.zeros(image.shape, bool)
    touched[0, 12:17, 6:13, 1] = True
    np.testing.assert_array_equal(np.isfinite(got), ~touched)


def test_batch_sharding_communicates_nothing():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    image = jax.device_put(draw((8, 24, 24, 3)), NamedSharding(mesh, P("data")))
    compiled = jax.jit(partial(gaussian_blur, sigma=1.5, kernel_size=7)).lower(image).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    got = compiled(image)
    assert got.sharding.is_equivalent_to(image.sharding, 4)
    np.testing.assert_allclose(
        got, gaussian_blur(np.asarray(image), sigma=1.5, kernel_size=7), atol=1e-7
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "got neither"),
        ({"sigma": 0, "kernel_size": 3}, ValueError, "positive"),
        ({"sigma": -1.0, "kernel_size": 3}, ValueError, "positive"),
        ({"sigma": float("nan"), "kernel_size": 3}, ValueError, "positive"),
        ({"sigma": (1.0, 2.0, 3.0), "kernel_size": 3}, ValueError, "vertical, horizontal"),
        ({"sigma": ("1", "2"), "kernel_size": 3}, TypeError, "Python number"),
        ({"kernel_size": 4}, ValueError, "odd"),
        ({"sigma": 1e6, "convention": "opencv"}, ValueError, "of 65535 at most"),
        ({"kernel_size": 70001}, ValueError, "at most 65535"),
        ({"kernel_size": 0}, ValueError, "at least 1"),
        ({"kernel_size": -3}, ValueError, "at least 1"),
        ({"kernel_size": (3, 3.0)}, TypeError, "integers"),
        ({"kernel_size": (3, 3, 3)}, ValueError, "height, width"),
        ({"kernel_size": 3, "border": "mirror"}, ValueError, "choose one of"),
        ({"kernel_size": 3, "convention": "scipy"}, ValueError, "choose one of"),
        ({"kernel_size": 3, "axes": (1, 1)}, ValueError, "twice"),
        ({"kernel_size": 3, "axes": (1, 7)}, ValueError, "outside"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        gaussian_blur(draw((1, 8, 8, 3)), **options)


@pytest.mark.usefixtures("unchecked_types")
def test_a_traced_sigma_alone_is_refused_at_trace_time():
    with pytest.raises(ValueError, match="fixes the window"):
        jax.jit(lambda s: gaussian_blur(jnp.ones((1, 8, 8, 1)), sigma=s))(1.0)


@pytest.mark.parametrize("dtype", [bool, np.complex64, np.int32])
@pytest.mark.usefixtures("unchecked_types")
def test_bad_dtypes(dtype):
    with pytest.raises(TypeError, match="uint8, uint16 or floating point"):
        gaussian_blur(np.zeros((1, 8, 8, 3), dtype), kernel_size=3)


@pytest.mark.usefixtures("unchecked_types")
def test_empty_image():
    with pytest.raises(ValueError, match="empty"):
        gaussian_blur(np.zeros((1, 0, 8, 3), np.float32), kernel_size=3)


# Few shapes and windows, many draws: each new pair of them compiles a program.
def check_against_opencv(drawn):
    seed, shape, window, border, dtype = drawn
    image = draw(shape, dtype, seed)
    size, sigma = window
    got = gaussian_blur(image, sigma=sigma, kernel_size=size, border=border, convention="opencv")
    want = by_opencv(image, (size, size), sigma and (sigma, sigma), border)
    if dtype == np.uint8:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


IMAGES = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 9, 8, 1), (2, 5, 16, 3), (1, 23, 2, 2)]),
    st.sampled_from([(3, 0.6), (5, 1.1), (9, 2.5), (13, None)]),
    st.sampled_from(["reflect101", "edge"]),
    st.sampled_from([np.float32, np.uint8]),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(IMAGES)
def test_draws_against_opencv(drawn):
    check_against_opencv(drawn)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(IMAGES)
def test_many_draws_against_opencv(drawn):
    check_against_opencv(drawn)


@pytest.mark.sample(2)
@pytest.mark.parametrize("border", list(SCIPY_BORDERS))
def test_the_form_for_gpus_is_scipys(border, monkeypatch):
    """It computes on a CPU here; no other form may take its place."""
    monkeypatch.setattr(_separable, "platform_dependent", lambda x, **forms: forms["cuda"](x))
    image = draw((2, 32, 17, 3))
    weights = np.array([0.1, 0.2, 0.4, 0.25, 0.05])
    x, steps = _separable.fold_channels(jnp.asarray(image), (1, 2))
    for axis, step in steps.items():
        x = _separable.filter_bordered(x, weights.tolist(), axis, border, step=step)
    expected = image
    for axis in (1, 2):
        expected = ndimage.correlate1d(expected, weights, axis, mode=SCIPY_BORDERS[border])
    np.testing.assert_allclose(x.reshape(image.shape), expected, atol=1e-6)
