"""The box against the specification's rule in plain Python, the resampling against torch."""

from functools import partial
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxsr.ops import resize
from jaxsr.ops.mask_crop import feather, mask_box, mask_crop, mask_paste


def rule(masks, padding_ratio=0.5, min_size=(512, 512), critical_ratio=2.0):
    """Steps 1 to 6 as the in-painting pipeline words them; masks are (frames, height, width)."""
    union = np.any(np.asarray(masks, np.float64) > 0.5, axis=0)
    frame_h, frame_w = union.shape
    if not union.any():
        return 0, 0, frame_w, frame_h
    rows, columns = np.flatnonzero(np.any(union, 1)), np.flatnonzero(np.any(union, 0))
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    left, right = int(columns[0]), int(columns[-1]) + 1

    pad = int((bottom - top) * padding_ratio)
    top, bottom = max(0, top - pad), min(frame_h, bottom + pad)
    pad = int((right - left) * padding_ratio)
    left, right = max(0, left - pad), min(frame_w, right + pad)

    def extend(start, stop, wanted, limit):
        missing = wanted - (stop - start)
        if missing <= 0:
            return start, stop
        start -= missing // 2
        stop += missing - missing // 2
        if start < 0:
            stop -= start
            start = 0
        if stop > limit:
            start -= stop - limit
            stop = limit
            start = max(start, 0)
        return start, stop

    left, right = extend(left, right, min_size[1], frame_w)
    top, bottom = extend(top, bottom, min_size[0], frame_h)

    aspect = (bottom - top) / (right - left)
    if aspect > critical_ratio:
        left, right = extend(left, right, int((bottom - top) / critical_ratio), frame_w)
    elif aspect < 1 / critical_ratio:
        top, bottom = extend(top, bottom, int((right - left) / critical_ratio), frame_h)

    if (right - left) % 2:
        if right < frame_w:
            right += 1
        elif left > 0:
            left -= 1
    if (bottom - top) % 2:
        if bottom < frame_h:
            bottom += 1
        elif top > 0:
            top -= 1
    return left, top, right, bottom


def mask_with(shape, *boxes, dtype: type = np.float32):
    """(frames, height, width, 1) with one rectangle (x1, y1, x2, y2) per frame."""
    masks = np.zeros((*shape, 1), dtype)
    for frame, (x1, y1, x2, y2) in enumerate(boxes):
        masks[frame, y1:y2, x1:x2] = 1
    return masks


def test_worked_example():
    """A 100x60 mask in a 1280x720 frame, by hand.

    Padded by 50 and 30: x 250...450, y 170...290. Grown to 512: width misses 312, 156 each side:
    x 94...606; height misses 392, 196 each side: y -26...486, shifted to 0...512.
    """
    masks = mask_with((1, 720, 1280), (300, 200, 400, 260))
    np.testing.assert_array_equal(mask_box(masks), [94, 0, 606, 512])


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("boxes", "options"),
    [
        ([(0, 0, 1, 1)], {}),
        ([(1279, 719, 1280, 720)], {}),
        ([(10, 20, 50, 700), (20, 0, 30, 40)], {"min_size": (8, 8)}),
        ([(10, 300, 1270, 310)], {"min_size": (1, 1)}),
        ([(600, 10, 613, 700)], {"min_size": (1, 1), "padding_ratio": 0}),
        ([(0, 0, 1280, 720)], {}),
        ([(5, 5, 8, 8)], {"min_size": (1, 1), "padding_ratio": 0}),
        ([(1275, 715, 1280, 720)], {"min_size": (1, 1), "padding_ratio": 0}),
        ([(100, 100, 200, 300)], {"min_size": (10**12, 3), "critical_ratio": 1.0}),
        ([], {}),
    ],
)
def test_box_matches_the_rule(boxes, options):
    masks = mask_with((2, 720, 1280), *boxes)
    np.testing.assert_array_equal(mask_box(masks, **options), rule(masks[..., 0], **options))


OPTIONS = [
    {},
    {"min_size": (24, 16), "critical_ratio": 1.5, "padding_ratio": 0.3},
    {"min_size": (1, 1), "critical_ratio": 1.1, "padding_ratio": 0.29},
    {"min_size": (7, 30), "critical_ratio": 3.0, "padding_ratio": 1.7},
]


