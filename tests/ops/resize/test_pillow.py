"""The Pillow convention against `Image.resize` itself."""

import jax
import numpy as np
import PIL
import pytest
from PIL import Image

from jaxsr.ops import resize

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
SIZES = [
    ((13, 17), (29, 31)),
    ((97, 64), (41, 32)),
    ((100, 70), (70, 49)),
    ((1, 1), (5, 3)),
    ((7, 1), (3, 4)),
    ((108, 192), (54, 96)),
    ((135, 27), (80, 16)),
    ((24, 25), (96, 100)),
    ((64, 60), (16, 15)),
    ((33, 47), (33, 20)),
    ((9, 9), (1, 1)),
    ((300, 333), (100, 2)),
    ((90, 90), (30, 30)),
]
# Height first, since Pillow 13.
TALL = [((120, 40), (33, 90)), ((100, 100), (79, 90)), ((200, 100), (99, 50))]
# Two passes of at most 1000 float32 products whose weights' moduli sum to less than 1.6.
ATOL = 2e-6


def photo(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    return values if dtype is np.float32 else np.round(values * 255).astype(np.uint8)


def ours(image: np.ndarray, size: tuple[int, int]) -> dict[str, np.ndarray]:
    def run(image):
        return {m: resize(image, size, method=m, convention="pillow", axes=(0, 1)) for m in FILTERS}

    return {name: np.asarray(out) for name, out in jax.jit(run)(image).items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize(("before", "after"), SIZES + TALL)
def test_uint8_is_bit_equal(before, after, shape):
    if (before, after) in TALL and int(PIL.__version__.split(".")[0]) < 13:
        pytest.skip("Pillow before 13 always begins with the width")
    image = photo((*before, *shape), np.uint8)
    for method, got in ours(image, after).items():
        want = np.asarray(Image.fromarray(image).resize(after[::-1], FILTERS[method]))
        np.testing.assert_array_equal(got, want, err_msg=method)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_mode_f(before, after):
    image = photo(before, np.float32)
    for method, got in ours(image, after).items():
        want = np.asarray(Image.fromarray(image).resize(after[::-1], FILTERS[method]))
        np.testing.assert_allclose(got, want, atol=ATOL, rtol=0, err_msg=method)


def test_area_is_box():
    image = photo((30, 20, 3), np.uint8)
    area, box = (resize(image, (9, 8), method=m, convention="pillow") for m in ("area", "box"))
    np.testing.assert_array_equal(area, box)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "channels"), [("RGBA", 4), ("LA", 2)])
@pytest.mark.parametrize(("before", "after"), SIZES[::3])
def test_alpha(mode, channels, before, after):
    image = photo((*before, channels), np.uint8)
    image[: before[0] // 2, ..., -1] = 0  # invisible pixels, whose colours must not spread
    for method, flag in FILTERS.items():
        for axes, order in (((0, 1), (0, 1, 2)), ((1, 2), (2, 0, 1))):
            got = resize(
                image.transpose(order),
                after,
                method=method,
                convention="pillow",
                axes=axes,
                alpha=-1,
            )
            want = np.asarray(Image.fromarray(image, mode).resize(after[::-1], flag))
            np.testing.assert_array_equal(got, want.transpose(order), err_msg=method)


def test_alpha_of_floats_is_the_levels_unrounded():
    image = photo((20, 30, 4), np.uint8)
    levels = resize(image, (9, 40), method="bilinear", convention="pillow", alpha=3)
    got = resize(image / np.float32(255), (9, 40), method="bilinear", convention="pillow", alpha=3)
    opaque = np.asarray(levels)[..., 3:] > 100
    # Three roundings to levels, the last divided by alpha.
    np.testing.assert_allclose(
        np.where(opaque, np.asarray(got) * 255, 0), np.where(opaque, levels, 0), atol=4
    )
