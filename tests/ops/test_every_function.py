"""Rules for every image function: jit, vmap, meshes, layouts, dtypes, empty batches."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxsr import ops

FLOATS, LEVELS, ALL = (
    ("float32", "bfloat16"),
    ("uint8",),
    ("float32", "bfloat16", "uint8", "uint16"),
)
TWO = ("float32", "uint8")
"""For functions of single pixels, whose own tests have every dtype."""
SOME = ("float32", "uint16")
"""For functions that end in the sampler which others test in all dtypes."""
CAMERA = np.array([[9, 0, 4], [0, 9, 3], [0, 0, 1]], np.float32)
CORNERS = np.array([[0, 0], [8, 0], [8, 6], [0, 6]], np.float32)
NOISE = np.random.default_rng(2).uniform(-2, 2, (2, 7, 9)).astype(np.float32)
TURN = np.array([[0.8, 0.3, 1.0], [-0.3, 0.9, 0.5]], np.float32)
PLACES = np.linspace(-1, 9, 84, dtype=np.float32).reshape(2, 6, 7)

Function = tuple[Callable[..., jax.Array], tuple[str, ...]]
FUNCTIONS: dict[str, Function] = {
    "adjust_brightness": (partial(ops.adjust_brightness, factor=1.3), ALL),
    "adjust_gamma": (partial(ops.adjust_gamma, gamma=0.7), ALL),
    "adjust_sharpness": (partial(ops.adjust_sharpness, factor=1.7), ALL),
    "autocontrast": (ops.autocontrast, ALL),
    "box_filter": (partial(ops.box_filter, size=3), ALL),
    "center_crop": (partial(ops.center_crop, size=(3, 4)), ALL),
    "clahe": (partial(ops.clahe, clip_limit=2.0, tiles=(2, 3)), ALL),
    "crop": (partial(ops.crop, top=1, left=2, size=(3, 4)), ALL),
    "crop_and_resize": (partial(ops.crop_and_resize, boxes=(1.5, 0, 7, 6), size=(5, 4)), ALL),
    "dilate": (partial(ops.dilate, size=3), ALL),
    "distort": (partial(ops.distort, camera=CAMERA, distortion=[0.2, 0, 0.01, 0]), SOME),
    "elastic": (partial(ops.elastic, noise=NOISE, alpha=3, sigma=1.5), SOME),
    "equalize": (ops.equalize, ALL),
    "erode": (partial(ops.erode, size=(1, 3)), ALL),
    "feather": (ops.feather, (*FLOATS, *LEVELS)),
    "flip": (ops.flip, ALL),
    "gaussian_blur": (partial(ops.gaussian_blur, sigma=0.7), ALL),
    "grid_sample": (partial(ops.grid_sample, grid=np.moveaxis(PLACES, 0, -1) / 6), ALL),
    "hls_to_rgb": (ops.hls_to_rgb, TWO),
    "hsv_to_rgb": (ops.hsv_to_rgb, TWO),
    "invert": (ops.invert, ALL),
    "map_coordinates": (partial(ops.map_coordinates, coordinates=PLACES, order=2), ALL),
    "median_filter": (partial(ops.median_filter, size=3), ALL),
    "motion_blur": (partial(ops.motion_blur, length=3, degrees=30), SOME),
    "pad": (partial(ops.pad, padding=2, border="symmetric"), ALL),
    "posterize": (partial(ops.posterize, bits=3), SOME),
    "remap": (partial(ops.remap, rows=PLACES[0], columns=PLACES[1]), ALL),
    "resize": (partial(ops.resize, size=(5, 12)), ALL),
    "rgb_to_hls": (ops.rgb_to_hls, TWO),
    "rgb_to_hsv": (ops.rgb_to_hsv, TWO),
    "rot90": (ops.rot90, ALL),
    "rotate": (partial(ops.rotate, degrees=20.0), ALL),
    "solarize": (partial(ops.solarize, threshold=0.5), ALL),
    "thin_plate_spline": (
        partial(ops.thin_plate_spline, source=CORNERS, target=CORNERS[::-1] * 0.9),
        SOME,
    ),
    "transpose": (ops.transpose, ALL),
    "undistort": (partial(ops.undistort, camera=CAMERA, distortion=[0.2, 0, 0.01, 0]), SOME),
    "warp_affine": (partial(ops.warp_affine, matrix=TURN), ALL),
    "warp_perspective": (partial(ops.warp_perspective, matrix=np.eye(3) + 0.01), ALL),
    "rgb_to_gray": (ops.rgb_to_gray, TWO),
    "rgb_to_lab": (ops.rgb_to_lab, TWO),
    "rgb_to_luv": (ops.rgb_to_luv, TWO),
    "rgb_to_xyz": (ops.rgb_to_xyz, TWO),
    "rgb_to_yuv": (ops.rgb_to_yuv, TWO),
    "srgb_to_linear": (ops.srgb_to_linear, TWO),
    "linear_to_srgb": (ops.linear_to_srgb, TWO),
    "xyz_to_rgb": (ops.xyz_to_rgb, TWO),
    "lab_to_rgb": (ops.lab_to_rgb, ("float32",)),
    "luv_to_rgb": (ops.luv_to_rgb, ("float32",)),
    "yuv_to_rgb": (ops.yuv_to_rgb, TWO),
    "standardise": (partial(ops.standardise, mean=0.4, std=0.2), ALL),
    "white_balance": (ops.white_balance, ALL),
    "bilateral_filter": (partial(ops.bilateral_filter, sigma_color=0.3, sigma_space=1.0), TWO),
    "closing": (partial(ops.closing, size=3), TWO),
    "distance_transform": (ops.distance_transform, ("float32",)),
    "laplacian": (ops.laplacian, TWO),
    "morphological_gradient": (partial(ops.morphological_gradient, size=3), TWO),
    "opening": (partial(ops.opening, size=3), TWO),
    "sobel": (partial(ops.sobel, orders=(0, 1)), TWO),
    "unsharp_mask": (ops.unsharp_mask, TWO),
}
"""Functions of images alone. Others have properties of their own in their files."""
PLANES = {"axes": (-2, -1), "channel": -3}
OTHERS = {
    "as_grain", "transform_record",
    "adjust_contrast", "adjust_hue", "adjust_saturation", "augment", "bayer_mosaic", "demosaic",
    "denormalise", "frame_size", "gaussian_noise", "jpeg", "keep_freed_memory", "mask_box",
    "mask_crop", "mask_paste", "matlab_size", "normalise", "perspective_matrix",
    "poisson_noise", "postprocess", "preprocess", "psnr", "psnr_b", "resize_frames", "rgb_to_y",
    "rgb_to_ycbcr", "roi_align", "salt_and_pepper", "sensor_noise", "ssim", "ycbcr_to_rgb",
    "canny", "connected_components", "delta_e", "guided_filter", "ms_ssim", "niqe", "nms",
}  # fmt: skip
IN_FLOAT32 = {"distance_transform", "feather", "standardise"}
LEVELS_IN_FLOAT32 = {
    "linear_to_srgb", "rgb_to_lab", "rgb_to_luv", "rgb_to_xyz", "srgb_to_linear", "xyz_to_rgb",
    "laplacian", "sobel",
}  # fmt: skip
CASES = [
    # Each function's first dtype: what the others compute, its own tests hold.
    pytest.param(name, dtype, marks=[] if dtype == dtypes[0] else [pytest.mark.slow])
    for name, (_, dtypes) in FUNCTIONS.items()
    for dtype in dtypes
]


def test_no_function_is_missing():
    assert FUNCTIONS.keys() | OTHERS == {n for n in ops.__all__ if n.islower()}


def pictures(dtype, count=8):
    levels = np.random.default_rng(0).integers(0, 256, (count, 7, 9, 3))
    scale = {"uint16": 257, "uint8": 1}.get(dtype, 1 / 255)
    return jnp.asarray(levels * scale, dtype)


def result_dtype(name, dtype):
    in_float32 = name in LEVELS_IN_FLOAT32 and dtype.startswith("uint")
    return "float32" if in_float32 or name in IN_FLOAT32 else dtype


def in_float(x):
    return np.asarray(x.astype(jnp.float32))


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_jit_vmap_mesh_and_layout_make_no_difference(name, dtype):
    function, _ = FUNCTIONS[name]
    images = pictures(dtype)
    plain = function(images)
    assert plain.dtype == result_dtype(name, dtype)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(images, NamedSharding(mesh, P("data")))
    compiled = jax.jit(function).lower(placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    explicit = NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))
    takes = inspect.signature(function).parameters
    layout = {key: value for key, value in PLANES.items() if key in takes}
    planes = jax.jit(partial(function, **layout))(jnp.moveaxis(images, -1, 1))
    results = {
        "jit": jax.jit(function)(images),
        "vmap": jax.jit(jax.vmap(function))(images),
        "mesh": compiled(placed),
        "explicit axes": function(jax.device_put(images, explicit)),
        "layout": jnp.moveaxis(planes, 1, -1),
    }
    # Programs contract other products and sums: the last bit may differ, in levels at a tie.
    atol = {"float32": 2e-6, "bfloat16": 2**-8}.get(plain.dtype.name, 1)
    if not plain.dtype.name.startswith("uint"):
        atol *= max(1, np.abs(in_float(plain)).max())
    assert results["explicit axes"].sharding.is_equivalent_to(explicit, plain.ndim)
    for kind, result in results.items():
        assert result.dtype == plain.dtype
        np.testing.assert_allclose(in_float(result), in_float(plain), atol=atol, err_msg=kind)
    empty = function(images[:0])
    assert empty.shape == (0, *plain.shape[1:]) and empty.dtype == plain.dtype


IMAGES = np.random.default_rng(3).random((8, 16, 18, 3), np.float32)
OTHER_IMAGES = np.random.default_rng(4).random((8, 16, 18, 3), np.float32)
GREY = np.asarray(IMAGES[..., :1])
QUADS = np.array([[0, 0], [9, 0], [9, 7], [0, 7]], np.float32) + IMAGES[:, :4, 0, :2]
BOXES = np.sort(IMAGES[:, :6, 0].repeat(2, -1)[..., 1:5] * [0, 0, 9, 9] + [1, 2, 3, 4], -1)
WITH_ARGUMENTS: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "adjust_contrast": (ops.adjust_contrast, (IMAGES, IMAGES[:, 0, 0, 0] * 2)),
    "adjust_hue": (ops.adjust_hue, (IMAGES, IMAGES[:, 0, 0, 0] - 0.5)),
    "adjust_saturation": (ops.adjust_saturation, (IMAGES, IMAGES[:, 0, 0, 0] * 2)),
    "bayer_mosaic": (ops.bayer_mosaic, (IMAGES,)),
    "delta_e": (ops.delta_e, (IMAGES * 50, OTHER_IMAGES * 50)),
    "demosaic": (ops.demosaic, (GREY,)),
    "denormalise": (ops.denormalise, (IMAGES,)),
    "guided_filter": (partial(ops.guided_filter, size=3, eps=0.01), (IMAGES, GREY)),
    "jpeg": (partial(ops.jpeg, quality=60), (np.uint8(IMAGES * 255),)),
    "ms_ssim": (partial(ops.ms_ssim, weights=(0.5, 0.5), window_size=7), (IMAGES, OTHER_IMAGES)),
    "nms": (partial(ops.nms, iou_threshold=0.3), (BOXES.astype(np.float32), IMAGES[:, :6, 0, 0])),
    "normalise": (ops.normalise, (np.uint8(IMAGES * 255),)),
    "perspective_matrix": (ops.perspective_matrix, (QUADS, QUADS[::-1])),
    "psnr": (ops.psnr, (IMAGES, OTHER_IMAGES)),
    "psnr_b": (ops.psnr_b, (GREY, OTHER_IMAGES[..., :1])),
    "rgb_to_y": (ops.rgb_to_y, (IMAGES,)),
    "rgb_to_ycbcr": (ops.rgb_to_ycbcr, (IMAGES,)),
    "roi_align": (partial(ops.roi_align, size=3), (IMAGES, BOXES.astype(np.float32))),
    "ssim": (ops.ssim, (IMAGES, OTHER_IMAGES)),
    "ycbcr_to_rgb": (ops.ycbcr_to_rgb, (IMAGES,)),
}
"""With further arrays or results. The rest: `clips` in test_mask_crop and test_frames, keys in
test_noise, policies in test_augment, test_mixing and test_policies, niqe in test_niqe. `canny` and
`connected_components` are in test_library_calls: elsewhere a loop asks whether any picture of the
batch has changed, which devices tell each other."""


def test_no_function_is_left_to_its_own_file_without_a_reason():
    clips = {"frame_size", "mask_box", "mask_crop", "mask_paste", "postprocess", "preprocess"}
    keyed = {"augment", "gaussian_noise", "poisson_noise", "salt_and_pepper", "sensor_noise"}
    no_arrays = {"as_grain", "keep_freed_memory", "matlab_size", "transform_record"}
    apart = clips | keyed | no_arrays | {"resize_frames", "niqe"}
    assert OTHERS - WITH_ARGUMENTS.keys() == apart | {"canny", "connected_components"}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_jit_vmap_and_mesh_make_no_difference_with_arguments(name):
    function, arrays = WITH_ARGUMENTS[name]
    plain = function(*arrays)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(arrays, NamedSharding(mesh, P("data")))
    compiled = jax.jit(function).lower(*placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    explicit = NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))
    results = {
        "jit": jax.jit(function)(*arrays),
        "vmap": jax.jit(jax.vmap(function))(*arrays),
        "mesh": compiled(*placed),
        "explicit axes": function(*jax.device_put(arrays, explicit)),
    }
    for kind, result in results.items():
        for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True):
            assert got.dtype == want.dtype
            # Programs contract other products and sums; levels may differ at a tie.
            atol = 1e-5 * max(1, np.abs(in_float(want)).max()) if want.dtype == np.float32 else 1
            atol = atol if want.dtype in (np.float32, np.uint8) else 0
            np.testing.assert_allclose(in_float(got), in_float(want), atol=atol, err_msg=kind)


NOT_LINEAR = {
    "adjust_gamma", "dilate", "erode", "feather", "invert", "median_filter", "posterize",
    "solarize",
    "autocontrast", "clahe", "equalize",
    "hls_to_rgb", "hsv_to_rgb", "rgb_to_hls", "rgb_to_hsv",
    "lab_to_rgb", "linear_to_srgb", "luv_to_rgb", "rgb_to_lab", "rgb_to_luv", "rgb_to_xyz",
    "srgb_to_linear", "standardise", "white_balance", "xyz_to_rgb",
    "bilateral_filter", "closing", "distance_transform", "morphological_gradient", "opening",
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NOT_LINEAR])
def test_linear_functions_have_the_gradient_of_linear_ones(name):
    """`vdot(f(x), y) = vdot(x, grad)`, as each is linear in its pictures."""
    function, _ = FUNCTIONS[name]
    images = pictures("float32", 2)
    upstream = jnp.asarray(np.random.default_rng(1).random(function(images).shape), jnp.float32)
    value, slope = jax.jit(jax.value_and_grad(lambda x: (function(x) * upstream).sum()))(images)
    np.testing.assert_allclose(jnp.vdot(slope, images), value, rtol=1e-4)