def check_box(drawn):
    shape, options, corners, dtype = drawn
    frames, height, width = shape
    boxes = []
    for u, v, s, t in corners[:frames]:
        (x1, x2), (y1, y2) = sorted((u, s)), sorted((v, t))
        boxes.append((round(x1 * width), round(y1 * height), round(x2 * width), round(y2 * height)))
    masks = mask_with(shape, *boxes, dtype=dtype)
    got = tuple(np.asarray(mask_box(masks, **options)).tolist())
    assert got == rule(masks[..., 0], **options)
    x1, y1, x2, y2 = got
    assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height


BOXES = st.tuples(
    st.sampled_from([(1, 61, 97), (2, 64, 48), (1, 5, 90), (1, 33, 1)]),
    st.sampled_from(OPTIONS),
    st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=2),
    st.sampled_from([np.float32, np.uint8, bool]),
)


@settings(max_examples=20, deadline=None)
@given(BOXES)
def test_box_matches_the_rule_on_draws(drawn):
    check_box(drawn)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(BOXES)
def test_box_matches_the_rule_on_many_draws(drawn):
    check_box(drawn)


def clip(shape=(3, 70, 90, 3), dtype: type = np.float32):
    rng = np.random.default_rng(0)
    frames = (
        rng.integers(0, 256, shape, np.uint8) if dtype == np.uint8 else rng.random(shape, dtype)
    )
    masks = mask_with(shape[:3], (30, 20, 45, 41), (33, 22, 50, 33))
    return frames, masks


SMALL = {"min_size": (16, 16), "padding_ratio": 0.25}


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_cut_frames(dtype):
    frames, masks = clip(dtype=dtype)
    cut = mask_crop(frames, masks, **SMALL)
    x1, y1, x2, y2 = cut.box
    assert (x1, y1, x2, y2) == rule(masks[..., 0], **SMALL)
    assert all(isinstance(edge, int) for edge in cut.box)
    np.testing.assert_array_equal(cut.frames, frames[:, y1:y2, x1:x2])
    np.testing.assert_array_equal(cut.masks, masks[:, y1:y2, x1:x2])


def test_empty_masks_leave_the_frames_whole():
    frames, masks = clip()
    cut = mask_crop(frames, np.zeros_like(masks), **SMALL)
    assert cut.box == (0, 0, 90, 70)
    np.testing.assert_array_equal(cut.frames, frames)
    same = mask_crop(frames, np.zeros_like(masks), size=(70, 90), **SMALL)
    np.testing.assert_array_equal(same.frames, frames)


