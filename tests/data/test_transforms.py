"""Turned, degraded and scaled on the device: against NumPy, torch, Pillow; on 1 and 8 devices."""

import itertools
from typing import Any, Literal

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image
from scipy import stats

from jaxsr.data.degradation_options import Degradation
from jaxsr.data.device_cache import resident_photos
from jaxsr.data.photos import open_photos, open_training_photos
from jaxsr.data.transforms import DetailLoss, make_preparation, to_levels, turn
from jaxsr.data.validation import validation_pairs
from jaxsr.errors import InputError
from tests.data.photo_batches import train_batches

KEY = jax.random.key(11)
LABELS = {"label_real": (0.8, 1.1), "label_fake": (0.0, 0.3), "label_generator": (0.7, 1.0)}
FORMS: list[dict[str, Any]] = [
    {"scale": 4},
    {"scale": 2, "channels": 1},
    {"scale": 1, "channels": 1, "loss_of_detail": DetailLoss(factors=(2, 3), noise=5.0)},
    {"scale": 1, "eight_bit": False, "loss_of_detail": DetailLoss(noise=5.0)},
]


@pytest.fixture(scope="module")
def photos():
    return open_training_photos(None, None, crop=96)[0]


def _batch(photos, *, crop=96, count=16, **options: Any):
    with train_batches(photos, global_batch=count, crop=crop, seed=1, **options) as stream:
        return next(stream)


def _levels(image):
    return (np.asarray(image) + 1) * 127.5


@pytest.mark.parametrize("channels", [1, 3])
def test_the_eight_positions_are_those_of_numpy(channels):
    image = np.random.default_rng(0).integers(0, 256, (8, channels, 5, 5), dtype=np.uint8)
    bits = jnp.arange(8, dtype=jnp.uint32)
    got = np.asarray(turn(jnp.asarray(image), bits, quarters=True))
    quarters = [np.rot90(image, k, (-2, -1)) for k in range(4)]
    positions = [*quarters, *(quarter[..., ::-1] for quarter in quarters)]
    positions_seen = []
    for row in range(8):
        positions_seen += [k for k in range(8) if np.array_equal(got[row], positions[k][row])]
    assert sorted(positions_seen) == list(range(8))  # each bit pattern is another position
    mirrored = np.asarray(turn(jnp.asarray(image), bits, quarters=False))
    np.testing.assert_array_equal(mirrored[::2], image[::2])
    np.testing.assert_array_equal(mirrored[1::2], image[1::2, :, :, ::-1])


def test_all_orders_of_colours_are_drawn_equally_often():
    image = np.broadcast_to(np.array([0, 100, 255], np.uint8), (6000, 4, 4, 3))
    batch = {"image": image, "sample": np.arange(6000, dtype=np.int32)}
    prepare = make_preparation(crop=4, scale=2, swap_colours=True)
    high = jax.jit(lambda batch: prepare(batch, KEY)["high"])(batch)
    levels = np.rint(_levels(high[:, :, 0, 0]))
    orders, counts = np.unique(levels, axis=0, return_counts=True)
    np.testing.assert_array_equal(orders, sorted(itertools.permutations((0, 100, 255))))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_swapped_colours_are_swapped_alike_in_both_sides(photos):
    batch = _batch(photos, count=8)
    plain, swapped = (
        jax.jit(make_preparation(crop=96, scale=4, swap_colours=swap))(batch, KEY)
        for swap in (False, True)
    )
    orders = [list(order) for order in itertools.permutations(range(3))]
    swaps = []
    for index in range(8):
        same = [
            order
            for order in orders
            if np.array_equal(plain["high"][index][np.array(order)], swapped["high"][index])
        ]
        assert same, index
        swaps += same[:1]
        want = plain["low"][index][np.array(same[0])]
        np.testing.assert_array_equal(swapped["low"][index], want)
    assert len({tuple(order) for order in swaps}) > 1


