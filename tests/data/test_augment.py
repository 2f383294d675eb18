"""Augmentation against Pillow, one draw at a time, and its independence of the mesh."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import stats

from jaxsr.data.augment import (
    IMAGENET,
    Placement,
    change_light,
    draw_patch,
    draw_scale,
    make_augmentation,
    normalise,
    place,
    scaled_size,
)
from jaxsr.data.scenes import open_scenes
from jaxsr.interop import mesh as meshes
from tests.data.infrared_batches import infrared_batches, infrared_data

_place64 = jax.jit(partial(place, crop=64))


def _sample(seed, height, width, channels=3):
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (height, width, channels), np.uint8)
    mask = (random.random((height, width)) < 0.1).astype(np.uint8)
    return image, mask


def _on_canvas(image, mask, height, width):
    planes = np.zeros((1, image.shape[-1], height, width), np.uint8)
    planes[0, :, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    canvas = np.zeros((1, height, width), np.uint8)
    canvas[0, : mask.shape[0], : mask.shape[1]] = mask
    return planes, canvas, np.array([mask.shape], np.int32)


def _placement(*, mirror=False, turn=False, swap=False, size, corner=(0, 0), radius=0.0):
    return Placement(
        mirror=jnp.array([mirror]),
        turn=jnp.array([turn]),
        swap=jnp.array([swap]),
        size=jnp.array([size]),
        corner=jnp.array([corner]),
        radius=jnp.array([radius], jnp.float32),
    )


def _pillow(image, mask, p, crop):
    """The steps of the specification, one after the other, in Pillow."""
    image, mask = Image.fromarray(image), Image.fromarray(255 * mask)
    if bool(p.mirror[0]):
        image, mask = ImageOps.mirror(image), ImageOps.mirror(mask)
    height, width = (int(side) for side in p.size[0])
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    mask = mask.resize((width, height), Image.Resampling.NEAREST)
    border = (0, 0, max(crop - width, 0), max(crop - height, 0))
    image, mask = ImageOps.expand(image, border, fill=0), ImageOps.expand(mask, border, fill=0)
    top, left = (int(side) for side in p.corner[0])
    box = (left, top, left + crop, top + crop)
    image, mask = image.crop(box), mask.crop(box)
    if float(p.radius[0]) > 0:
        image = image.filter(ImageFilter.GaussianBlur(float(p.radius[0])))
    return np.asarray(image).transpose(2, 0, 1), np.asarray(mask) // 255


def _clear(native, scaled, corner=0, crop=64):
    """Pixels whose centre does not fall exactly between two source pixels, where the sum of
    floating-point steps that Pillow takes falls to either side."""
    row = np.arange(corner, corner + crop)
    return (2 * row + 1) * native % (2 * scaled) != 0


@pytest.mark.sample(5)
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize(
    ("native", "scaled", "corner", "radius"),
    [
        ((80, 100), (80, 100), (3, 9), 0.0),  # as it is
        ((80, 100), (102, 128), (38, 64), 0.0),  # larger
        ((90, 61), (45, 31), (0, 0), 0.0),  # smaller than the crop: black at right and bottom
        ((128, 96), (70, 53), (5, 0), 0.7),
        ((41, 127), (83, 257), (19, 190), 0.99),
        ((100, 100), (64, 64), (0, 0), 0.05),
        ((17, 128), (4, 32), (0, 0), 0.5),  # four times smaller: antialiased
    ],
)
def test_place_matches_pillow(native, scaled, corner, radius, mirror):
    image, mask = _sample(1, *native)
    p = _placement(mirror=mirror, size=scaled, corner=corner, radius=radius)
    got_image, got_mask = _place64(*_on_canvas(image, mask, 128, 128), p)
    want_image, want_mask = _pillow(image, mask, p, 64)
    clear = _clear(native[0], scaled[0], corner[0])[:, None] & _clear(
        native[1], scaled[1], corner[1]
    )
    np.testing.assert_array_equal(np.asarray(got_mask[0])[clear], want_mask[clear])
    # Pillow rounds twice to resize (±0.5 each) and six times to blur (±0.5, partly averaged out).
    limit = 1.01 if radius == 0 else 3.5
    assert np.abs(np.asarray(got_image[0]) - want_image).max() <= limit
    assert np.abs(np.asarray(got_image[0]) - want_image).mean() < 0.6


@pytest.mark.parametrize("radius", [0.1, 0.5, 0.9, 1.0])
def test_blur_matches_pillow_without_its_rounding(radius):
    """On an impulse scaled up, where Pillow's rounding is small against the values."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[20, 30] = 255
    p = _placement(size=(64, 64), radius=radius)
    got, _ = _place64(*_on_canvas(image, image[..., 0], 64, 64), p)
    want = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)))
    assert np.abs(np.asarray(got[0, 0]) - want[..., 0]).max() <= 1.5  # levels of 255, six roundings
    _, x = np.mgrid[:64, :64]
    weight = np.asarray(got[0, 0], np.float64) / 255
    assert weight.sum() == pytest.approx(1, abs=1e-5)
    assert (weight * (x - 30) ** 2).sum() == pytest.approx(radius**2, rel=1e-4)