def by_torch(image, size):
    # float64, because torch's float32 coordinates are off by 1e-5 px some hundred pixels in.
    x = torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, 1))).double()
    y = F.interpolate(x, size, mode="bilinear", align_corners=False)
    return np.moveaxis(y.numpy(), 1, -1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [(16, 24), (48, 31), (100, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_fixed_size_matches_torch_on_the_cut(size, dtype):
    frames, masks = clip(dtype=dtype)
    got = jax.jit(partial(mask_crop, size=size, **SMALL))(frames, masks)
    x1, y1, x2, y2 = rule(masks[..., 0], **SMALL)
    np.testing.assert_array_equal(got.box, (x1, y1, x2, y2))
    cut = frames[:, y1:y2, x1:x2]
    if dtype == np.uint8:
        planes = torch.from_numpy(np.ascontiguousarray(np.moveaxis(cut, -1, 1)))
        levels = F.interpolate(planes, size, mode="bilinear").numpy()
        np.testing.assert_array_equal(got.frames, np.moveaxis(levels, 1, -1))
        np.testing.assert_array_equal(got.frames, resize(cut, size))
    else:
        np.testing.assert_allclose(got.frames, by_torch(cut, size), atol=5e-7)  # two blends
    want_masks = by_torch(masks[:, y1:y2, x1:x2], size)
    clear = np.abs(want_masks - 0.5) > 1e-5
    np.testing.assert_array_equal(np.asarray(got.masks)[clear], (want_masks > 0.5)[clear])
    assert set(np.unique(got.masks)) <= {0, 1}


@pytest.mark.sample(1)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_opencv_cuts_in_every_form(layout):
    frames, masks = clip((8, 70, 90, 3))
    x1, y1, x2, y2 = rule(masks[..., 0], **SMALL)
    want = np.stack([cv2.resize(x[y1:y2, x1:x2], (40, 33)) for x in frames])
    options: dict[str, Any] = {"size": (33, 40), **SMALL}
    if layout == "NCHW":
        frames, masks, want = (np.moveaxis(x, -1, 1).copy() for x in (frames, masks, want))
        options["axes"] = (-2, -1)
    crop = partial(mask_crop, **options)
    cut = jax.jit(crop)(frames, masks)
    np.testing.assert_array_equal(cut.frames, want)
    np.testing.assert_array_equal(crop(frames, masks).frames, want)

    twice = jax.jit(jax.vmap(crop))
    pair = np.stack([frames, frames]), np.stack([masks, masks])
    np.testing.assert_array_equal(twice(*pair).frames, [want, want])
    np.testing.assert_array_equal(twice(*pair).masks, [cut.masks, cut.masks])
    text = twice.lower(*pair).as_text()
    assert text.count("@jaxsr_opencv_crop(") == text.count("@jaxsr_opencv_crop_masks(") == 1

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put((frames, masks), NamedSharding(mesh, P("data")))
    program = jax.jit(crop).lower(*placed).compile()
    assert "all-gather" not in (program.as_text() or "")
    np.testing.assert_array_equal(program(*placed).frames, want)


def test_a_pixel_that_is_not_finite_stays_with_what_reads_it():
    frames, masks = clip()
    x1, y1, x2, y2 = rule(masks[..., 0], **SMALL)
    frames[0, y1 + 3, x1 + 5, 1], frames[1, y2 - 1, x2 - 1, 0] = np.nan, np.inf
    frames[2, y1 - 1, x1] = np.nan  # outside the box
    got = mask_crop(frames, masks, size=(y2 - y1, 3 * (x2 - x1)), **SMALL).frames
    want = by_torch(np.nan_to_num(frames, posinf=0)[:, y1:y2, x1:x2], got.shape[1:3])
    lost = np.zeros(got.shape, bool)
    lost[0, 3, 14:19, 1] = True  # three columns of its own, the nearest one of each neighbour
    lost[1, -1, -4:, 0] = True
    np.testing.assert_array_equal(~np.isfinite(np.asarray(got)), lost)
    np.testing.assert_allclose(np.asarray(got)[~lost], want[~lost], atol=5e-7)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(5, 7), (64, 48), (300, 257)]),
    st.tuples(*[st.floats(0, 1)] * 4),
    st.sampled_from([(-3, -2), (-2, -1)]),
)
def test_uint8_is_bit_equal_to_resize_for_any_box(size, corners, axes):
    u, v, s, t = corners
    y1, y2 = sorted((round(70 * u), round(70 * s)))
    x1, x2 = sorted((round(90 * v), round(90 * t)))
    masks = mask_with((1, 70, 90), (x1, y1, x2, y2))
    frames = np.random.default_rng(0).integers(0, 256, (1, 70, 90, 2), np.uint8)
    if axes == (-2, -1):
        frames, masks = (x.transpose(0, 3, 1, 2) for x in (frames, masks))
    rule = {"min_size": (1, 1), "padding_ratio": 0, "critical_ratio": 100.0, "axes": axes}
    got = mask_crop(frames, masks, size=size, **rule)
    cut = mask_crop(frames, masks, **rule)
    planes = np.asarray(cut.frames if axes == (-2, -1) else cut.frames.transpose(0, 3, 1, 2))
    want = F.interpolate(torch.from_numpy(planes.copy()), size, mode="bilinear").numpy()
    want = want if axes == (-2, -1) else want.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(got.frames, want)


@pytest.mark.usefixtures("unchecked_types")
def test_extents_beyond_int32_coordinates_are_refused():
    frames, masks = np.zeros((1, 2, 40000, 1), np.float32), np.ones((1, 2, 40000, 1), bool)
    with pytest.raises(ValueError, match="up to 32768 px"):
        mask_crop(frames, masks, size=(2, 8))


def test_one_compile_for_every_mask():
    frames, masks = clip()
    traces = []

    @jax.jit
    def crop(frames, masks):
        traces.append(frames.shape)
        return mask_crop(frames, masks, size=(32, 32), **SMALL)

    boxes = {
        tuple(np.asarray(crop(frames, np.roll(masks, 7 * k, 2)).box).tolist()) for k in range(5)
    }
    assert len(boxes) > 1
    assert len(traces) == 1


