"""The pipeline around a video network against NumPy, torch and SciPy, step by step and whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import ndimage

from jaxsr.ops.frames import (
    denormalise,
    frame_size,
    normalise,
    postprocess,
    preprocess,
    resize_frames,
)
from jaxsr.ops.mask_crop import mask_crop


def clip(shape=(3, 60, 84, 3), dtype: type = np.uint8):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, shape, np.uint8).astype(dtype)
    masks = np.zeros((*shape[:-1], 1), np.float32)
    masks[..., 20:41, 30:45, :] = 1
    return frames, masks


def by_torch(image, size):
    x = torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, 1))).double()
    y = F.interpolate(x, size, mode="bilinear", align_corners=False)
    return np.moveaxis(y.numpy(), 1, -1)


@pytest.mark.parametrize(
    ("frame", "want"),
    [
        # Worked by hand from the pipeline's wording.
        ((720, 1280), (640, 1136)),  # ×640/720: 1137.8 → 1137 → 1136
        ((1280, 720), (1136, 640)),
        ((1080, 1920), (640, 1136)),
        ((480, 854), (480, 848)),  # short side within 640, long within 1280: only floored
        ((500, 2000), (320, 1280)),  # only the long side: ×0.64
        ((640, 2560), (320, 1280)),
        ((4000, 1000), (1280, 320)),  # 640 × 2560, then ×½
        ((16, 16), (16, 16)),
    ],
)
def test_frame_size(frame, want):
    assert frame_size(*frame) == want


def test_normalise_and_back():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    unit = normalise(levels)
    np.testing.assert_allclose(unit, levels / 127.5 - 1, atol=2e-7)
    np.testing.assert_array_equal(denormalise(unit), levels)
    np.testing.assert_array_equal(denormalise(jnp.array([-7.0, 7.0, 0.0])), [0, 255, 128])
    half = normalise(levels, dtype=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half, unit.astype(jnp.bfloat16))
    np.testing.assert_allclose(denormalise(unit, dtype=jnp.float32), levels, atol=3e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("chunk", [1, 2, 32, None])
def test_resize_frames_matches_torch(chunk):
    frames, masks = clip(dtype=np.float32)
    got, got_masks = resize_frames(frames, masks, image_size=48, max_length=64, chunk=chunk)
    assert got.shape == (3, 32, 64, 3)  # 48 × 67, then 45 × 64, floored
    np.testing.assert_allclose(
        got, by_torch(frames, (32, 64)), atol=255 * 2e-5
    )  # float32 coordinates
    want = by_torch(masks, (32, 64))
    clear = np.abs(want - 0.5) > 1e-4
    np.testing.assert_array_equal(np.asarray(got_masks)[clear], (want > 0.5)[clear])


def test_resize_frames_keeps_dtype_and_layout():
    frames, masks = clip((2, 2, 60, 84, 3))
    got = jnp.asarray(resize_frames(frames, image_size=48, max_length=64))
    assert got.dtype == np.uint8 and got.shape == (2, 2, 32, 64, 3)
    first, _ = resize_frames(
        np.moveaxis(frames, -1, 2), np.moveaxis(masks, -1, 2) > 0.5,
        image_size=48, max_length=64, axes=(-2, -1), chunk=1,
    )  # fmt: skip
    np.testing.assert_array_equal(jnp.moveaxis(first, 2, -1), got)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [(32, 48), (47, 33)])
def test_preprocess_is_the_sum_of_its_parts(dtype, size):
    frames, masks = clip(dtype=dtype)
    got = jax.jit(partial(preprocess, size=size, min_size=(24, 20)))(frames, masks)
    # 21 rows and 15 columns, padded by 10 and 7: rows 10…51 (41, made even: 52), columns 23…52
    # (29, made even: 53).
    np.testing.assert_array_equal(got.box, [23, 10, 53, 52])
    cut = by_torch(frames[:, 10:52, 23:53], size)
    np.testing.assert_allclose(got.frames, cut / 127.5 - 1, atol=2e-6)
    solid = by_torch(masks[:, 10:52, 23:53], size)
    clear = np.abs(solid - 0.5) > 1e-5
    np.testing.assert_array_equal(np.asarray(got.masks)[clear], (solid > 0.5)[clear])
    soft = ndimage.gaussian_filter(
        np.asarray(got.masks, np.float64), (0, 1.5, 1.5, 0), mode="mirror", radius=(0, 3, 3, 0)
    )
    np.testing.assert_allclose(got.soft_masks, soft, atol=2e-6)


def test_default_size_is_the_frames_own():
    frames, masks = clip((1, 96, 128, 3))
    got = preprocess(frames, masks)
    assert got.frames.shape == (1, 96, 128, 3)
    np.testing.assert_array_equal(got.box, [0, 0, 128, 96])  # 512 is more than the frame
    np.testing.assert_allclose(got.frames, frames / 127.5 - 1, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_round_trip_through_an_identity_network(dtype):
    frames, masks = clip(dtype=dtype)
    cut = mask_crop(frames, masks, min_size=(24, 20))
    ready = preprocess(frames, masks, size=cut.frames.shape[1:3], min_size=(24, 20))
    back = jax.jit(postprocess)(ready.frames, frames, masks, ready.box)
    assert back.dtype == dtype
    np.testing.assert_allclose(back, frames, atol=0 if dtype == np.uint8 else 1e-4)


@pytest.mark.slow
def test_bfloat16_network():
    frames, masks = clip()
    ready = preprocess(frames, masks, size=(32, 32), dtype=jnp.bfloat16)
    assert ready.frames.dtype == jnp.bfloat16
    back = postprocess(ready.frames, frames, masks, ready.box)
    assert back.dtype == np.uint8
    unmasked = np.s_[:, :10]
    np.testing.assert_array_equal(back[unmasked], frames[unmasked])


def test_clips_on_a_mesh_communicate_nothing():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    frames, masks = clip((8, 2, 40, 48, 3))
    sharded = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in (frames, masks)]
    ready = jax.jit(jax.vmap(partial(preprocess, size=(16, 16), min_size=(8, 8))))
    text = ready.lower(*sharded).compile().as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    compiled = (
        jax.jit(partial(resize_frames, image_size=32, chunk=None)).lower(sharded[0]).compile()
    )
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f, m: frame_size(0, 5), ValueError, "height must be"),
        (lambda f, m: frame_size(15, 500), ValueError, "less than one multiple of 16"),
        (lambda f, m: frame_size(100, 100, multiple=0), ValueError, "multiple must be"),
        (lambda f, m: resize_frames(f, m, chunk=0), ValueError, "chunk must be"),
        (lambda f, m: resize_frames(f, m[:, :5]), ValueError, "do not fit"),
        (lambda f, m: resize_frames(f.astype(np.int32)), TypeError, "got int32"),
        (lambda f, m: normalise(f, dtype=jnp.int32), TypeError, "floating-point dtype"),
        (lambda f, m: denormalise(f), TypeError, "already"),
        (lambda f, m: denormalise(f.astype(np.float32), dtype=jnp.int32), TypeError, "not int32"),
        (lambda f, m: preprocess(f, m, size=(0, 5)), ValueError, "at least 1"),
        (lambda f, m: preprocess(f, m[..., :0]), ValueError, "empty"),
        (lambda f, m: postprocess(f, f, m, jnp.arange(4)), TypeError, "already"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(*clip())