def test_sizes_match_the_rounding_of_the_description():
    random = np.random.default_rng(0)
    size = random.integers(20, 700, (500, 2)).astype(np.int32)
    long_side = random.integers(32, 513, 500).astype(np.int32)
    got = np.asarray(scaled_size(jnp.asarray(size), jnp.asarray(long_side)))
    for (height, width), side, size_px in zip(size.tolist(), long_side.tolist(), got, strict=True):
        if height > width:
            want = side, int(width * side / height + 0.5)
        else:
            want = int(height * side / width + 0.5), side
        assert tuple(size_px) == want


@pytest.mark.slow
def test_nearest_matches_pillow_at_many_sizes():
    random = np.random.default_rng(2)
    for _ in range(60):
        height, width, h, w = (int(v) for v in random.integers(5, 64, 4))
        image, mask = _sample(3, height, width)
        p = _placement(size=(h, w))
        _, got = _place64(*_on_canvas(image, mask, 64, 64), p)
        want = Image.fromarray(mask).resize((w, h), Image.Resampling.NEAREST)
        clear = np.ix_(_clear(height, h, crop=h), _clear(width, w, crop=w))
        np.testing.assert_array_equal(np.asarray(got[0])[:h, :w][clear], np.asarray(want)[clear])
        assert not np.asarray(got[0, h:]).any() and not np.asarray(got[0, :, w:]).any()


def test_patch_exchanges_sides_of_image_and_mask_alike():
    image, mask = _sample(4, 64, 64)
    canvases = _on_canvas(image, mask, 64, 64)
    sharp = jax.jit(partial(place, crop=64, blur=False))
    for mirror in (False, True):
        for turn in (False, True):
            for swap in (False, True):
                p = _placement(mirror=mirror, turn=turn, swap=swap, size=(64, 64))
                got_image, got_mask = sharp(*canvases, p)
                want = np.concatenate([image, mask[..., None]], axis=-1)
                want = want[:, ::-1] if mirror else want
                want = want[::-1] if turn else want
                want = want.swapaxes(0, 1) if swap else want
                np.testing.assert_array_equal(got_image[0], want[..., :3].transpose(2, 0, 1))
                np.testing.assert_array_equal(got_mask[0], want[..., 3])


@pytest.mark.slow
def test_draws_of_the_paper_have_the_ranges_and_rates_it_names():
    keys = jax.random.split(jax.random.key(0), 4000)
    size = jnp.tile(jnp.array([[200, 300]]), (4000, 1))
    p = jax.jit(partial(draw_scale, base=256, crop=256))(keys, size)
    long_side = np.asarray(p.size[:, 1])
    assert (long_side.min(), long_side.max()) == (128, 512)
    assert abs(np.mean(long_side) - 320) < 6  # 111 / √4000 is 1.8
    assert abs(np.mean(p.mirror) - 0.5) < 0.04 and abs(np.mean(p.radius > 0) - 0.5) < 0.04
    assert np.asarray(p.radius).max() < 1
    room = np.maximum(np.asarray(p.size) - 256, 0)
    assert (np.asarray(p.corner) >= 0).all() and (np.asarray(p.corner) <= room).all()
    full = room[:, 1] > 100
    assert abs((np.asarray(p.corner)[full, 1] / room[full, 1]).mean() - 0.5) < 0.03


def test_whole_numbers_are_drawn_alike_where_jax_has_64_bits():
    keys, size = jax.random.split(jax.random.key(2), 8), jnp.full((8, 2), 40, jnp.int32)
    masks = jnp.ones((8, 40, 40), jnp.uint8)
    plain = draw_scale(keys, size, base=64, crop=32)
    with jax.enable_x64(True):
        wide = draw_scale(keys, size, base=64, crop=32)
        assert draw_patch(keys, size, masks, crop=32).corner.dtype == np.int32
    np.testing.assert_array_equal(wide.size, plain.size)
    np.testing.assert_array_equal(wide.corner, plain.corner)


