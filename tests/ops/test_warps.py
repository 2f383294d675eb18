"""Warps against torch, scikit-image and SciPy, in float64 there.

Each call holds 64 pictures with 64 draws of the parameters: one compilation, 64 cases.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage
from skimage import transform

from jaxsr import ops
from jaxsr.interop.aot.topology import load_topology
from jaxsr.ops import _sampler
from tests.ops.dtypes import EVERY_DTYPE

CASES = 64
SHAPES = [(9, 11, 2), (1, 1, 1), (5, 1, 3)]
BORDERS = {
    "constant": "constant",
    "edge": "edge",
    "reflect101": "reflect",
    "symmetric": "symmetric",
    "wrap": "wrap",
}
# Positions are float32 numbers near 20, off by 1e-6; neighbours differ by up to 1.
ATOL = 2e-5


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def pictures(shape, dtype="float32") -> np.ndarray:
    values = rng().random((CASES, *shape))
    if dtype in ("uint8", "uint16"):
        return (values * np.iinfo(dtype).max).round().astype(dtype)
    return values.astype(np.float32)


def check(got, want, dtype="float32") -> None:
    """Integers are the reference rounded; a difference may lie within float32 of a half."""
    got = np.asarray(got, np.float64)
    if dtype == "float32":
        np.testing.assert_allclose(got, want, atol=ATOL)
    elif dtype == "bfloat16":
        np.testing.assert_allclose(got, want, atol=2**-8 + ATOL)  # rounded once, below 1
    else:
        most = np.iinfo(dtype).max
        assert np.abs(got - np.clip(want, 0, most)).max() <= 0.5 + most * ATOL


def in_torch(images, grid, method, padding_mode, align_corners) -> np.ndarray:
    planes = torch.from_numpy(np.moveaxis(images, -1, 1).astype(np.float64))
    out = F.grid_sample(
        planes,
        torch.from_numpy(grid.astype(np.float64)),
        mode=method,
        padding_mode=padding_mode,
        align_corners=align_corners,
    )
    return np.moveaxis(out.numpy(), 1, -1)


@pytest.mark.sample(6)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic"])
def test_grid_sample_matches_torch(method, padding_mode, align_corners):
    images = pictures((9, 11, 2))
    grid = rng().uniform(-1.6, 1.6, (CASES, 6, 7, 2)).astype(np.float32)
    options = {"method": method, "padding_mode": padding_mode, "align_corners": align_corners}
    got = np.asarray(ops.grid_sample(images, grid, **options))
    want = in_torch(images, grid, **options)
    if method == "nearest":
        # A position beside a half is rounded either way.
        assert (np.abs(got - want) > ATOL).mean() < 1e-3
    else:
        np.testing.assert_allclose(got, want, atol=ATOL)


@pytest.mark.sample(4)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_grid_sample_half_way_and_at_bad_positions(method, padding_mode, align_corners):
    # Extents for which half-way positions are exact in float32.
    images = pictures((5, 9, 2) if align_corners else (4, 8, 2))[:1]
    bad = [np.nan] if (method, padding_mode) == ("bilinear", "zeros") else [np.nan, np.inf, -np.inf]
    axis = np.array([*np.arange(-4, 4.1, 1 / 8), *bad], np.float32)
    grid = np.stack(np.meshgrid(axis, axis), -1)[None]
    options = {"method": method, "padding_mode": padding_mode, "align_corners": align_corners}
    got = ops.grid_sample(images, grid, **options)
    np.testing.assert_allclose(got, in_torch(images, grid, **options), atol=ATOL)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "uint8", "uint16"])
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_grid_sample_of_other_dtypes(method, dtype):
    images = pictures((9, 11, 2), dtype)
    grid = rng().uniform(-1.2, 1.2, (CASES, 6, 7, 2)).astype(np.float32)
    array = jnp.asarray(images, dtype)
    got = ops.grid_sample(array, grid, method=method)
    assert got.dtype == jnp.dtype(dtype)
    exact = np.asarray(array.astype(jnp.float32))
    check(got, in_torch(exact, grid, method, "zeros", False), dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_gradients_match_torch(method):
    images = pictures((6, 7, 2))[:3]
    grid = rng().uniform(-1.2, 1.2, (3, 12, 5, 2)).astype(np.float32)
    weight = rng().random((3, 12, 5, 2)).astype(np.float32)

    def loss(images, grid):
        return (ops.grid_sample(images, grid, method=method) * weight).sum()

    got = jax.jit(jax.grad(loss, (0, 1)))(images, grid)
    leaves = [torch.from_numpy(x.astype(np.float64)).requires_grad_() for x in (images, grid)]
    out = F.grid_sample(leaves[0].permute(0, 3, 1, 2), leaves[1], mode=method, align_corners=False)
    (out.permute(0, 2, 3, 1) * torch.from_numpy(weight)).sum().backward()
    for ours, leaf in zip(got, leaves, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(ours, leaf.grad.numpy(), atol=2e-4)


def matrices() -> np.ndarray:
    """Turned, scaled, sheared and moved, by numbers that float32 holds."""
    draw = rng()
    linear = np.eye(2) + draw.uniform(-0.6, 0.6, (CASES, 2, 2))
    out = np.concatenate([linear, draw.uniform(-4, 4, (CASES, 2, 1))], -1)
    return np.round(out * 64) / 64


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("border", BORDERS)
def test_warp_affine_matches_scikit_image(border, shape):
    if border == "reflect101" and 1 in shape[:2]:
        pytest.skip("scikit-image has nothing to mirror in one pixel")
    images, forward = pictures(shape), matrices()
    got = ops.warp_affine(images, forward, size=(7, 8), border=border, fill=0.25)
    want = [
        transform.warp(
            image.astype(np.float64),
            np.linalg.inv(np.vstack([matrix, [0, 0, 1]])),
            output_shape=(7, 8),
            order=1,
            mode=BORDERS[border],
            cval=0.25,
        )
        for image, matrix in zip(images, forward, strict=True)
    ]
    # The inverse magnifies the rounding of positions by up to 10.
    np.testing.assert_allclose(got, np.stack(want).reshape(got.shape), atol=10 * ATOL)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_warp_perspective_matches_scikit_image(dtype):
    images = pictures((9, 11, 2), dtype)
    array = jnp.asarray(images, dtype)
    exact = np.asarray(array.astype(jnp.float32)).astype(np.float64)
    bottom = np.concatenate(
        [rng().integers(-2, 3, (CASES, 1, 2)) / 128, np.ones((CASES, 1, 1))], -1
    )
    forward = np.concatenate([matrices(), bottom], 1)
    got = ops.warp_perspective(array, forward)
    want = [
        transform.warp(image, np.linalg.inv(matrix), order=1, mode="constant", preserve_range=True)
        for image, matrix in zip(exact, forward, strict=True)
    ]
    most = 1 if dtype in ("float32", "bfloat16") else np.iinfo(dtype).max
    off = np.abs(np.asarray(got, np.float64) - np.stack(want)) / most
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5 / most)
    # Near a horizon positions are quotients of small numbers.
    assert np.median(off) <= rounding + ATOL
    assert (off > rounding + 1e-3).mean() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("border", ["constant", "edge"])
def test_rotate_matches_scikit_image(border):
    images = pictures((9, 11, 2))
    degrees = rng().uniform(-400, 400, CASES).astype(np.float32)
    got = ops.rotate(images, degrees, border=border)
    want = [
        transform.rotate(image.astype(np.float64), float(angle), mode=border, clip=False)
        for image, angle in zip(images, degrees, strict=True)
    ]
    np.testing.assert_allclose(got, np.stack(want), atol=ATOL)


@pytest.mark.sample(2)
@pytest.mark.parametrize("turns", [-3, -1, 0, 1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "uint16"])
def test_quarter_turns_are_exact(turns, dtype):
    images = pictures((9, 9, 2), dtype)
    turned = np.rot90(images, turns, (1, 2))
    for method in ("nearest", "bilinear", "bicubic"):
        np.testing.assert_array_equal(ops.rotate(images, 90.0 * turns, method=method), turned)


MODES = ["reflect", "grid-mirror", "mirror", "constant", "grid-constant", "nearest", "grid-wrap"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", range(6))
def test_map_coordinates_matches_scipy(order, mode):
    images = pictures((9, 11, 1))[..., 0]
    # No halves, where order 0 jumps: SciPy mirrors before it rounds.
    places = (2 * np.round(rng().uniform(-9, 20, (CASES, 2, 5, 6)) * 256) + 1) / 512
    places = places.astype(np.float32)
    got = ops.map_coordinates(images, places, order=order, mode=mode, cval=0.3, axes=(1, 2))
    want = [
        ndimage.map_coordinates(image.astype(np.float64), at, order=order, mode=mode, cval=0.3)
        for image, at in zip(images, places.astype(np.float64), strict=True)
    ]
    np.testing.assert_allclose(got, np.stack(want), atol=ATOL)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "bfloat16"])
def test_map_coordinates_of_other_dtypes(dtype):
    array = jnp.asarray(pictures((9, 11, 1), dtype)[..., 0], dtype)
    places = np.round(rng().uniform(-2, 11, (CASES, 2, 5, 6)) * 256) / 256
    got = ops.map_coordinates(array, places, mode="mirror", axes=(1, 2))
    want = [
        ndimage.map_coordinates(image, at, mode="mirror")
        for image, at in zip(np.asarray(array, np.float64), places, strict=True)
    ]
    assert got.dtype == array.dtype
    # Cubic splines overshoot 1, where bfloat16 has half as many digits.
    check(got, np.stack(want), dtype) if dtype != "bfloat16" else np.testing.assert_allclose(
        got.astype(np.float64), np.stack(want), atol=2**-7
    )


def test_coefficients_of_one_pixel_and_without_prefilter():
    image = pictures((5, 1, 1))[0, ..., 0]
    places = rng().uniform(0, 4, (2, 3, 3)).astype(np.float32)
    for prefilter in (False, True):
        got = ops.map_coordinates(image, places, mode="mirror", prefilter=prefilter, axes=(0, 1))
        want = ndimage.map_coordinates(
            image.astype(np.float64), places.astype(np.float64), mode="mirror", prefilter=prefilter
        )
        np.testing.assert_allclose(got, want, atol=ATOL)


@pytest.mark.sample(1)
@pytest.mark.parametrize("order", [1, 3])
def test_the_blocks_of_tpus_match_scipy(order, monkeypatch):
    """21 rows in blocks of 8, the last of which overlaps."""
    monkeypatch.setattr(_sampler, "platform_dependent", lambda *x, **forms: forms["tpu"](*x))
    images = pictures((9, 11, 2))
    places = rng().uniform(-3, 13, (CASES, 2, 21, 5)).astype(np.float32)
    got = ops.map_coordinates(images, places, order=order, mode="mirror")
    want = [
        [
            ndimage.map_coordinates(plane, where, order=order, mode="mirror")
            for plane in np.moveaxis(image, -1, 0)
        ]
        for image, where in zip(images.astype(float), places.astype(float), strict=True)
    ]
    np.testing.assert_allclose(got, np.moveaxis(np.array(want), 1, -1), atol=ATOL)


@pytest.mark.slow
def test_derivatives_of_pictures_in_levels():
    """The angle's derivative is none of theirs, in either direction."""
    levels = pictures((21, 5, 1), "uint8")[0]
    turn = jax.jit(partial(ops.rotate, levels))
    _, slope = jax.jvp(turn, (30.0,), (1.0,))
    assert slope.dtype == jax.dtypes.float0
    assert jax.grad(lambda angle: turn(angle).astype(jnp.float32).sum())(30.0) == 0


