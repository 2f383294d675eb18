"""Cuts against torch's interpolation of the cut, RoIAlign against the paper's sums in a loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr import ops
from jaxsr.ops.boxes import cut_within
from jaxsr.xla_calls.calls import SWITCH
from tests.ops.dtypes import EVERY_DTYPE

CASES = 60
# Two products of float32 sums of values below 1.
ATOL = 5e-6


def pictures(dtype, shape=(14, 17, 3)):
    values = np.random.default_rng(0).random((CASES, *shape))
    if dtype in ("uint8", "uint16"):
        values = (values * np.iinfo(dtype).max).round()
    return jnp.asarray(values, dtype)


def whole_boxes(height=14, width=17):
    rng = np.random.default_rng(1)
    x, y = (
        np.sort(np.stack([rng.permutation(n + 1)[:2] for _ in range(CASES)]))
        for n in (width, height)
    )
    return np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], -1)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("size", [(5, 6), (1, 30)], ids=str)
@pytest.mark.parametrize(
    ("method", "antialias"),
    [("nearest", False), *((m, a) for m in ("bilinear", "bicubic") for a in (False, True))],
)
def test_whole_boxes_match_torch(method, antialias, size, dtype):
    images, boxes = pictures(dtype), whole_boxes()
    run = jax.jit(partial(ops.crop_and_resize, size=size, method=method, antialias=antialias))
    got = np.asarray(run(images, boxes), np.float64)
    exact = np.asarray(images.astype(jnp.float32), np.float64)
    most = 1 if dtype in ("float32", "bfloat16") else np.iinfo(dtype).max
    rounding = {"float32": 0, "bfloat16": 2**-8}.get(dtype, 0.5)
    atol = 0 if method == "nearest" else rounding + most * ATOL
    for result, image, (x1, y1, x2, y2) in zip(got, exact, boxes, strict=True):
        cut = torch.from_numpy(image[y1:y2, x1:x2].transpose(2, 0, 1)[None].copy())
        cut = cut.float() if method == "nearest" else cut  # whose positions are of its dtype
        mode = "nearest-exact" if method == "nearest" else method
        want = (
            F.interpolate(cut, size, mode=mode, antialias=antialias)[0].numpy().transpose(1, 2, 0)
        )
        want = want if most == 1 else want.clip(0, most)
        np.testing.assert_allclose(result, want, atol=atol, rtol=0)


def test_boxes_between_pixels_are_shifted_pictures():
    image = np.arange(20, dtype=np.float32).reshape(4, 5, 1)
    got = ops.crop_and_resize(image, (0.25, 0.5, 4.25, 3.5), (3, 4))[..., 0]
    np.testing.assert_allclose(got, image[:3, :4, 0] + 0.25 + 2.5, atol=ATOL)


def test_boxes_of_any_numbers_are_read_alike_with_and_without_opencv(monkeypatch):
    images = pictures("float32")[:8]
    boxes = np.array(
        [[0, 0, 17, 14], [1.5, 2.25, 16.3, 8.9], [-5, -3, 40, 25], [3, 4, 4, 5], [9, 9, 9, 9],
         [12, 9, 5, 3], [1e30, 0, -1e30, 5], [-1e9, 3, 2, 1e9]], np.float32,
    )  # fmt: skip
    results = []
    for kernels in ("native", "xla"):
        monkeypatch.setenv(SWITCH, kernels)
        jax.clear_caches()
        results.append(ops.crop_and_resize(images, boxes, (7, 50)))
    np.testing.assert_allclose(*results, atol=ATOL)
    jax.clear_caches()


def test_gradient_with_respect_to_boxes():
    image = np.arange(20, dtype=np.float32).reshape(4, 5, 1)
    slope = jax.grad(lambda box: ops.crop_and_resize(image, box, 1).sum())
    # The value is x + 5 y at the middle of the box.
    np.testing.assert_allclose(
        slope(np.array([1.2, 1.1, 3.3, 2.7])), [0.5, 2.5, 0.5, 2.5], atol=1e-5
    )


def by_loop(feature, box, size, scale, ratio, aligned):
    """He et al. 2017 (Mask R-CNN), section 3, with torchvision's rules at the edges."""

    def value(y, x, channel):
        height, width = feature.shape[:2]
        if not (-1 <= y <= height and -1 <= x <= width):
            return 0.0
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
        top, left = int(y), int(x)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        upper = feature[top, left, channel] * (1 - x + left) + feature[top, right, channel] * (
            x - left
        )
        lower = feature[bottom, left, channel] * (1 - x + left) + feature[
            bottom, right, channel
        ] * (x - left)
        return upper * (1 - y + top) + lower * (y - top)

    offset = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (edge * scale - offset for edge in box)
    height, width = y2 - y1, x2 - x1
    if not aligned:
        height, width = max(height, 1), max(width, 1)
    out = np.zeros((*size, feature.shape[2]))
    for i, j, c in np.ndindex(*out.shape):
        out[i, j, c] = np.mean([
            value(y1 + (i + (p + 0.5) / ratio) * height / size[0],
                  x1 + (j + (q + 0.5) / ratio) * width / size[1], c)
            for p in range(ratio) for q in range(ratio)
        ])  # fmt: skip
    return out