@pytest.mark.slow
def test_half_of_the_patches_hold_the_target_and_none_leaves_the_image():
    mask = np.zeros((1, 200, 200), np.uint8)
    mask[0, 3, 195:197] = 1  # in a corner, where a uniform crop seldom reaches
    count = 2000
    size = jnp.tile(jnp.array([[180, 200]]), (count, 1))
    masks = jnp.broadcast_to(mask, (count, 200, 200))
    keys = jax.random.split(jax.random.key(1), count)
    p = draw_patch(keys, size, masks, crop=32)
    image = jnp.zeros((count, 1, 200, 200), jnp.uint8)
    _, got = jax.jit(partial(place, crop=32, blur=False))(image, masks, size, p)
    not_erased = np.asarray(got).any(axis=(1, 2))
    assert 0.46 < not_erased.mean() < 0.56
    corner = np.asarray(p.corner)
    assert (corner >= 0).all() and (corner <= [180 - 32, 200 - 32]).all()


@pytest.mark.parametrize("zoom", [1.0, 1.5])
def test_zoom_draws_sizes_around_the_images_and_keeps_the_aim(zoom):
    mask = np.zeros((1, 200, 200), np.uint8)
    mask[0, 90:96, 150:156] = 1
    count = 400
    size = jnp.tile(jnp.array([[180, 200]]), (count, 1))
    masks = jnp.broadcast_to(mask, (count, 200, 200))
    p = draw_patch(jax.random.split(jax.random.key(1), count), size, masks, crop=32, zoom=zoom)
    factor = np.asarray(p.size) / [180, 200]
    np.testing.assert_allclose(factor[:, 0], factor[:, 1], atol=0.006)  # rounded to pixels
    assert factor.min() >= 1 / zoom - 0.003 and factor.max() <= zoom + 0.003
    if zoom > 1:  # evenly spread over the logarithm
        spread = np.log(factor[:, 1]) / np.log(zoom)
        assert stats.kstest(spread, "uniform", (-1, 2)).pvalue > 1e-3
    image = jnp.zeros((count, 1, 200, 200), jnp.uint8)
    _, got = jax.jit(partial(place, crop=32, blur=False))(image, masks, size, p)
    assert 0.45 < np.asarray(got).any(axis=(1, 2)).mean() < 0.62


def test_light_changes_as_pillow_enhances_contrast_and_brightness():
    levels = np.random.default_rng(0).integers(60, 180, (40, 1, 8, 9)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 40)
    got = np.asarray(change_light(keys, jnp.asarray(levels), 0.3))
    gains = []
    for before, after in zip(levels, got, strict=True):
        fit = stats.linregress(before.ravel(), after.ravel())
        assert fit.rvalue > 0.99999  # a line: no level was cut off
        assert abs(after.mean() - before.mean()) <= 0.15 * 255
        gains.append(fit.slope)
        picture = Image.fromarray(np.uint8(before[0]))
        theirs = ImageEnhance.Contrast(picture).enhance(fit.slope)
        shift = after.mean() - before.mean()
        # Pillow cuts its result to whole levels, and rounds the mean, of which 0.3 counts.
        np.testing.assert_allclose(after[0] - shift, np.asarray(theirs), atol=1.16)
    assert min(gains) >= 0.7 and max(gains) <= 1.3 and np.ptp(gains) > 0.4
    bright = np.asarray(change_light(keys, jnp.full((40, 1, 2, 2), 250.0), 0.9))
    assert bright.max() == 255


def test_normalise_is_torchvisions_order():
    levels = np.random.default_rng(0).uniform(0, 255, (2, 3, 4, 5)).astype(np.float32)
    got = np.asarray(normalise(jnp.asarray(levels), IMAGENET))
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in IMAGENET)
    np.testing.assert_allclose(got, (levels / 255.0 - mean) / std, atol=1e-6)


