"""The MATLAB convention against a float64 NumPy `imresize` written apart from the kernel."""

import math

import jax
import numpy as np
import pytest

from jaxsr.ops import matlab_size, resize

# (height, width), scale or None for sizes alone, (height, width) afterwards
CASES = [
    ((100, 90), 1 / 2, (50, 45)),
    ((101, 91), 1 / 2, (51, 46)),
    ((100, 91), 1 / 3, (34, 31)),
    ((90, 90), 2 / 3, (60, 60)),
    ((101, 57), 1 / 4, (26, 15)),
    ((40, 50), 1.5, (60, 75)),
    ((20, 21), 4, (80, 84)),
    ((13, 11), 3, (39, 33)),
    ((100, 100), 0.7, (70, 70)),
    ((33, 44), None, (23, 71)),
    ((36, 40), None, (18, 30)),  # uint8: the height in integers, the width in float64
    ((60, 60), None, (55, 20)),  # the width first
    ((3, 2), None, (1, 1)),
    ((1, 1), None, (4, 3)),
    ((2, 3), None, (9, 7)),
]


def imresize(image: np.ndarray, size: tuple[int, int], scale: float | None, edges: str):
    """imresize.m read pixel by pixel: one output row (then column) at a time, taps in order."""
    scales = [size[axis] / image.shape[axis] if scale is None else scale for axis in (0, 1)]
    for axis in np.argsort(scales, kind="stable"):  # as in imresize.m's deriveSizeAndScale
        source = np.moveaxis(image, axis, 0).astype(np.float64)
        extent, outputs = source.shape[0], size[axis]
        s = scales[axis]
        stretch = min(s, 1.0)
        reach = 4 / stretch
        out = np.zeros((outputs, *source.shape[1:]))
        for o in range(outputs):
            u = (o + 1) / s + 0.5 * (1 - 1 / s)
            left = math.floor(u - reach / 2)
            taps = range(left, left + math.ceil(reach) + 2)
            weights = []
            for tap in taps:
                x = abs(stretch * (u - tap))
                value = 0.0
                if x <= 1:
                    value = 1.5 * x**3 - 2.5 * x**2 + 1
                elif x <= 2:
                    value = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
                weights.append(stretch * value)
            total = np.sum(weights)
            for tap, weight in zip(taps, weights, strict=True):
                if edges == "clamp":
                    pixel = min(max(tap, 1), extent)
                else:
                    pixel = (tap - 1) % (2 * extent) + 1
                    pixel = pixel if pixel <= extent else 2 * extent + 1 - pixel
                out[o] = out[o] + (weight / total) * source[pixel - 1]
        if image.dtype == np.uint8:
            out = np.clip(np.floor(out + 0.5), 0, 255).astype(np.uint8)
        image = np.moveaxis(out, 0, axis)
    return image


@pytest.mark.sample(2)
@pytest.mark.parametrize("edges", ["clamp", "mirror"])
@pytest.mark.parametrize(("before", "scale", "after"), CASES)
def test_uint8_is_bit_equal(before, scale, after, edges):
    image = np.random.default_rng(0).integers(0, 256, (*before, 3), dtype=np.uint8)
    got = resize(
        image, after, method="bicubic", convention="matlab", scale=scale, matlab_edges=edges
    )
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, imresize(image, after, scale, edges))


@pytest.mark.sample(2)
@pytest.mark.parametrize("edges", ["clamp", "mirror"])
@pytest.mark.parametrize(("before", "scale", "after"), CASES)
def test_float32(before, scale, after, edges):
    image = np.random.default_rng(0).random((*before, 3), dtype=np.float32)
    got = resize(
        image, after, method="bicubic", convention="matlab", scale=scale, matlab_edges=edges
    )
    want = imresize(image.astype(np.float64), after, scale, edges)
    # Two passes of at most 16 float32 products whose weights' moduli sum to less than 1.3.
    np.testing.assert_allclose(got, want, atol=1e-6, rtol=0)


def test_uint8_ties_survive_every_route(shared_data):
    """A third of a photo: about one sum in 160 is a tie before rounding noise."""
    from PIL import Image

    photo = np.asarray(Image.open(shared_data / "kodak" / "05.png").convert("RGB"))[:240, :300]
    want = imresize(photo, (80, 100), 1 / 3, "clamp")
    call = jax.jit(
        lambda x: resize(x, (80, 100), method="bicubic", convention="matlab", scale=1 / 3)
    )
    np.testing.assert_array_equal(call(photo), want)
    np.testing.assert_array_equal(jax.vmap(call)(photo[None])[0], want)


@pytest.mark.parametrize("method", ["nearest", "box", "bilinear", "lanczos2", "lanczos"])
def test_other_filters_keep_a_constant_image(method):
    image = np.full((23, 31), 77, np.uint8)
    got = resize(image, (10, 47), method=method, convention="matlab", axes=(0, 1))
    assert np.unique(got) == [77]


def test_size_rounds_up():
    assert matlab_size((321, 481), 1 / 3) == (107, 161)
    assert matlab_size((321, 481), 0.5) == (161, 241)
    assert matlab_size((4, 4), 4) == (16, 16)