@pytest.mark.slow
def test_video_shapes_share_one_box_and_vmap_gives_each_clip_its_own():
    frames, masks = clip((4, 70, 90, 3))
    masks[2:, 50:60, 70:80] = 1
    video, video_masks = frames.reshape(2, 2, 70, 90, 3), masks.reshape(2, 2, 70, 90, 1)
    together = mask_crop(video, video_masks, size=(32, 32), **SMALL)
    assert together.frames.shape == (2, 2, 32, 32, 3)
    np.testing.assert_array_equal(together.box, rule(masks[..., 0], **SMALL))
    apart = jax.vmap(partial(mask_crop, size=(32, 32), **SMALL))(video, video_masks)
    for k in range(2):
        alone = mask_crop(video[k], video_masks[k], size=(32, 32), **SMALL)
        np.testing.assert_array_equal(apart.box[k], rule(video_masks[k, ..., 0], **SMALL))
        np.testing.assert_allclose(apart.frames[k], alone.frames, atol=1e-6)


@pytest.mark.slow
def test_channels_first():
    frames, masks = clip()
    first = [np.moveaxis(x, -1, 1) for x in (frames, masks)]
    for size in (None, (32, 20)):
        got = mask_crop(*first, size=size, axes=(-2, -1), **SMALL)
        want = mask_crop(frames, masks, size=size, **SMALL)
        # Another layout, another choice of fused multiply-adds.
        np.testing.assert_allclose(jnp.moveaxis(got.frames, 1, -1), want.frames, atol=2e-7)
        np.testing.assert_array_equal(got.box, want.box)


@pytest.mark.slow
def test_bfloat16_and_gradient():
    frames, masks = clip()
    got = mask_crop(jnp.asarray(frames, jnp.bfloat16), masks, size=(16, 16), **SMALL)
    assert got.frames.dtype == jnp.bfloat16
    want = mask_crop(
        jnp.asarray(frames, jnp.bfloat16).astype(jnp.float32), masks, size=(16, 16), **SMALL
    )
    np.testing.assert_array_equal(
        got.frames.astype(jnp.float32), want.frames.astype(jnp.bfloat16).astype(jnp.float32)
    )
    slope = jax.grad(lambda x: mask_crop(x, masks, size=(16, 16), **SMALL).frames.sum())(frames)
    # Every output's weights sum to 1.
    np.testing.assert_allclose(slope.sum(), 3 * 16 * 16 * 3, rtol=1e-5)


def test_feather_matches_scipy():
    from scipy import ndimage

    _, masks = clip()
    want = ndimage.gaussian_filter(
        masks.astype(float), (0, 1.5, 1.5, 0), mode="mirror", radius=(0, 3, 3, 0)
    )
    np.testing.assert_allclose(feather(masks), want, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_paste_of_an_untouched_cut_changes_nothing(dtype):
    frames, masks = clip(dtype=dtype)
    cut = mask_crop(frames, masks, **SMALL)
    np.testing.assert_allclose(mask_paste(frames, cut.frames, masks, cut.box), frames, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_paste_matches_the_blend_by_torch(dtype):
    frames, masks = clip(dtype=dtype)
    crop = mask_crop(frames, masks, size=(48, 40), **SMALL)
    x1, y1, x2, y2 = np.asarray(crop.box).tolist()
    patches = np.asarray(crop.frames)[:, ::-1].copy()
    got = jax.jit(mask_paste)(frames, patches, masks, crop.box)
    alpha = np.asarray(feather(masks))[:, y1:y2, x1:x2].astype(np.float64)
    want = frames.astype(np.float64)
    want[:, y1:y2, x1:x2] += alpha * (by_torch(patches, (y2 - y1, x2 - x1)) - want[:, y1:y2, x1:x2])
    atol = 0.501 if dtype == np.uint8 else 5e-6
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=atol)
    untouched = np.broadcast_to(np.asarray(feather(masks)) == 0, frames.shape)
    np.testing.assert_array_equal(np.asarray(got)[untouched], frames[untouched])


def test_nan_outside_the_mask_does_not_reach_the_frame():
    frames, masks = clip()
    cut = mask_crop(frames, masks, **SMALL)
    patches = np.where(np.asarray(feather(cut.masks)) > 0, np.asarray(cut.frames), np.nan)
    assert np.isfinite(mask_paste(frames, patches, masks, cut.box)).all()


def test_clips_on_a_mesh_communicate_nothing():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    frames, masks = clip((2, 40, 60, 3))
    video, video_masks = (np.stack([x] * 8) for x in (frames, masks))
    sharded = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in (video, video_masks)]
    crop = jax.vmap(partial(mask_crop, size=(16, 16), **SMALL))
    compiled = jax.jit(crop).lower(*sharded).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    np.testing.assert_allclose(
        compiled(*sharded).frames, crop(video, video_masks).frames, atol=1e-6
    )


