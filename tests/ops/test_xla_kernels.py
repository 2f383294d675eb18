"""Programs of XLA's kernels alone: each function of pictures, values that are computed twice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxsr import ops
from jaxsr.xla_calls.stored import stored
from tests.ops.test_every_function import FUNCTIONS, WITH_ARGUMENTS, in_float, pictures

pytestmark = pytest.mark.usefixtures("xla_kernels")

SCIPY_MODES = {
    "constant": "grid-constant",
    "edge": "nearest",
    "symmetric": "reflect",
    "reflect101": "mirror",
    "wrap": "grid-wrap",
}
WHITE = {"uint8": 255, "uint16": 65535, "float32": 1}


def by_scipy(images, matrix, border):
    inverse = np.linalg.inv([*matrix, [0, 0, 1]])
    rows, columns = np.indices(images.shape[1:3]).astype(np.float64)
    x, y = (a * columns + b * rows + c for a, b, c in inverse[:2])
    read = partial(ndimage.map_coordinates, coordinates=(y, x), order=1, mode=SCIPY_MODES[border])
    planes = np.moveaxis(images.astype(np.float64), -1, 1)
    return np.moveaxis(np.array([[read(plane) for plane in each] for each in planes]), 1, -1)


def random_images(rng, dtype, count, channels):
    levels = rng.integers(0, 256, (count, *rng.integers(5, 64, 2), channels))
    return (levels * (WHITE[dtype] / 255)).astype(dtype)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", WHITE)
@pytest.mark.parametrize("border", SCIPY_MODES)
def test_warps_by_matrices_of_one_decimal_are_scipys(border, dtype):
    """Positions at whole pixels: `floor` of one rounding and the fraction of another are apart."""
    rng = np.random.default_rng(len(border))
    for count, channels in ((1, 4), (2, 2), (5, 1), (2, 3)):
        matrix = np.round(0.8 * np.eye(2, 3) + rng.uniform(-0.4, 0.4, (2, 3)), 1)
        images = random_images(rng, dtype, count, channels)
        warped = ops.warp_affine(images, matrix, border=border)
        # Half a level of rounding; positions in float32 move a steep edge of a few dozen pixels.
        atol = WHITE[dtype] * 2e-4 + (0 if dtype == "float32" else 0.5)
        np.testing.assert_allclose(
            np.asarray(warped, np.float64), by_scipy(images, matrix, border), atol=atol
        )


def test_the_example_of_two_roundings():
    images = np.random.default_rng(0).integers(0, 256, (2, 48, 64, 2)).astype(np.uint8)
    matrix = [[0.6, 0.1, -0.3], [0.2, 0.6, 0.2]]
    warped = np.asarray(ops.warp_affine(images, matrix, border="edge"), np.float64)
    np.testing.assert_allclose(warped, by_scipy(images, matrix, "edge"), atol=0.51)


@pytest.mark.parametrize("degrees", [45.0, 44.999996, 135.0, -45.0, 224.99998, 7.3])
def test_a_rotation_is_that_of_its_angle(degrees):
    """At half quarters a quotient by 90 may round up where the remainder does not."""
    images = np.random.default_rng(1).integers(0, 256, (2, 24, 24, 2)).astype(np.uint8)
    angle = np.float32(degrees)
    c, s = np.cos(np.deg2rad(np.float64(angle))), np.sin(np.deg2rad(np.float64(angle)))
    middle = 11.5
    matrix = [[c, s, middle - (c + s) * middle], [-s, c, middle + (s - c) * middle]]
    turned = np.asarray(jax.jit(ops.rotate)(images, angle), np.float64)
    np.testing.assert_allclose(turned, by_scipy(images, matrix, "constant"), atol=0.52)


def test_positions_that_the_callers_program_computes():
    """Products and sums in front of the function, in the same program."""
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (2, 48, 64, 2)).astype(np.uint8)
    slopes = np.round(rng.uniform(0.1, 1, (4, 6)), 1).astype(np.float32)
    rows, columns = np.indices((48, 64)).astype(np.float32)

    @jax.jit
    def warped(slope):
        places = [a * rows + b * columns + c for a, b, c in slope.reshape(2, 3)]
        return ops.remap(images, *places, border="edge")

    for slope in slopes:
        places = [a * rows + b * columns + c for a, b, c in slope.reshape(2, 3).astype(np.float64)]
        planes = np.moveaxis(images.astype(np.float64), -1, 1)
        read = partial(ndimage.map_coordinates, coordinates=places, order=1, mode="nearest")
        expected = np.moveaxis(np.array([[read(p) for p in each] for each in planes]), 1, -1)
        np.testing.assert_allclose(np.asarray(warped(slope), np.float64), expected, atol=0.52)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*FUNCTIONS, *WITH_ARGUMENTS])
def test_a_program_computes_what_its_steps_compute(name):
    """One step at a time nothing is computed twice."""
    if name in FUNCTIONS:
        function, dtypes = FUNCTIONS[name]
        arrays = (pictures("uint8" if "uint8" in dtypes else dtypes[0], 2),)
    else:
        function, arrays = WITH_ARGUMENTS[name]
        arrays = tuple(array[:2] for array in arrays)
    together = jax.tree.leaves(jax.jit(function)(*arrays))
    with jax.disable_jit():
        apart = jax.tree.leaves(function(*map(jnp.asarray, arrays)))
    for got, want in zip(together, apart, strict=True):
        assert got.dtype == want.dtype
        # Programs contract other products and sums; levels may differ at a tie.
        is_float = jnp.issubdtype(want.dtype, jnp.floating)
        atol = 1e-5 * max(1, np.abs(in_float(want)).max()) if is_float else 1
        np.testing.assert_allclose(in_float(got), in_float(want), atol=atol)


@pytest.mark.parametrize("shape", [(), (1,), (3, 70), (0, 4)])
def test_a_stored_array_is_read_and_not_made_again(shape):
    def split(a, x):
        position = stored(a * x + 0.3)
        base = jnp.floor(position)
        return base.astype(jnp.int32), 1 - (position - base)

    x = jnp.ones(shape)
    text = jax.jit(split).lower(0.1, x).compile().as_text()
    assert text is not None
    assert text.count(" multiply(") <= 1
    base, rest = jax.jit(jax.vmap(split, (None, 0)))(0.7, x[None])
    assert base.shape == (1, *shape)
    np.testing.assert_allclose(base + 1 - rest, np.ones((1, *shape)), atol=1e-6)
    slope = jax.grad(lambda a: jnp.sum(split(a, x)[1]))(0.2)
    np.testing.assert_array_equal(slope, -float(x.size))