@pytest.mark.sample(2)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("scale", "ratio"), [(1.0, 1), (0.25, 2)])
def test_roi_align(scale, ratio, aligned):
    rng = np.random.default_rng(0)
    features = rng.random((4, 6, 7, 2), dtype=np.float32)
    boxes = rng.uniform(-3, 10, (4, 15, 4)).astype(np.float32) / scale
    boxes[..., 2:] += 3 / scale
    options = {"spatial_scale": scale, "sampling_ratio": ratio, "aligned": aligned}
    got = ops.roi_align(features, boxes, (2, 3), **options)
    planes = ops.roi_align(features.transpose(0, 3, 1, 2), boxes, (2, 3), axes=(-2, -1), **options)
    np.testing.assert_allclose(jnp.moveaxis(planes, 2, -1), got, atol=1e-6)
    for n, k in np.ndindex(4, 15):
        want = by_loop(
            features[n].astype(float), boxes[n, k].astype(float), (2, 3), scale, ratio, aligned
        )
        np.testing.assert_allclose(got[n, k], want, atol=2e-5)


IMAGE = np.zeros((2, 4, 5, 3), np.float32)
BOX = (0, 0, 2, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.crop_and_resize, IMAGE, (0, 0, 2), 2), ValueError, "boxes must have"),
        (partial(ops.crop_and_resize, IMAGE, np.zeros((3, 4)), 2), ValueError, "no value for each"),
        (partial(ops.crop_and_resize, IMAGE, BOX, 0), ValueError, "at least 1"),
        (partial(ops.crop_and_resize, IMAGE, BOX, 2, method="area"), ValueError, "unknown method"),
        (partial(ops.crop_and_resize, IMAGE, BOX, 2, method="nearest", antialias=True), ValueError,
         "antialias=True needs"),
        (partial(ops.roi_align, IMAGE, BOX, 2), ValueError, "K, 4"),
        (partial(ops.roi_align, IMAGE.astype(np.uint8), [BOX], 2), TypeError, "floating point"),
        (partial(ops.roi_align, IMAGE, [BOX], 2, sampling_ratio=0), ValueError, "from 1, got 0"),
        (partial(ops.roi_align, IMAGE, [BOX], 2, spatial_scale=0), ValueError, "above 0"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(5, 9), (14, 20)], ids=str)
def test_sums_of_taps_are_the_products(method, size):
    """The form of CPUs for boxes within the image equals the products of other devices."""
    images = jnp.asarray(np.random.default_rng(0).random((40, 12, 17, 3)), jnp.float32)
    low = np.random.default_rng(1).uniform(0, 5, (40, 2))
    boxes = np.concatenate([low, np.random.default_rng(2).uniform(6, 12, (40, 2))], 1)
    boxes[0] = (0, 0, 17, 12)
    boxes = jnp.asarray(boxes, jnp.float32)
    got = cut_within(images, boxes, size, method=method, antialias=True, axes=(-3, -2))
    want = ops.crop_and_resize(images, boxes, size, method=method, antialias=True)
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_antialiased_boxes_beyond_the_image_repeat_its_edge(method):
    image = np.random.default_rng(5).random((8, 8, 1)).astype(np.float32)
    cut = partial(ops.crop_and_resize, image, size=(4, 8), method=method, antialias=True)
    row = np.asarray(cut((-8, 0, 8, 8)))[..., 0]
    whole = F.interpolate(
        torch.from_numpy(image[None, ..., 0])[None], (4, 4), mode=method, antialias=True
    )
    np.testing.assert_allclose(row[:, 4:], whole[0, 0], atol=ATOL)
    np.testing.assert_array_equal(row[:, :4], row[:, 3:4].repeat(4, 1))
    assert np.abs(row[:, 3] - row[:, 4]).max() < np.ptp(image)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("box", [(-8, 0, 8, 8), (-1, -1, 7, 7), (20, 3, 24, 30)], ids=str)
def test_gradients_of_antialiased_boxes_beyond_the_image(method, box):
    """A cut is linear in the image: its gradient is the transposed of its derivative."""
    draw = np.random.default_rng(6)
    image, upstream = (draw.random(shape).astype(np.float32) for shape in ((8, 8, 1), (4, 8, 1)))

    def cut(x):
        return ops.crop_and_resize(x, box, (4, 8), method=method, antialias=True)

    (gradient,) = jax.vjp(cut, image)[1](upstream)
    np.testing.assert_allclose(np.vdot(gradient, image), np.vdot(upstream, cut(image)), rtol=1e-5)
    if box[0] == -8:  # the right half is the whole image, as torch resizes it
        upstream[:, :4] = 0
        x = torch.from_numpy(image[None, ..., 0])[None].requires_grad_()
        whole = F.interpolate(x, (4, 4), mode=method, antialias=True)
        (whole * torch.from_numpy(upstream[:, 4:, 0])).sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(
            jax.vjp(cut, image)[1](upstream)[0][..., 0], x.grad[0, 0], atol=ATOL
        )


def test_a_nan_stays_with_the_pixels_that_read_it():
    image = np.zeros((8, 9, 1), np.float32)
    image[3, 4] = np.nan
    whole = partial(ops.crop_and_resize, size=(8, 9), method="bicubic")
    np.testing.assert_array_equal(jax.jit(whole)(image, np.array([0, 0, 9, 8])), image)
