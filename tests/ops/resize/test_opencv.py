"""The OpenCV convention against `cv2.resize` itself."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr.ops import resize
from jaxsr.ops._resize.primitive import resize_in_jax

FLAGS = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "lanczos": cv2.INTER_LANCZOS4,
    "area": cv2.INTER_AREA,
}
SIZES = [
    ((13, 17), (29, 31)),
    ((97, 64), (41, 32)),
    ((100, 70), (70, 49)),
    ((2, 1), (5, 3)),
    ((7, 1), (3, 4)),
    ((108, 192), (54, 96)),
    ((135, 27), (80, 16)),
    ((24, 25), (96, 100)),
    ((64, 60), (16, 15)),
    ((33, 47), (33, 20)),
    ((9, 9), (1, 1)),
    ((500, 333), (777, 2)),
    ((60, 90), (20, 30)),
    ((30, 42), (50, 18)),
    ((30, 42), (18, 18)),
    ((512, 3), (39, 7)),  # less than the 4 pixels that IPP's bicubic needs
    ((3, 41), (50, 13)),
]
# Two passes of at most 8 taps in float32 on values of 0..1.
ATOL = 2e-6


def photo(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    return values if dtype is np.float32 else np.round(values * 255).astype(np.uint8)


def ours(image: np.ndarray, size: tuple[int, int]) -> dict[str, np.ndarray]:
    def run(image):
        return {m: resize(image, size, method=m, convention="opencv") for m in FLAGS}

    return {name: np.asarray(out) for name, out in jax.jit(run)(image).items()}


def theirs(image: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    out = cv2.resize(image, size[::-1], interpolation=FLAGS[method])
    return out.reshape(*size, image.shape[-1])


@pytest.mark.sample(2)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_float32(before, after, channels):
    if not cv2.ipp.useIPP():
        pytest.skip("this OpenCV has no IPP, whose coordinates are float64")
    image = photo((*before, channels), np.float32)
    for method, got in ours(image, after).items():
        want = theirs(image, after, method)
        np.testing.assert_allclose(got, want, atol=ATOL, rtol=0, err_msg=method)


def test_float64():
    image = np.random.default_rng(0).random((300, 310, 1))
    with jax.enable_x64(True):
        outputs = ours(image, (411, 327))
    for method, got in outputs.items():
        # OpenCV's weights of a cubic are float32.
        atol = ATOL if method == "bicubic" else 1e-12
        want = theirs(image, (411, 327), method)
        np.testing.assert_allclose(got, want, atol=atol, rtol=0, err_msg=method)


@pytest.mark.sample(3)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_uint8(before, after, channels):
    image = photo((*before, channels), np.uint8)
    for method, got in ours(image, after).items():
        want = theirs(image, after, method)
        if method == "bicubic":  # see below
            assert np.abs(got.astype(int) - want).max() <= 1
        else:
            np.testing.assert_array_equal(got, want, err_msg=method)


@pytest.mark.parametrize(("before", "after"), [((300, 500), (213, 777)), ((64, 64), (128, 96))])
def test_uint8_bicubic_is_within_one_level(before, after):
    """IPP does not publish the order of its float32 sums; next to a tie the level may differ."""
    image = photo((*before, 3), np.uint8)
    got = np.asarray(resize(image, after, method="bicubic", convention="opencv")).astype(int)
    difference = np.abs(got - theirs(image, after, "bicubic"))
    assert difference.max() <= 1
    if cv2.ipp.useIPP():
        assert (difference > 0).mean() < 3e-5


@pytest.mark.parametrize(("before", "after"), SIZES[::4])
def test_uint8_bicubic_without_ipp_is_within_one_level(before, after):
    image = photo((*before, 3), np.uint8)
    got = np.asarray(resize(image, after, method="bicubic", convention="opencv")).astype(int)
    had = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    try:
        want = theirs(image, after, "bicubic")
    finally:
        cv2.ipp.setUseIPP(had)
    assert np.abs(got - want).max() <= 1


def test_uint8_bicubic_of_two_pixels():
    image = np.array([[0], [153]], np.uint8)
    got = resize(image, (1, 1), method="bicubic", convention="opencv", axes=(0, 1))
    assert got.item() == cv2.resize(image, (1, 1), interpolation=cv2.INTER_CUBIC).item() == 77


@pytest.mark.slow
@pytest.mark.parametrize("method", FLAGS)
def test_random_sizes(method):
    rng = np.random.default_rng(0)
    for _ in range(40):
        *before, high, wide = rng.integers(1, 80, 4).tolist()
        for dtype, atol in ((np.uint8, 0), (np.float32, ATOL)):
            image = photo((*before, 3), dtype)
            got = resize(image, (high, wide), method=method, convention="opencv")
            want = theirs(image, (high, wide), method)
            np.testing.assert_allclose(got, want, atol=atol, rtol=0, err_msg=f"{before} {dtype}")


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    ("method", "dtype", "size"),
    [
        ("area", np.uint8, (8, 12)),
        ("area", np.uint8, (4, 24)),
        ("area", np.uint8, (16, 6)),
        ("area", np.uint8, (4, 6)),
        ("area", np.uint16, (8, 12)),
        ("area", np.uint16, (16, 6)),
        ("bilinear", np.uint8, (8, 12)),
        ("bilinear", np.uint16, (8, 12)),
    ],
)
def test_ties_of_whole_cells(method, dtype, size, channels):
    """OpenCV rounds ties up in its code for 2 × 2 pixels of 1, 3 or 4 channels, else to even."""
    levels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max + 1, (16, 24, channels))
    image = levels.astype(dtype)
    want = theirs(image, size, method)
    if (method, dtype) == ("bilinear", np.uint16) and not cv2.ipp.useIPP():
        pytest.skip("this OpenCV has no IPP, which rounds means of uint16 to even")
    np.testing.assert_array_equal(resize(image, size, method=method, convention="opencv"), want)
    if dtype == np.uint8:  # as on GPUs and TPUs
        options = (("method", method),)
        got = resize_in_jax(
            jnp.asarray(image), axes=(0, 1), size=size, convention="opencv", options=options
        )
        np.testing.assert_array_equal(got, want)
