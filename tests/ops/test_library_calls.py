"""Functions that programs for CPUs leave to the library whose convention they follow."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from PIL import Image, ImageOps
from scipy import ndimage

from jaxsr import ops
from jaxsr.interop.aot.topology import load_topology
from jaxsr.interop.aot.traffic import main_memory_bytes
from jaxsr.ops import _opencv, _pillow, _torch
from jaxsr.ops._row_primitives import CALLS
from jaxsr.ops._traced_window import correlate
from jaxsr.xla_calls.calls import SWITCH

LOW, HIGH = np.linspace(20, 60, 8, dtype=np.float32), np.linspace(150, 90, 8, dtype=np.float32)
EIGHT = ndimage.generate_binary_structure(2, 2)
label: Any = ndimage.label


def distance(mask: np.ndarray) -> np.ndarray:
    """SciPy's, in float32; it has no rule for a mask that is set everywhere."""
    if mask.all():
        return np.full(mask.shape, np.inf, np.float32)
    return np.asarray(ndimage.distance_transform_edt(mask), np.float32)


def by_plane(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A library's function of planes, of (n, h, w, c)."""

    def run(images: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        planes = [
            np.stack(
                [
                    np.asarray(function(np.ascontiguousarray(image[..., c]), *values))
                    for c in range(image.shape[-1])
                ],
                -1,
            )
            for image, *values in zip(images, *(p.tolist() for p in parameters), strict=True)
        ]
        return np.stack(planes)

    return run


def by_opencv(name: str, size: int, plane: np.ndarray) -> np.ndarray:
    if name == "median_filter":
        return cv2.medianBlur(plane, size)
    window = np.ones((size, size), np.uint8)
    compounds = {
        "opening": cv2.MORPH_OPEN,
        "closing": cv2.MORPH_CLOSE,
        "morphological_gradient": cv2.MORPH_GRADIENT,
    }
    if name in compounds:
        return cv2.morphologyEx(plane, compounds[name], window)
    return getattr(cv2, name)(plane, window)


def separable(
    images: np.ndarray,
    down: np.ndarray,
    across: np.ndarray,
    border: int = cv2.BORDER_REFLECT_101,
) -> np.ndarray:
    return np.stack([cv2.sepFilter2D(x, -1, across, down, borderType=border) for x in images])


def by_pillow(images: np.ndarray, qualities: np.ndarray) -> np.ndarray:
    def kept(image: np.ndarray, quality: int) -> np.ndarray:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling="4:2:2")
        return np.asarray(Image.open(file))

    return np.stack([*map(kept, images, qualities.tolist())])


FIELDS = np.random.default_rng(1).uniform(-9, 60, (2, 8, 20, 30)).astype(np.float32)
MATRICES = np.array([[[0.5, 0, shift], [0, 2, -1.25]] for shift in range(8)], np.float32)
"""Powers of two, whose inverses are exact."""


def warp_by_opencv(images: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    size = images.shape[2], images.shape[1]
    warped = [cv2.warpAffine(x, m, size) for x, m in zip(images, matrices, strict=True)]
    return np.stack(warped).reshape(images.shape)


def remap_by_opencv(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    fields = zip(images, columns, rows, strict=True)
    return np.stack([cv2.remap(*each, cv2.INTER_LINEAR, None, cv2.BORDER_WRAP) for each in fields])


class Case(NamedTuple):
    ours: Callable[..., jax.Array]
    theirs: Callable[..., np.ndarray]
    target: str
    parameters: tuple[np.ndarray, ...] = ()
    """One value for each picture."""


SEGMENTS = np.random.default_rng(2).uniform(-0.2, 1, (8, 3, 5)).clip(0).astype(np.float32)
"""Windows, some of whose weights are 0."""


def correlated_by_opencv(images: np.ndarray, windows: np.ndarray) -> np.ndarray:
    pairs = zip(images * np.float32(1 / 256), windows, strict=True)
    return np.stack([cv2.filter2D(x, -1, w, borderType=cv2.BORDER_REFLECT) for x, w in pairs])


def demosaic_by_opencv(images: np.ndarray) -> np.ndarray:
    """Demosaics the green plane; OpenCV repeats its inner pixels at the edge."""
    reflected = np.pad(images[..., 1], ((0, 0), (2, 2), (2, 2)), mode="reflect")
    return np.stack([cv2.demosaicing(x, cv2.COLOR_BayerGRBG2RGB) for x in reflected])[:, 2:-2, 2:-2]


OPENCV = {"convention": "opencv"}
CASES = {
    "canny": Case(
        ops.canny,
        by_plane(lambda plane, low, high: cv2.Canny(plane, low, high) > 0),
        "jaxsr_opencv_canny",
        (LOW, HIGH),
    ),
    "clahe": Case(
        partial(ops.clahe, tiles=(3, 4)),
        by_plane(lambda plane, limit: cv2.createCLAHE(limit, (4, 3)).apply(plane)),
        "jaxsr_opencv_clahe",
        (np.array([0, 0.5, 1, 2, 2.3, 4, 10, 40], np.float32),),
    ),
    "clahe of uint16": Case(
        lambda x, limit: ops.clahe(x.astype(jnp.uint16) * 257, limit, tiles=(3, 4)),
        by_plane(lambda plane, limit: cv2.createCLAHE(limit, (4, 3)).apply(plane * np.uint16(257))),
        "jaxsr_opencv_clahe",
        (np.array([0, 0.5, 1, 2, 3, 4, 10, 40], np.float32),),
    ),
    "bilateral_filter": Case(
        partial(ops.bilateral_filter, size=5),
        lambda images, *sigmas: np.stack(
            [
                cv2.bilateralFilter(image, 5, color, space)
                for image, color, space in zip(images, *(s.tolist() for s in sigmas), strict=True)
            ]
        ),
        "jaxsr_opencv_bilateral",
        (np.linspace(10, 80, 8, dtype=np.float32), np.linspace(0.5, 4, 8, dtype=np.float32)),
    ),
    "bilateral_filter of planes": Case(
        partial(ops.bilateral_filter, size=7, channel=None),
        by_plane(lambda plane, *sigmas: cv2.bilateralFilter(plane, 7, *sigmas)),
        "jaxsr_opencv_bilateral",
        (np.full(8, 30, np.float32), np.full(8, 2, np.float32)),
    ),
    "distance_transform": Case(
        lambda x: ops.distance_transform(x > 40),
        by_plane(lambda plane: distance(plane > 40)),
        "jaxsr_opencv_distance",
    ),
    "connected_components": Case(
        lambda x: ops.connected_components(x > 128, connectivity=8).labels,
        by_plane(lambda plane: label(plane > 128, EIGHT)[0]),
        "jaxsr_opencv_label",
    ),
    "equalize": Case(
        ops.equalize,
        by_plane(lambda plane: np.asarray(ImageOps.equalize(Image.fromarray(plane)))),
        "jaxsr_opencv_look_up",
    ),
    "autocontrast": Case(
        ops.autocontrast,
        by_plane(lambda plane: np.asarray(ImageOps.autocontrast(Image.fromarray(plane)))),
        "jaxsr_opencv_look_up",
    ),
    "autocontrast of shares": Case(
        partial(ops.autocontrast, cutoff=(2, 5)),
        by_plane(lambda plane: np.asarray(ImageOps.autocontrast(Image.fromarray(plane), (2, 5)))),
        "jaxsr_opencv_limits",
    ),
    "resize of torch": Case(
        partial(ops.resize, size=(71, 90), method="bicubic", antialias=True),
        lambda images: (
            F.interpolate(
                torch.from_numpy(images).permute(0, 3, 1, 2),
                (71, 90),
                mode="bicubic",
                antialias=True,
            )
            .permute(0, 2, 3, 1)
            .numpy()
        ),
        "jaxsr_torch_resize",
    ),
    "warp_affine": Case(ops.warp_affine, warp_by_opencv, "jaxsr_opencv_warp_affine", (MATRICES,)),
    "remap": Case(
        partial(ops.remap, border="wrap"), remap_by_opencv, "jaxsr_opencv_remap", tuple(FIELDS)
    ),
    "remap of floats": Case(
        lambda x, *fields: ops.remap(x * np.float32(1 / 256), *fields, border="wrap"),
        lambda x, *fields: remap_by_opencv(x * np.float32(1 / 256), *fields),
        "jaxsr_opencv_remap",
        tuple(FIELDS),
    ),
    "gaussian_blur": Case(
        partial(ops.gaussian_blur, sigma=(0.7, 1.3), convention="opencv", border="constant"),
        lambda images: np.stack(
            [
                cv2.GaussianBlur(image, (0, 0), 1.3, sigmaY=0.7, borderType=cv2.BORDER_CONSTANT)
                for image in images
            ]
        ),
        "jaxsr_opencv_gaussian",
    ),
    "gaussian_blur of floats": Case(
        lambda x: ops.gaussian_blur(x * np.float32(1 / 256), sigma=(0.7, 1.3), kernel_size=(3, 7)),
        lambda images: separable(
            images * np.float32(1 / 256),
            cv2.getGaussianKernel(3, 0.7, cv2.CV_32F),
            cv2.getGaussianKernel(7, 1.3, cv2.CV_32F),
        ),
        "jaxsr_opencv_separable",
    ),
    "box_filter of floats": Case(
        lambda x: ops.box_filter(x * np.float32(1 / 256), (3, 5), border="edge"),
        lambda images: separable(
            images * np.float32(1 / 256),
            np.full(3, 1 / 3, np.float32),
            np.full(5, 1 / 5, np.float32),
            cv2.BORDER_REPLICATE,
        ),
        "jaxsr_opencv_separable",
    ),
    "box_filter": Case(
        partial(ops.box_filter, size=(3, 5), border="edge"),
        by_plane(lambda plane: cv2.blur(plane, (5, 3), borderType=cv2.BORDER_REPLICATE)),
        "jaxsr_opencv_mean",
    ),
    "demosaic": Case(
        lambda x: ops.demosaic(x[..., 1:2], pattern="GRBG", method="bilinear"),
        demosaic_by_opencv,
        "jaxsr_opencv_demosaic",
    ),
    "demosaic of uint16": Case(
        lambda x: ops.demosaic(
            x[..., 1:2].astype(jnp.uint16) * 251, pattern="GRBG", method="bilinear"
        ),
        lambda images: demosaic_by_opencv(images * np.uint16(251)),
        "jaxsr_opencv_demosaic",
    ),
    "a window for each image": Case(
        lambda x, window: correlate(x * np.float32(1 / 256), window, (-3, -2), "symmetric"),
        correlated_by_opencv,
        "jaxsr_opencv_correlate",
        (SEGMENTS,),
    ),
    "laplacian": Case(
        partial(ops.laplacian, border="edge"),
        by_plane(lambda plane: cv2.Laplacian(plane, cv2.CV_32F, borderType=cv2.BORDER_REPLICATE)),
        "jaxsr_opencv_laplacian",
    ),
    "jpeg": Case(
        partial(ops.jpeg, subsampling="4:2:2"),
        by_pillow,
        "jaxsr_pillow_jpeg",
        (np.array([1, 10, 30, 50, 60, 75, 95, 100]),),
    ),
    "gaussian_blur of uint16": Case(
        lambda x: ops.gaussian_blur(
            x.astype(jnp.uint16) * 251, kernel_size=(3, 7), convention="opencv"
        ),
        by_plane(lambda plane: cv2.GaussianBlur(plane * np.uint16(251), (7, 3), 0)),
        "jaxsr_opencv_gaussian",
    ),
    **{
        f"{name} {size}": Case(
            partial(getattr(ops, name), size=size),
            by_plane(partial(by_opencv, name, size)),
            "jaxsr_opencv_window",
        )
        for name, size in (
            *(("median_filter", 3), ("median_filter", 7), ("dilate", 3), ("erode", 5)),
            *(("opening", 3), ("closing", 3), ("morphological_gradient", 3)),
        )
    },
    **{
        f"{name} of floats": Case(
            lambda x, name=name: getattr(ops, name)(x * np.float32(1 / 256), size=3),
            lambda images, name=name: by_plane(partial(by_opencv, name, 3))(
                images * np.float32(1 / 256)
            ),
            "jaxsr_opencv_window",
        )
        for name in ("median_filter", "dilate", "opening", "morphological_gradient")
    },
    **{
        name: Case(
            partial(getattr(ops, name), **options),
            lambda images, code=code: np.stack([cv2.cvtColor(image, code) for image in images]),
            "jaxsr_opencv_colours",
        )
        for name, code, options in (
            ("rgb_to_hsv", cv2.COLOR_RGB2HSV, OPENCV),
            ("rgb_to_hls", cv2.COLOR_RGB2HLS, OPENCV),
            ("hsv_to_rgb", cv2.COLOR_HSV2RGB, OPENCV),
            ("hls_to_rgb", cv2.COLOR_HLS2RGB, OPENCV),
            ("rgb_to_yuv", cv2.COLOR_RGB2YUV, {}),
            ("yuv_to_rgb", cv2.COLOR_YUV2RGB, {}),
        )
    },
}


def pictures(name: str, size: tuple[int, int] = (37, 52)) -> np.ndarray:
    noise = np.random.default_rng(0).random((8, *size, 3))
    levels = ndimage.gaussian_filter(noise, (0, 1.5, 1.5, 0)) * 900 - 330
    images = levels.clip(0, 255).astype(np.uint8)
    if name in ("hsv_to_rgb", "hls_to_rgb"):
        images[..., 0] %= 180
    return images


def test_every_call_has_a_case():
    kernels = {kernel for of_library in CALLS.values() for kernel in of_library.values()}
    otherwise = {"jaxsr_opencv_histogram"}  # within `equalize`
    otherwise |= {"jaxsr_scipy_label", "jaxsr_scipy_distance"}  # without OpenCV; long sides
    otherwise |= {"jaxsr_opencv_crop", "jaxsr_opencv_crop_masks"}  # in `test_mask_crop.py`
    otherwise |= {"jaxsr_opencv_cut"}  # in `test_boxes.py`
    assert kernels - otherwise <= {case.target for case in CASES.values()}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_equal_under_jit_vmap_and_a_mesh(name):
    case, images = CASES[name], pictures(name)
    expected = case.theirs(images, *case.parameters)
    arrays = (images, *case.parameters)
    np.testing.assert_array_equal(jax.jit(case.ours)(*arrays), expected)
    mapped = jax.jit(jax.vmap(case.ours))
    np.testing.assert_array_equal(mapped(*arrays), expected)
    assert mapped.lower(*arrays).as_text().count(f"@{case.target}") == 1

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(arrays, NamedSharding(mesh, P("data")))
    compiled = jax.jit(case.ours).lower(*placed).compile()
    assert "all-gather" not in (compiled.as_text() or "")
    np.testing.assert_array_equal(compiled(*placed), expected)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (200, 310)])
def test_other_sizes(name, size):
    case, images = CASES[name], pictures(name, size)
    np.testing.assert_array_equal(
        case.ours(images, *case.parameters), case.theirs(images, *case.parameters)
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_pictures_in_several_threads(name, monkeypatch):
    for limit in ("_LEAST_CALL_S", "_LEAST_SHARED_S"):
        monkeypatch.setattr(_opencv, limit, 0.0)
    case, images = CASES[name], pictures(name, (150, 170))
    expected = case.theirs(images, *case.parameters)
    for _ in range(3):
        np.testing.assert_array_equal(case.ours(images, *case.parameters), expected)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", CASES)
def test_where_the_library_is_not_called(name, monkeypatch):
    case, images = CASES[name], pictures(name)

    def calls(platform: str = "cpu") -> bool:
        fresh = lambda *arrays: case.ours(*arrays)  # noqa: E731, PLW0108  # traced anew
        traced = jax.jit(fresh).trace(images, *case.parameters)
        return case.target in traced.lower(lowering_platforms=(platform,)).as_text()

    assert calls()
    assert not calls("tpu")
    if "opencv" in case.target:
        monkeypatch.setattr(_opencv, "opencv", lambda: None)
        assert not calls()
        monkeypatch.undo()
    if "pillow" in case.target:
        monkeypatch.setattr(_pillow, "pillow", lambda: None)
        assert not calls()
        monkeypatch.undo()
    if "torch" in case.target:
        monkeypatch.setattr(_torch, "torch_of_avx2", lambda: None)
        assert not calls()
        monkeypatch.undo()
    monkeypatch.setenv(SWITCH, "xla")
    assert not calls()


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("equalize", 2),
        pytest.param("autocontrast", 2, marks=pytest.mark.slow),
        pytest.param("median_filter 3", 2, marks=pytest.mark.slow),
        pytest.param("canny", 16, marks=pytest.mark.slow),
    ],
)
def test_planes_cost_a_tpu_nothing(name, times):
    """Pictures are taken apart into planes without a transpose, or bytes beside the work's own."""
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -e '.[aot]'")
    chip = jax.sharding.SingleDeviceSharding(load_topology("v5e:1x1").devices[0])
    case, shape = CASES[name], (8, 64, 128, 3)
    arrays = (np.zeros(shape, np.uint8), *case.parameters)
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=chip) for x in arrays]
    text = jax.jit(case.ours).lower(*structs).compile().as_text() or ""
    assert " transpose(" not in text
    assert main_memory_bytes(text) < times * 2 * np.prod(shape)