@pytest.mark.slow  # 10 s of compiling
@pytest.mark.parametrize(("order", "dtype"), [(1, "float32"), (1, "uint8"), (5, "float32")])
def test_temporaries_on_a_tpu(order, dtype):
    """At most twice what is read, and what is written."""
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -e '.[aot]'")
    chip = jax.sharding.SingleDeviceSharding(load_topology("v5e:1x1").devices[0])
    images = jax.ShapeDtypeStruct((64, 224, 224, 3), dtype, sharding=chip)
    places = jax.ShapeDtypeStruct((64, 2, 224, 224), jnp.float32, sharding=chip)
    warp = jax.jit(partial(ops.map_coordinates, order=order))
    memory: Any = warp.lower(images, places).compile().memory_analysis()
    most = 2 * memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert memory.temp_size_in_bytes <= most


@pytest.mark.sample(5)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("method", "radius"), [("nearest", 0.5), ("bilinear", 1), ("bicubic", 2)])
def test_bad_pixels_stay_within_the_filter(method, radius, value):
    image = pictures((9, 11, 1))[0]
    image[4, 5] = value
    rows, columns = np.meshgrid(np.arange(0, 8.1, 0.25), np.arange(0, 10.1, 0.25), indexing="ij")
    got = np.asarray(ops.remap(image, rows, columns, method=method))[..., 0]
    reached = (np.abs(rows - 4) < radius) & (np.abs(columns - 5) < radius)
    if method == "bicubic":  # whose weights are zero at whole distances
        for place, centre in ((rows, 4), (columns, 5)):
            reached &= (place % 1 != 0) | (place == centre)
    elif method == "nearest":  # halves to the even pixel
        reached = (np.round(rows) == 4) & (np.round(columns) == 5)
    np.testing.assert_array_equal(np.isfinite(got), ~reached)


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("position", [np.nan, np.inf, -np.inf, 1e30])
def test_bad_positions(position, method):
    image = pictures((4, 4, 1))[0]
    place = np.full((1, 1), position, np.float32)
    read = partial(ops.remap, rows=place, columns=np.zeros((1, 1)), method=method)
    got = read(image, fill=0.5).item()
    assert np.isnan(got) if np.isnan(position) else got == 0.5
    levels = (image * 255).astype(np.uint8)
    assert read(levels, fill=7).item() == (0 if np.isnan(position) else 7)
    assert np.isnan(ops.warp_affine(image, np.zeros((2, 3)), method=method)).all()


