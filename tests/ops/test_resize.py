"""Promises of `resize` in every convention: errors, NaN, batching, sharding, compilation."""

import itertools
import re
from collections.abc import Callable
from functools import cache, partial

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from PIL import Image

from jaxsr.ops import resize
from jaxsr.ops._resize.conventions import CONVENTIONS

# A method of every convention, by what its filter may read: the radius in input pixels when
# enlarging, which the scale stretches where the method antialiases.
RADIUS = {
    ("torch", "bilinear"): 1,
    ("torch", "bicubic"): 2,
    ("opencv", "bicubic"): 2,
    ("opencv", "lanczos"): 4,
    ("pillow", "bicubic"): 2,
    ("pillow", "lanczos"): 3,
    ("matlab", "bicubic"): 2,
}


def image(*shape: int, dtype: type = np.float32) -> np.ndarray:
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    return np.round(values * 255).astype(np.uint8) if dtype == np.uint8 else values.astype(dtype)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be 1 to"),
        ({"size": (4, -1)}, ValueError, "size must be 1 to"),
        ({"size": (4, 1 << 31)}, ValueError, "size must be 1 to"),
        ({"size": (1, 2, 3)}, ValueError, "one value for each of 2 axes"),
        ({"size": 4.5}, TypeError, "size must hold integers, got 4.5"),
        ({"size": True}, TypeError, "size must hold integers"),
        ({"size": 4, "method": "lanczos5"}, ValueError, "unknown method of the torch convention"),
        ({"size": 4, "convention": "scipy"}, ValueError, "unknown convention 'scipy'"),
        ({"size": 4, "method": "hamming"}, ValueError, "choose one of nearest"),
        ({"size": 4, "axes": (0, 0)}, ValueError, "different axes"),
        ({"size": 4, "axes": (0, 7)}, ValueError, "axes=7 is outside"),
        ({"size": 4, "axes": ()}, ValueError, "at least one"),
        ({"size": 4, "scale": 0.0}, ValueError, "scale must be a finite number above 0"),
        ({"size": 4, "scale": float("nan")}, ValueError, "scale must be a finite number above 0"),
        ({"size": 4, "scale": 2, "convention": "pillow"}, ValueError, "scale has no meaning"),
        ({"size": 4, "antialias": True, "method": "area"}, ValueError, "antialias=True needs"),
        ({"size": 4, "antialias": False, "method": "lanczos"}, ValueError, "needs antialias=True"),
        ({"size": 4, "antialias": True, "convention": "opencv"}, ValueError, "never does"),
        ({"size": 4, "antialias": False, "convention": "pillow"}, ValueError, "always does"),
        ({"size": 4, "align_corners": True, "method": "area"}, ValueError, "align_corners=True"),
        ({"size": 4, "align_corners": True, "convention": "opencv"}, ValueError, "torch"),
        ({"size": 4, "convention": "matlab", "matlab_edges": "wrap"}, ValueError, "clamp, mirror"),
        ({"size": 4, "matlab_edges": "clamp"}, ValueError, "in the matlab convention only"),
        ({"size": 4, "antialias": "yes"}, TypeError, "antialias must be True or False, got 'yes'"),
        ({"size": 4, "align_corners": 1}, TypeError, "align_corners must be True or False, got 1"),
        ({"size": 4, "axes": 1}, TypeError, "axes must be a sequence of axes, height first, got 1"),
        ({"size": 4, "axes": None}, TypeError, "axes must be a sequence of axes.*got None"),
        ({"size": 4, "scale": "a"}, TypeError, "scale must be a Python number, got 'a'"),
        ({"size": 4, "alpha": -1}, ValueError, "in the pillow convention only"),
        ({"size": 4, "alpha": 3, "convention": "pillow"}, ValueError, "alpha=3 is outside"),
        ({"size": 4, "alpha": 0, "convention": "pillow", "axes": (0, 1)}, ValueError, "NHWC or"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments_are_named_at_trace_time(arguments, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(partial(resize, **arguments), jnp.zeros((2, 8, 8, 3)))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (np.zeros((8, 8, 3), bool), TypeError),
        (np.zeros((8, 8, 3), np.complex64), TypeError),
        (np.zeros((8, 8, 3), np.int32), TypeError),
        ([[1.0, 2.0]], TypeError),
        (np.zeros((0, 8, 3), np.float32), ValueError),
        (np.zeros((8, 8, 0), np.float32), ValueError),
        (np.zeros((8, 8), np.float32), ValueError),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_images_are_refused(bad, error):
    with pytest.raises(error, match=r"image|axes"):
        resize(bad, 4, axes=(-3, -2))


@pytest.mark.sample(10)
@pytest.mark.parametrize("size", [(9, 40), (31, 11), (20, 20), (40, 60)])
@pytest.mark.parametrize(("convention", "method"), RADIUS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_pixel_stays_within_the_filter(convention, method, size, value):
    picture = image(20, 24, 2)
    spoilt = picture.copy()
    spoilt[7, 15, 0] = value
    call = _compiled(convention, method, size)
    clean, got = np.asarray(call(picture)), np.asarray(call(spoilt))
    assert np.isfinite(clean).all()
    np.testing.assert_array_equal(got[..., 1], clean[..., 1])
    reach = []
    for extent, outputs, pixel in zip((20, 24), size, (7, 15), strict=True):
        step = extent / outputs
        stretch = max(step, 1) if convention in ("pillow", "matlab") else 1
        centre = (np.arange(outputs) + 0.5) * step - 0.5
        reach.append(np.abs(centre - pixel) < RADIUS[convention, method] * stretch + 1e-3)
    covered = np.logical_and.outer(*reach)
    np.testing.assert_array_equal(got[..., 0][~covered], clean[..., 0][~covered])
    if covered.any() and convention in ("pillow", "matlab"):
        assert not np.isfinite(got[..., 0][covered]).all()


BY_PILLOW = {"box": Image.Resampling.BOX, "bicubic": Image.Resampling.BICUBIC}
BY_OPENCV = {"area": cv2.INTER_AREA, "bicubic": cv2.INTER_CUBIC, "bilinear": cv2.INTER_LINEAR}


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [(5, 7), (13, 34), (26, 40)])
@pytest.mark.parametrize(
    ("convention", "method"),
    [*(("pillow", method) for method in BY_PILLOW), *(("opencv", method) for method in BY_OPENCV)],
)
def test_infinities_are_those_of_the_library(convention, method, size):
    """Which multiplies by weights of zero, too, and makes NaN of an infinity there."""
    call = jax.jit(partial(resize, size=size, method=method, convention=convention, axes=(0, 1)))
    places = [(0, 0), (5, 8), (12, 16), (3, 0)]
    for value, place in itertools.product([np.inf, -np.inf, np.nan], places):
        picture = image(13, 17)
        picture[place] = value
        got = np.asarray(call(picture))
        if convention == "pillow":
            expected = np.asarray(Image.fromarray(picture).resize(size[::-1], BY_PILLOW[method]))
        else:
            expected = cv2.resize(picture, size[::-1], interpolation=BY_OPENCV[method])
        defined = ~np.isnan(expected)
        assert defined.any()
        np.testing.assert_allclose(got[defined], expected[defined], rtol=0, atol=2e-5)


@cache
def _compiled(convention: str, method: str, size: tuple[int, int]) -> Callable:
    return jax.jit(partial(resize, size=size, method=method, convention=convention))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16, np.uint8])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_layouts_batches_and_vmap_agree(convention, dtype):
    channels_last = image(2, 3, 21, 18, 3, dtype=dtype)
    call = partial(resize, size=(14, 30), method="bicubic", convention=convention)
    want = np.asarray(call(channels_last))
    assert want.dtype == dtype
    assert want.shape == (2, 3, 14, 30, 3)
    np.testing.assert_array_equal(jax.vmap(call)(jnp.asarray(channels_last)), want)
    channels_first = call(np.moveaxis(channels_last, -1, -3), axes=(-2, -1))
    channels_first = np.moveaxis(np.asarray(channels_first), -3, -1)
    if dtype != np.float32 or jax.__version_info__ < (0, 12):
        np.testing.assert_array_equal(channels_first, want)
        return
    # Which products LLVM contracts with their sum is up to the layout (from jaxlib 0.12 on), so
    # float64 judges: four taps in each of two passes, whose absolute weights sum to 1.4 at most,
    # round 5 · 1.4² times half a unit of values below 1, each.
    with jax.enable_x64(True):
        exact = np.asarray(call(channels_last.astype(np.float64)))
    for layout in (channels_first, want):
        np.testing.assert_allclose(layout, exact, rtol=0, atol=2 * 5 * 1.4**2 * 2**-25)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_same_size_is_the_same_image(convention):
    picture = image(9, 12, 3, dtype=np.uint8)
    for method in ("nearest", "bilinear", "bicubic"):
        got = resize(picture, (9, 12), method=method, convention=convention)
        np.testing.assert_array_equal(got, picture)