@pytest.fixture(scope="module")
def scenes():
    return open_scenes(12, side=64)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "options",
    [{"kind": "scale"}, {"zoom": 1.5, "contrast": 0.4}, {"policy": '{"RandAugment": {}}'}],
)
def test_resident_and_streamed_are_equal_on_any_mesh(scenes, options):
    prepare = make_augmentation(crop=32, base=48, **{"kind": "patch", **options})
    key = jax.random.key(5)
    stream = partial(infrared_batches, scenes, global_batch=8, seed=3, start_step=2, channels=1)
    with stream() as streamed:
        pixels = next(streamed)
    with stream(form="index") as named:
        index = next(named)
    np.testing.assert_array_equal(pixels["sample"], np.arange(16, 24))
    alone = jax.jit(prepare)(pixels, key)
    mesh = meshes.make_mesh(8)
    columns = infrared_data(scenes, channels=1).columns()
    resident = jax.device_put(columns, meshes.replicated(mesh))

    @jax.jit
    def split(batch, key, resident):
        rows = {name: column[batch["index"]] for name, column in resident.items()}
        return prepare(rows | {"sample": batch["sample"]}, key)

    placed = meshes.place_batch(index, mesh)
    compiled = split.lower(placed, key, resident).compile()
    text = compiled.as_text()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in text, collective
    spread = split(placed, key, resident)
    for name in ("image", "mask"):
        # The masks agree exactly: so do the draws. Sums of products differ with the program.
        np.testing.assert_allclose(spread[name], alone[name], atol=0 if name == "mask" else 1e-5)
    assert alone["image"].shape == (8, 3, 32, 32) and alone["mask"].shape == (8, 1, 32, 32)


def test_a_policy_moves_image_and_mask_alike_and_each_sample_otherwise():
    """Images of white targets stay equal to their masks, and no two are moved alike."""
    _, mask = _sample(3, 48, 48)
    batch = {
        "image": 255 * np.stack([mask[None]] * 3), "mask": np.stack([mask] * 3),
        "size": np.full((3, 2), 48, np.int32), "sample": np.arange(3),
    }  # fmt: skip
    steps = {"RandomAffine": {"degrees": 40, "translate": [0.2, 0.1], "method": "nearest"}}
    plain, moved = (
        jax.jit(
            make_augmentation(
                crop=48, kind="patch", policy=policy, normalisation=((0.0,) * 3, (1.0,) * 3)
            )
        )(batch, jax.random.key(1))
        for policy in ("", json.dumps(steps))
    )
    np.testing.assert_array_equal(moved["image"][:, :1], moved["mask"])
    assert len({moved["mask"][n].tobytes() for n in range(3)}) == 3
    assert not np.array_equal(plain["mask"], moved["mask"])
    share = moved["mask"].sum() / plain["mask"].sum()
    assert 0.5 < share <= 1.05  # corners leave the crop, and the nearest pixel repeats a few


@pytest.mark.slow
def test_a_sample_does_not_depend_on_its_batch(scenes):
    prepare = jax.jit(make_augmentation(crop=32))
    key = jax.random.key(0)
    with infrared_batches(scenes, global_batch=6, seed=0) as sixes:
        six = prepare(next(sixes), key)
    with infrared_batches(scenes, global_batch=2, seed=0) as twos:
        for step in range(3):
            two = prepare(next(twos), key)
            part = slice(2 * step, 2 * step + 2)
            np.testing.assert_array_equal(two["mask"], six["mask"][part])
            np.testing.assert_allclose(two["image"], six["image"][part], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crop": 40}, "crop"),
        ({"crop": 32, "kind": "none"}, "kind"),
        ({"crop": 32, "base": 1}, "base"),
        ({"crop": 32, "kind": "scale", "zoom": 1.5}, "zoom must be from 1 to 4, and 1 with kind"),
        ({"crop": 32, "contrast": 1.0}, "contrast must be from 0 to below 1, got 1.0"),
        ({"crop": 32, "policy": "[1]"}, "policy must be a JSON object"),
        ({"crop": 32, "policy": '{"RandomFlip": {}, "RandomFlip": {}}'}, "'RandomFlip' appears tw"),
        ({"crop": 32, "policy": '{"Blur": {}}'}, "policy: no step 'Blur'; there are .*RandomBlur"),
        ({"crop": 32, "policy": '{"RandomFlip": {"x": 1}}'}, "RandomFlip cannot be taken .*'x'"),
        ({"crop": 32, "policy": '{"RandomFlip": 1}'}, "RandomFlip cannot be taken"),
        ({"crop": 32, "policy": '{"Mixup": {}}'}, "Mixup cannot be taken"),
        ({"crop": 32, "policy": '{"RandomResizedCrop": {"size": 16}}'}, "give 32, the crop's"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_arguments_out_of_range_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        make_augmentation(**options)