def test_traced_parameters_compile_once():
    traces = []

    @jax.jit
    def run(images, degrees):
        traces.append(0)
        return ops.rotate(images, degrees)

    images = pictures((9, 11, 2))
    for angle in (1.0, 2.0, -77.0):
        run(images, angle)
    assert len(traces) == 1


IMAGE = np.zeros((2, 5, 6, 3), np.float32)
WORD: Any = "a"
LIST: Any = [[1.0]]
REAL: Any = 1.5
GRID = np.ones((2, 2, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.warp_affine, IMAGE, np.eye(3)), ValueError, r"the shape \(…, 2, 3\), got"),
        (partial(ops.warp_affine, IMAGE, "a"), TypeError, "matrix must hold numbers, got 'a'"),
        (partial(ops.warp_affine, IMAGE, np.ones((3, 2, 3))), ValueError, "no value for each"),
        (partial(ops.rotate, IMAGE, np.ones(3)), ValueError, r"degrees of shape \(3,\) has no"),
        (partial(ops.rotate, IMAGE, 1.0, method="area"), ValueError, "unknown method 'area'"),
        (partial(ops.rotate, IMAGE, 1.0, border="zeros"), ValueError, "unknown border 'zeros'"),
        (partial(ops.rotate, IMAGE, 1.0, fill=WORD), TypeError, "fill must be a Python number"),
        (partial(ops.rotate, IMAGE.astype(np.int32), 1.0), TypeError, "got int32; cast it"),
        (partial(ops.rotate, LIST, 1.0), TypeError, "got list"),
        (partial(ops.rotate, IMAGE[:, :0], 1.0), ValueError, "only a batch may be"),
        (partial(ops.remap, IMAGE, np.ones((2, 2)), np.ones((2, 3))), ValueError, "of one shape"),
        (partial(ops.grid_sample, IMAGE, np.ones((2, 2))), ValueError, "height, width, 2"),
        (partial(ops.grid_sample, IMAGE, GRID, padding_mode="wrap"), ValueError, "zeros"),
        (partial(ops.map_coordinates, IMAGE, np.ones((3, 2, 2))), ValueError, "2, height, width"),
        (partial(ops.map_coordinates, IMAGE, GRID, order=6), ValueError, "0 to 5"),
        (partial(ops.map_coordinates, IMAGE, GRID, order=REAL), TypeError, "integer"),
        (partial(ops.map_coordinates, IMAGE, GRID, mode="wrap"), ValueError, "grid-wrap"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