def test_all_positions_are_drawn_equally_often():
    # A crop of one dark corner pixel and its darker neighbour tells all eight positions apart.
    count, crop = 4000, 4
    image = np.full((count, crop, crop, 3), 255, np.uint8)
    image[:, 0, 0], image[:, 0, 1] = 0, 100
    batch = {"image": image, "sample": np.arange(count, dtype=np.int32)}
    ways: dict[Literal["none", "flip", "turn"], int] = {"none": 1, "flip": 2, "turn": 8}
    for augment, positions in ways.items():
        prepare = make_preparation(crop=crop, scale=2, augment=augment)
        high = jax.jit(lambda batch, prepare=prepare: prepare(batch, KEY)["high"])(batch)
        counts = np.unique(np.asarray(high), axis=0, return_counts=True)[1]
        assert len(counts) == positions
        assert positions == 1 or stats.chisquare(counts).pvalue > 1e-4  # fixed key


def test_high_is_the_crop_in_model_range(photos):
    batch = _batch(photos)
    made = jax.jit(make_preparation(crop=96, scale=4, augment="none"))(batch, KEY)
    assert made["high"].dtype == made["low"].dtype == np.float32
    assert made["high"].shape == (16, 3, 96, 96) and made["low"].shape == (16, 3, 24, 24)
    want = batch["image"].transpose(0, 3, 1, 2).astype(np.float64) / 127.5 - 1
    np.testing.assert_allclose(made["high"], want, atol=1.2e-7)  # one float32 rounding near 1
    assert abs(np.asarray(made["low"])).max() <= 1 and abs(np.asarray(made["high"])).max() <= 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_low_is_torch_interpolation(photos, scale):
    batch = _batch(photos)
    image = torch.from_numpy(batch["image"]).permute(0, 3, 1, 2)

    def torch_low(image):
        return torch.nn.functional.interpolate(
            image, size=96 // scale, mode="bicubic", antialias=True
        ).numpy()

    prepare = make_preparation(crop=96, scale=scale, augment="none")
    low = _levels(jax.jit(prepare)(batch, KEY)["low"])
    assert np.abs(low - np.rint(low)).max() < 1e-4  # whole levels, as in a file
    np.testing.assert_array_equal(np.rint(low), torch_low(image.contiguous()))

    prepare = make_preparation(crop=96, scale=scale, augment="none", eight_bit=False)
    low = _levels(jax.jit(prepare)(batch, KEY)["low"])
    # Sums of up to 16 × 16 products of levels below 256, in float32.
    np.testing.assert_allclose(low, torch_low(image.float()), atol=2e-3)


def test_low_is_the_file_that_pillow_would_write(photos):
    batch = _batch(photos, count=4)
    low = _levels(
        jax.jit(make_preparation(crop=96, scale=4, augment="none"))(batch, KEY)["low"]
    ).transpose(0, 2, 3, 1)
    for image, got in zip(batch["image"], low, strict=True):
        want = np.asarray(Image.fromarray(image).resize((24, 24), Image.Resampling.BICUBIC))
        # Pillow's fixed-point weights have other bits than torch's: a level where a sum is at half.
        assert np.abs(np.rint(got) - want).max() <= 1


def test_low_is_what_validation_makes_of_the_same_crop(photos, tmp_path):
    batch = _batch(photos, count=3)
    prepare = make_preparation(crop=96, scale=4, augment="none", bicubic="matlab")
    low = jax.jit(prepare)(batch, KEY)["low"]
    for index, image in enumerate(batch["image"]):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    pairs = [*validation_pairs(open_photos(tmp_path, crop=96), 4)]
    np.testing.assert_array_equal(low, np.concatenate([pair.low for pair in pairs]))


def test_luma_is_that_of_jpeg(photos):
    image = _batch(photos)["image"]
    got = np.asarray(to_levels(jnp.asarray(image.transpose(0, 3, 1, 2)), channels=1))[:, 0]
    for row in range(len(image)):
        want = cv2.cvtColor(image[row], cv2.COLOR_RGB2GRAY).astype(int)  # 0.299, 0.587, 0.114
        assert np.abs(got[row] - want).max() <= 1  # OpenCV rounds the weights to 15 bits
    exact = image @ np.array([0.299, 0.587, 0.114])
    assert np.abs(got - exact).max() <= 0.51


