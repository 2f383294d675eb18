"""Flips, turns, borders and crops against NumPy and OpenCV, bit for bit."""

from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr import ops
from tests.ops.dtypes import EVERY_DTYPE

SHAPES = [(60, 4, 5, 2), (60, 1, 1, 3), (60, 7, 1, 1)]
NUMPY_BORDERS: dict[str, Any] = {
    "edge": "edge",
    "reflect101": "reflect",
    "symmetric": "symmetric",
    "wrap": "wrap",
}


def pictures(shape, dtype="float32"):
    values = np.random.default_rng(0).random(shape) * 255
    return jnp.asarray(values.astype(np.uint8 if dtype == "uint8" else np.float32), dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flip_of_some_pictures(shape, dtype):
    images = pictures(shape, dtype)
    horizontal, vertical = np.random.default_rng(1).random((2, shape[0])) < 0.5
    got = jax.jit(lambda x, h, v: ops.flip(x, horizontal=h, vertical=v))(
        images, horizontal, vertical
    )
    for picture, h, v, image in zip(got, horizontal, vertical, np.asarray(images), strict=True):
        want = image[:: -1 if v else 1, :: -1 if h else 1]
        np.testing.assert_array_equal(picture, want)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("turns", [-5, -1, 0, 1, 2, 3])
def test_rot90_and_transpose(turns, dtype):
    images = pictures(SHAPES[0], dtype)
    want = np.rot90(np.asarray(images), turns, (1, 2))
    np.testing.assert_array_equal(ops.rot90(images, turns), want)
    planes = jnp.moveaxis(images, -1, 1)
    got = ops.rot90(planes, turns, axes=(-2, -1))
    np.testing.assert_array_equal(got, np.moveaxis(want, -1, 1))
    np.testing.assert_array_equal(ops.transpose(images), np.asarray(images).swapaxes(1, 2))


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("border", NUMPY_BORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("padding", [0, (3, 1), (0, 2, 9, 1)], ids=str)
def test_pad_matches_numpy(padding, shape, border, dtype):
    images = pictures(shape, dtype)
    sides: Any = padding if isinstance(padding, tuple) else (padding, padding)
    sides = sides if len(sides) == 4 else (sides[0], sides[0], sides[1], sides[1])
    want = np.pad(
        np.asarray(images), ((0, 0), sides[:2], sides[2:], (0, 0)), mode=NUMPY_BORDERS[border]
    )
    np.testing.assert_array_equal(ops.pad(images, padding, border=border), want)


def test_the_fill_of_float64_is_not_rounded():
    """`RandomErasing`'s neither."""
    with jax.enable_x64(True):
        images = np.zeros((2, 6, 6, 1))
        got = ops.pad(images, 1, fill=0.1)
        step = ops.RandomErasing(probability=1.0, fill=0.1)
        erased = np.asarray(ops.augment(jax.random.key(0), images, (step,)).images)
    np.testing.assert_array_equal(
        got[0], np.pad(images[0], ((1, 1), (1, 1), (0, 0)), constant_values=0.1)
    )
    assert set(np.unique(erased)) == {0.0, 0.1}


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_constant_border(dtype):
    images = pictures(SHAPES[0], dtype)
    got = ops.pad(images, (0, 2, 9, 1), fill=7)
    for picture, image in zip(
        np.asarray(got, np.float32), np.asarray(images, np.float32), strict=True
    ):
        want = cv2.copyMakeBorder(image, 0, 2, 9, 1, cv2.BORDER_CONSTANT, value=(7, 7))
        np.testing.assert_array_equal(picture, want)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (4, 5)], ids=str)
def test_crops_at_places_of_their_own(size, dtype):
    images = pictures(SHAPES[0], dtype)
    top, left = np.random.default_rng(2).integers(-2, 7, (2, len(images)))
    got = jax.jit(partial(ops.crop, size=size))(images, top, left)
    for picture, image, y, x in zip(got, np.asarray(images), top, left, strict=True):
        y, x = np.clip(y, 0, 4 - size[0]), np.clip(x, 0, 5 - size[1])  # noqa: PLW2901
        np.testing.assert_array_equal(picture, image[y : y + size[0], x : x + size[1]])


@pytest.mark.parametrize(
    ("size", "top", "left"), [((2, 3), 1, 1), ((1, 2), 2, 2), ((3, 4), 0, 0), (4, 0, 0)]
)
def test_center_crop_rounds_as_torchvision(size, top, left):
    """torchvision: int(round((height - crop_height) / 2.0))."""
    images = pictures(SHAPES[0])
    height, width = size if isinstance(size, tuple) else (size, size)
    want = images[:, top : top + height, left : left + width]
    np.testing.assert_array_equal(ops.center_crop(images, size), want)


IMAGE = np.zeros((2, 4, 5, 3), np.float32)
HALF: Any = 0.5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.flip, IMAGE, horizontal=np.ones(2)), TypeError, "horizontal must be boolean"),
        (partial(ops.flip, IMAGE, vertical=np.ones(3, bool)), ValueError, "vertical of shape"),
        (partial(ops.rot90, IMAGE, HALF), TypeError, "turns must be an integer, got 0.5"),
        (partial(ops.pad, IMAGE, (1, 2, 3)), TypeError, "top, bottom, left, right"),
        (partial(ops.pad, IMAGE, HALF), TypeError, "padding must be an integer"),
        (partial(ops.pad, IMAGE, -1), ValueError, "use crop to cut"),
        (partial(ops.pad, IMAGE, 1, border="mirror"), ValueError, "unknown border 'mirror'"),
        (partial(ops.crop, IMAGE, 0, 0, 5), ValueError, "larger than the image of 4x5"),
        (partial(ops.crop, IMAGE, 0.5, 0, 2), TypeError, "top must hold integers"),
        (partial(ops.center_crop, IMAGE, (4, 6)), ValueError, "pad it first"),
        (partial(ops.transpose, IMAGE > 0), TypeError, "got bool; cast it"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_places_of_narrow_integers_in_tall_pictures(dtype):
    image = np.arange(400, dtype=np.float32)[:, None, None]
    tops = np.array([10, 120], dtype)
    cut = ops.crop(np.stack([image, image]), tops, np.zeros(2, dtype), (100, 1))
    np.testing.assert_array_equal(cut, np.stack([image[10:110], image[120:220]]))