WINDOWS: dict[str, Callable[..., jax.Array]] = {
    "dilate": partial(ops.dilate, size=3),
    "median_filter": partial(ops.median_filter, size=3),
    "opening": partial(ops.opening, size=(3, 5)),
    "morphological_gradient": partial(ops.morphological_gradient, size=3),
    "box_filter": partial(ops.box_filter, size=(3, 5)),
    "gaussian_blur": partial(ops.gaussian_blur, sigma=0.8, kernel_size=5),
    "motion_blur": partial(ops.motion_blur, length=4, degrees=30),
    "crop_and_resize": partial(ops.crop_and_resize, boxes=(1.3, 0.2, 18.7, 14.1), size=(17, 21)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", WINDOWS)
def test_floats_that_are_not_finite_and_derivatives_are_those_of_xla(name, monkeypatch):
    function = WINDOWS[name]
    finite = np.random.default_rng(0).normal(size=(2, 17, 21, 3)).astype(np.float32)
    images, upstream = finite.copy(), finite[::-1]
    images[0, 3, 4, 0], images[0, 9, 15, 1] = np.nan, np.inf
    images[1, 8, 8], images[1, 0, 0, 2] = -np.inf, np.nan

    def results() -> tuple[jax.Array, jax.Array, jax.Array]:
        fresh = jax.jit(lambda x: function(x))  # noqa: PLW0108  # traced anew
        slope = jax.grad(lambda x: (fresh(x) * upstream).sum())
        change = jax.jvp(fresh, (finite,), (upstream,))[1]
        return fresh(images), slope(finite), change

    calls = results()
    jax.clear_caches()
    monkeypatch.setenv(SWITCH, "xla")
    # Positions of cuts are float32 numbers near 20.
    atol = 1e-5 if name == "crop_and_resize" else 1e-6
    for got, want in zip(calls, results(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=atol)
    jax.clear_caches()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "function"),
    [("dilate", "dilation"), ("erode", "erosion"), ("opening", "opening"), ("closing", "closing")],
)
def test_windows_of_infinities_alone(name, function, value):
    image = np.full((9, 11, 1), value, np.float32)
    image[0, 0] = 1
    want = getattr(ndimage, f"grey_{function}")(image, (3, 5, 1), mode="reflect")
    assert np.isinf(want).any()
    np.testing.assert_array_equal(getattr(ops, name)(image, (3, 5)), want)