@pytest.mark.parametrize("factor", [2, 4])
def test_restoration_loses_detail_as_torch_would(photos, factor):
    batch = _batch(photos)
    loss = DetailLoss(factors=(factor,))
    prepare = make_preparation(crop=96, scale=1, channels=1, augment="none", loss_of_detail=loss)
    made = jax.jit(prepare)(batch, KEY)
    assert made["low"].shape == made["high"].shape == (16, 1, 96, 96)
    luma = torch.from_numpy(np.rint(_levels(made["high"])).astype(np.uint8))
    resized = torch.nn.functional.interpolate(
        luma, size=96 // factor, mode="bicubic", antialias=True
    )
    resized = torch.nn.functional.interpolate(resized, size=96, mode="bicubic", antialias=True)
    np.testing.assert_array_equal(np.rint(_levels(made["low"])), resized.numpy())


@pytest.mark.slow
def test_every_factor_is_drawn_equally_often(photos):
    batch = _batch(photos, count=60, crop=48)
    made = {}
    for factors in ((2,), (3,), (2, 3)):
        prepare = make_preparation(
            crop=48, scale=1, channels=1, loss_of_detail=DetailLoss(factors=factors)
        )
        made[factors] = np.asarray(jax.jit(prepare)(batch, KEY)["low"])
    is_2, is_3 = ((made[2, 3] == made[f,]).all(axis=(1, 2, 3)) for f in (2, 3))
    assert (is_2 | is_3).all()
    told_apart = ~(is_2 & is_3)  # a black crop is the same by both
    assert 0.25 < is_2[told_apart].mean() < 0.75  # 4 deviations of some 50 draws


@pytest.mark.slow
def test_noise_is_at_most_what_was_asked(photos):
    batch = _batch(photos, count=60, crop=48)
    low = [
        _levels(
            jax.jit(
                make_preparation(
                    crop=48,
                    scale=1,
                    channels=1,
                    eight_bit=False,
                    loss_of_detail=DetailLoss(factors=(2,), noise=noise),
                )
            )(batch, KEY)["low"]
        )
        for noise in (0.0, 10.0)
    ]
    difference = low[1] - low[0]
    deviation = difference.std(axis=(1, 2, 3))
    # The strengths are uniform from 0 to 10; one estimate from 2304 pixels is 1.5 % off.
    assert deviation.max() < 10.5 and stats.kstest(deviation / 10, "uniform").pvalue > 1e-3
    assert abs(difference.mean()) < 0.1


def test_labels_are_uniform_in_their_ranges():
    count = 4000
    batch = {
        "image": np.zeros((count, 2, 2, 3), np.uint8),
        "sample": np.arange(count, dtype=np.int32),
    }
    made = jax.jit(make_preparation(crop=2, scale=2, labels=LABELS))(batch, KEY)
    for name, (low, high) in LABELS.items():
        assert made[name].shape == (count, 1, 1, 1) and made[name].dtype == np.float32
        unit = (np.asarray(made[name]).ravel() - low) / (high - low)
        assert stats.kstest(unit, "uniform").pvalue > 1e-3
    pairs = np.corrcoef([np.asarray(made[name]).ravel() for name in LABELS])
    assert np.abs(pairs - np.eye(3)).max() < 0.06  # 4 deviations of 1/sqrt(4000)


@pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(f, marks=pytest.mark.slow) for f in FORMS[1:])], ids=str
)
def test_a_sample_does_not_depend_on_its_batch_mesh_or_place(photos, form):
    prepare = jax.jit(make_preparation(crop=96, labels=LABELS, **form))
    batch = _batch(photos, start_step=3)
    want = prepare(batch, KEY)
    # Integers are equal to the bit. Float sums of taps are fused differently for each shape of
    # batch: a few units in the last place of values up to 255, scaled to [-1, 1].
    atol = 0 if form.get("eight_bit", True) else 1e-6

    alone = prepare({name: value[5:6] for name, value in batch.items()}, KEY)
    for name in want:
        np.testing.assert_allclose(alone[name], want[name][5:6], 0, atol, err_msg=name)

    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharded = NamedSharding(mesh, PartitionSpec("data"))
    replicated = NamedSharding(mesh, PartitionSpec())
    resident = jax.device_put(resident_photos(photos), replicated)
    window = _batch(photos, start_step=3, form="window")
    key = jax.device_put(KEY, replicated)
    for inputs in (
        (jax.device_put(batch, sharded), key),
        (jax.device_put(window, sharded), key, resident),
    ):
        compiled = prepare.lower(*inputs).compile()
        got = compiled(*inputs)
        for name in want:
            np.testing.assert_allclose(got[name], want[name], 0, atol, err_msg=name)
            assert got[name].sharding.is_equivalent_to(sharded, got[name].ndim)
        program = compiled.as_text() or ""
        assert "HloModule" in program
        for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
            assert collective not in program


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "scale must be 1 or more, got 0"),
        ({"channels": 2}, "channels must be 1"),
        ({"augment": "spin"}, "augment must be"),
        ({"bicubic": "opencv"}, "bicubic must be 'torch' or 'matlab', got 'opencv'"),
        ({"scale": 5}, "crop=96 must be a multiple of 5"),
        ({"loss_of_detail": DetailLoss()}, "is for scale=1"),
        ({"scale": 1, "loss_of_detail": DetailLoss(factors=(2, 5))}, "multiple of 2, 5"),
        ({"labels": {"label_real": (1.1, 0.8)}}, "label_real"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_arguments_are_checked(options: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        make_preparation(**dict[str, Any](crop=96, scale=4) | options)


@pytest.mark.parametrize("options", [{"factors": ()}, {"factors": (0,)}, {"noise": -1.0}])
def test_detail_loss_is_checked(options: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(options))):
        DetailLoss(**options)


@pytest.mark.usefixtures("unchecked_types")
def test_a_batch_of_other_crops_is_refused(photos):
    with pytest.raises(ValueError, match="crops must be 48×48 px"):
        make_preparation(crop=48, scale=4)(_batch(photos), KEY)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_pairs_are_mixed_before_they_are_shrunk(kind, photos):
    batch = _batch(photos, count=8)
    plain = jax.jit(make_preparation(crop=96, scale=4))(batch, KEY)
    share_of_all: Any = {kind: 1.0}
    mixed = jax.jit(make_preparation(crop=96, scale=4, **share_of_all))(batch, KEY)
    own, high = (_levels(made["high"]).astype(np.float64) for made in (plain, mixed))
    other = own.reshape(4, 2, *own.shape[1:])[:, ::-1].reshape(own.shape)
    if kind == "cutmix":
        assert (np.isclose(high, own) | np.isclose(high, other)).all()
        unchanged = np.isclose(high, own).mean((1, 2, 3))
        assert ((unchanged > 0) & (unchanged < 1)).any()
    else:
        share = ((high - other) * (own - other)).sum((1, 2, 3)) / ((own - other) ** 2).sum(
            (1, 2, 3)
        )
        blended = share[:, None, None, None] * own + (1 - share[:, None, None, None]) * other
        assert np.abs(high - blended).max() < 0.6 and ((share > 0.05) & (share < 0.95)).any()
    uint8 = torch.from_numpy(np.rint(high).astype(np.uint8))
    small = torch.nn.functional.interpolate(uint8, (24, 24), mode="bicubic", antialias=True)
    np.testing.assert_array_equal(np.rint(_levels(mixed["low"])), small.numpy())


@pytest.mark.parametrize("scale", [1, 2])
def test_cutblur_leaves_a_box_or_its_surroundings_undamaged(scale, photos):
    batch = _batch(photos, count=16)
    degradation = Degradation(jpeg=(20, 40))

    def low(**options):
        made = make_preparation(crop=96, scale=scale, **options)
        return np.asarray(jax.jit(made)(batch, KEY)["low" if options else "high"])

    damaged = low(degradation=degradation)
    undamaged = low() if scale == 1 else low(bicubic="torch")  # at scale 1 the truth itself
    cut = low(degradation=degradation, cutblur=0.5)
    from_undamaged = (cut == undamaged) & (cut != damaged)
    assert ((cut == undamaged) | (cut == damaged)).all()
    shares = (cut == undamaged).mean((1, 2, 3))
    touched = from_undamaged.any((1, 2, 3))
    assert 3 <= touched.sum() <= 13
    assert (np.abs(shares[touched] - 0.5) < 0.35).all()
    with pytest.raises(InputError, match="cutblur needs damage"):
        make_preparation(crop=96, scale=2, cutblur=0.5)