def test_float64_keeps_its_precision():
    with jax.enable_x64(True):
        picture = np.random.default_rng(0).random((30, 40, 1))
        got = resize(picture, (15, 20), method="bicubic", convention="matlab")
        assert got.dtype == np.float64
        dense = resize(np.eye(30)[..., None], (15, 30), method="bicubic", convention="matlab")
        other = resize(np.eye(40)[..., None], (20, 40), method="bicubic", convention="matlab")
        want = np.asarray(dense[..., 0]) @ picture[..., 0] @ np.asarray(other[..., 0]).T
        np.testing.assert_allclose(got[..., 0], want, atol=1e-14)


def test_matlab_uint8_leaves_the_callers_precision_alone():
    picture = image(16, 16, 3, dtype=np.uint8)
    resize(picture, 8, method="bicubic", convention="matlab")
    assert jnp.zeros(1).dtype == np.float32
    assert not jax.config.jax_enable_x64


COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "shape_and_spec", [("batch", P("d")), ("channels", P(None, None, None, "d"))]
)
@pytest.mark.parametrize(
    ("size", "method", "antialias"),
    [
        ((32, 32), "bicubic", True),  # phases
        ((45, 51), "bilinear", False),  # gathers
        ((128, 128), "bicubic", False),
        ((2, 3), "bicubic", True),  # a loop
        ((23, 23), "nearest", False),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_sharded_images_stay_sharded(shape_and_spec, size, method, antialias, dtype):
    mesh = Mesh(np.array(jax.devices()[:8]), ("d",))
    sharding = NamedSharding(mesh, shape_and_spec[1])
    picture = image(8, 64, 64, 8, dtype=dtype)
    call = jax.jit(partial(resize, size=size, method=method, antialias=antialias))
    placed = jax.device_put(picture, sharding)
    program = call.lower(placed).compile()
    assert not COLLECTIVE.findall(program.as_text() or "")
    got = program(placed)
    assert got.sharding.is_equivalent_to(sharding, 4)
    # Shards differ in extent, and with it in which products XLA contracts into the sums.
    # Bicubic values reach beyond 1, where a step of float32 is 1.2e-7.
    atol = 2.4e-7 if dtype == np.float32 else 0
    np.testing.assert_allclose(got, call(jnp.asarray(picture)), atol=atol, rtol=0)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("shape", "size", "method", "antialias"),
    [
        ((1, 540, 960, 3), (270, 480), "bicubic", True),
        ((4, 96, 96, 3), (384, 384), "bicubic", False),
        ((1, 540, 960, 3), (320, 569), "bicubic", True),
        ((1, 1000, 1000, 3), (60, 60), "bicubic", True),
    ],
)
def test_memory_is_one_intermediate(shape, size, method, antialias):
    call = jax.jit(partial(resize, size=size, method=method, antialias=antialias))
    memory = call.lower(jax.ShapeDtypeStruct(shape, np.float32)).compile().memory_analysis()
    assert memory is not None
    n, h, w, c = shape
    one_pass = 4 * n * c * max(size[0] * w, h * size[1])
    output = 4 * n * c * size[0] * size[1]
    # XLA:CPU writes the strips at the two ends of an axis before it joins them to the rest.
    assert memory.temp_size_in_bytes <= one_pass + 1.05 * output


EXTENTS = (1, 3, 8)
METHODS = {
    "torch": ("nearest", "nearest-exact", "bilinear", "bicubic", "area", "lanczos"),
    "opencv": ("nearest", "bilinear", "bicubic", "lanczos", "area"),
    "pillow": ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"),
    "matlab": ("nearest", "box", "bilinear", "bicubic", "lanczos2", "lanczos"),
}


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([(c, m) for c in CONVENTIONS for m in METHODS[c]]),
    st.sampled_from(EXTENTS),
    st.sampled_from(EXTENTS),
    st.sampled_from([np.float32, np.uint8]),
    st.integers(0, 2**32 - 1),
)
def test_property_constant_images_stay_and_flips_commute(rule, before, after, dtype, seed):
    """One column of pixels, so that few shapes are compiled and many images drawn."""
    convention, method = rule
    call = _line(convention, method, after)
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 256)
    flat = np.full((before, 1, 1), level / 255 if dtype == np.float32 else level, dtype)
    got = np.asarray(call(flat))
    assert got.shape == (after, 1, 1) and got.dtype == dtype
    # Weights sum to 1 within rounding; fixed point leaves the level itself.
    np.testing.assert_allclose(
        got, flat[:1].repeat(after, 0), atol=1e-6 if got.dtype == np.float32 else 0
    )
    values = rng.random((before, 1, 1), dtype=np.float32)
    line = values if dtype == np.float32 else np.round(values * 255).astype(np.uint8)
    got = np.asarray(call(line)).astype(np.float64)
    # Nearest and box give a pixel halfway between two outputs to one of them, and OpenCV's
    # enlarging 'area' counts from the left.
    one_sided = method in ("nearest", "nearest-exact", "box") or (
        method == "area" and after > before
    )
    if not one_sided:
        mirrored = np.asarray(call(line[::-1].copy()))[::-1].astype(np.float64)
        # Fixed-point weights are rounded one by one, and ties always upwards: one level.
        np.testing.assert_allclose(got, mirrored, atol=2e-6 if dtype == np.float32 else 1)
    spread = line.max().astype(np.float64) - line.min()
    over = 0.0 if method in ("nearest", "nearest-exact", "area", "box", "bilinear") else 0.6
    slack = 2e-6 if dtype == np.float32 else 1
    assert got.min() >= line.min() - over * spread - slack
    assert got.max() <= line.max() + over * spread + slack


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([(c, m) for c in CONVENTIONS for m in METHODS[c]]),
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from(["float32", "uint8"]),
    st.booleans(),
)
def test_property_tables_stay_inside_and_sum_to_one(rule, extent, outputs, dtype, option):
    """The tables behind every kernel, at hundreds of extents that need no compiling."""
    convention, method = rule
    options = {}
    if convention == "torch":
        antialias = method == "lanczos" or (option and method in ("bilinear", "bicubic"))
        options = {"antialias": antialias, "align_corners": False, "scale": (None,)}
    elif convention == "matlab":
        options = {
            "antialias": option,
            "matlab_edges": "mirror" if option else "clamp",
            "scale": (None,),
        }
    passes = CONVENTIONS[convention].passes(
        (extent,), np.dtype(dtype), (0,), (outputs,), method=method, **options
    )
    if extent == outputs and not passes:
        return
    (step,) = passes
    taps = step.taps
    assert taps.index.shape == taps.weight.shape
    assert taps.outputs == outputs
    assert taps.index.min() >= 0 and taps.index.max() < extent
    total = taps.weight.sum(axis=1)
    if np.issubdtype(taps.weight.dtype, np.floating):
        # torch's float32 cubic does not renormalise; OpenCV's 'area' drops slivers below 1/1000
        # pixel without doing so.
        atol = 1.1e-3 if rule == ("opencv", "area") else 1e-5
        np.testing.assert_allclose(total, 1, atol=atol)
    else:
        # Weights rounded one by one to a fraction of 2**-bits.
        np.testing.assert_allclose(total, total[0], atol=taps.index.shape[1] + 1)


@cache
def _line(convention: str, method: str, after: int) -> Callable:
    return jax.jit(lambda x: resize(x, after, method=method, convention=convention, axes=(-3,)))


@pytest.mark.sample(6)
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["linear", "cubic", "lanczos3"])
def test_names_of_jax(name, convention):
    if (name, convention) == ("lanczos3", "opencv"):
        pytest.skip("OpenCV's has 4 lobes")
    picture, method = (
        image(9, 7, 2),
        {"linear": "bilinear", "cubic": "bicubic"}.get(name, "lanczos"),
    )
    got, want = (resize(picture, 5, method=m, convention=convention) for m in (name, method))
    np.testing.assert_array_equal(got, want)