def test_frames_on_a_mesh_agree_on_one_box():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    frames, masks = (np.concatenate([x] * 4) for x in clip((2, 40, 60, 3)))
    sharded = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in (frames, masks)]
    got = jax.jit(partial(mask_crop, size=(16, 16), **SMALL))(*sharded)
    np.testing.assert_array_equal(got.box, rule(masks[..., 0], **SMALL))
    assert got.frames.sharding.is_equivalent_to(sharded[0].sharding, 4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"masks": np.zeros((3, 70, 91, 1), np.float32)}, ValueError, "do not fit"),
        ({"masks": np.zeros((2, 70, 90, 1), np.float32)}, ValueError, "do not fit"),
        ({"masks": np.zeros((3, 70, 90, 2), np.float32)}, ValueError, "do not fit"),
        ({"masks": np.zeros((3, 70, 90, 3), np.float32)}, ValueError, "do not fit"),
        ({"padding_ratio": "a"}, TypeError, "padding_ratio must be a Python number, got 'a'"),
        ({"axes": 1}, TypeError, "axes must be"),
        ({"masks": np.zeros((3, 70, 90), np.float32)}, ValueError, "do not fit"),
        ({"masks": np.zeros((3, 70, 90, 1), np.complex64)}, TypeError, "complex64"),
        ({"frames": np.zeros((3, 70, 90, 3), bool)}, TypeError, "got bool"),
        ({"frames": np.zeros((3, 0, 90, 3))}, ValueError, "empty"),
        ({"size": (0, 4)}, ValueError, "at least 1"),
        ({"size": (4.5, 4)}, TypeError, "integers"),
        ({"padding_ratio": -0.1}, ValueError, "number of at least 0"),
        ({"padding_ratio": float("nan")}, ValueError, "number of at least 0"),
        ({"critical_ratio": 0.5}, ValueError, "at least 1"),
        ({"min_size": (0, 5)}, ValueError, "at least 1"),
        ({"axes": (1, 1)}, ValueError, "twice"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(change, error, message):
    frames, masks = clip()
    with pytest.raises(error, match=message):
        mask_crop(**({"frames": frames, "masks": masks} | change))


@pytest.mark.usefixtures("unchecked_types")
def test_without_a_size_jit_is_refused():
    with pytest.raises(TypeError, match="give size"):
        jax.jit(mask_crop)(*clip())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"patches": np.zeros((3, 8, 8, 3), np.uint8)}, TypeError, "convert one"),
        ({"patches": np.zeros((2, 8, 8, 3), np.float32)}, ValueError, "only height and width"),
        ({"box": None}, TypeError, "4 integers .*, got None"),
        ({"box": (0, 0, 1)}, TypeError, "4 integers"),
        ({"box": (0.0, 0.0, 8.0, 8.0)}, TypeError, "4 integers"),
        ({"box": (0, 0, 91, 8)}, ValueError, r"box=\(0, 0, 91, 8\) is empty or leaves the frame"),
        ({"box": (-1, 0, 9, 8)}, ValueError, "leaves the frame of 70x90"),
        ({"box": (5, 5, 5, 9)}, ValueError, "is empty"),
        ({"feather_size": 4}, ValueError, "feather_size must be an odd"),
        ({"feather_sigma": 0}, ValueError, "feather_sigma must be a finite number above 0"),
        ({"masks": np.zeros((3, 70, 90, 3), np.float32)}, ValueError, "one channel"),
        ({"masks": np.zeros((3, 8, 90, 1), np.float32)}, ValueError, "do not fit"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_paste(change, error, message):
    frames, masks = clip()
    good = {"frames": frames, "masks": masks, "patches": np.zeros((3, 8, 8, 3), np.float32)}
    with pytest.raises(error, match=message):
        mask_paste(**(good | {"box": (0, 0, 8, 8)} | change))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16])
def test_paste_into_boxes_of_narrow_integers(dtype):
    rng = np.random.default_rng(6)
    frames, patches = rng.random((1, 130, 130, 3), np.float32), rng.random((1, 9, 9, 3), np.float32)
    masks, box = np.ones((1, 130, 130, 1), np.float32), (5, 5, 120, 125)
    expected = mask_paste(frames, patches, masks, box)
    np.testing.assert_array_equal(
        mask_paste(frames, patches, masks, np.array(box, dtype)), expected
    )
