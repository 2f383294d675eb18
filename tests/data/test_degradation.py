"""Damage to small pictures: against Pillow's JPEG and SciPy's blur; by a sample's key alone."""

import dataclasses
import io
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image
from scipy import ndimage, stats

from jaxsr.data.degradation import degrade
from jaxsr.data.degradation_options import Degradation
from jaxsr.data.photos import open_training_photos
from jaxsr.data.validation import validation_pairs
from jaxsr.training.presets.super_resolution import QUICK

KEYS = jax.random.split(jax.random.key(5), 24)


@pytest.fixture(scope="module")
def levels():
    photo = open_training_photos(None, None, crop=96)[0].read(0)
    windows = np.lib.stride_tricks.sliding_window_view(photo, (40, 37), (0, 1))
    return np.ascontiguousarray(windows[::90, ::90].reshape(-1, 3, 40, 37)[: len(KEYS)])


def _degraded(levels, **kinds: Any):
    return np.asarray(jax.jit(lambda x, k: degrade(x, k, Degradation(**kinds)))(levels, KEYS))


def _pillow(picture, quality):
    file = io.BytesIO()
    Image.fromarray(picture.transpose(1, 2, 0).squeeze()).save(file, "JPEG", quality=quality)
    pixels = np.asarray(Image.open(file))
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def test_jpeg_is_the_file_that_pillow_writes_at_one_of_the_qualities(levels):
    damaged = _degraded(levels, jpeg=(40, 45))
    qualities = [
        [q for q in range(40, 46) if np.array_equal(_pillow(before, q), after)]
        for before, after in zip(levels, damaged, strict=True)
    ]
    assert all(qualities)
    assert {q for fitting in qualities for q in fitting} == {*range(40, 46)}


def test_blur_is_scipys_of_a_uniform_deviation():
    impulse = np.zeros((24, 1, 31, 31), np.float32)
    impulse[..., 15, 15] = 255
    blurred = _degraded(impulse, blur=2.0) / 255
    rows = np.mgrid[-15:16, -15:16][0]
    sigma = np.sqrt((blurred * rows**2).sum((1, 2, 3)))
    assert sigma.max() <= 2 and stats.kstest(sigma / 2, "uniform").pvalue > 1e-3
    index = int(sigma.argmax())
    expected = ndimage.gaussian_filter(impulse[index, 0] / 255, sigma[index], radius=6)
    # The deviation was measured on the window's 13 pixels, a thousandth short of the whole.
    np.testing.assert_allclose(blurred[index, 0], expected, atol=1e-3)


def test_noise_has_a_uniform_deviation():
    gray = np.full((24, 3, 64, 64), 128, np.float32)
    deviation = (_degraded(gray, noise=8.0) - 128).std((1, 2, 3))
    # An estimate from 12,288 values is 0.6 % off.
    assert deviation.max() < 8.2 and stats.kstest(deviation / 8, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_both_orders_are_drawn_and_every_kind_comes_once(levels):
    damaged = _degraded(levels, jpeg=(50, 50), blur=1.0)
    last = [np.array_equal(_pillow(x, 50), x) for x in damaged]
    assert 4 <= sum(last) <= 20  # 3 deviations of 24 draws; a blurred file is not a file's pixels
    assert damaged.dtype == np.uint8
    assert (damaged != levels).any((1, 2, 3)).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("jpeg", "again"),
    [(None, 0.0), (None, 0.5), pytest.param((40, 95), 0.5, marks=pytest.mark.slow)],
)
def test_a_sample_depends_on_its_key_alone(levels, jpeg, again):
    levels, keys = levels[:8, :, :16, :16], KEYS[:8]
    damage = jax.jit(
        lambda x, k: degrade(x, k, Degradation(jpeg=jpeg, noise=3.0, blur=0.5, again=again))
    )
    alone = [np.asarray(damage(levels[row : row + 1], keys[row : row + 1])) for row in range(8)]
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    compiled = damage.lower(*jax.device_put((levels, keys), rows)).compile()
    together = compiled(*jax.device_put((levels, keys), rows))
    np.testing.assert_array_equal(together, np.concatenate(alone))
    program = compiled.as_text() or ""
    assert "HloModule" in program
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in program


def test_a_share_is_damaged_and_a_share_again(levels):
    impulse = np.zeros((24, 1, 31, 31), np.float32)
    impulse[..., 15, 15] = 255
    some = (_degraded(impulse, blur=2.0, share=0.5) != impulse).any((1, 2, 3))
    assert 5 <= some.sum() <= 19  # 3 standard deviations of 24 draws
    once, often = (_degraded(levels, jpeg=(50, 50), again=share) for share in (0.0, 0.5))
    assert often.dtype == np.uint8
    changed = (once != often).any((1, 2, 3))
    assert 5 <= changed.sum() <= 19
    # JPEG comes last: saving it once more at that quality changes next to nothing.
    for before, after in zip(levels[changed], often[changed], strict=True):
        moved, saved_again = (
            np.abs(_pillow(x, 50) - x.astype(int)).mean() for x in (before, after)
        )
        assert saved_again < 0.25 * moved
    twice = _degraded(levels, jpeg=(50, 50), again=1.0)
    np.testing.assert_array_equal(twice[changed], often[changed])
    as_floats = _degraded(levels.astype(np.float32), jpeg=(90, 90), again=1.0)
    assert as_floats.dtype == np.float32 and as_floats.min() >= 0 and as_floats.max() <= 255


@pytest.mark.slow
def test_validation_is_damaged_alike_every_time():
    held_out = open_training_photos(None, None, crop=96)[1].subset([0])
    options: dict[str, Any] = {"longest_px": 64, "degradation": Degradation(jpeg=(30, 30))}
    first, again = ([*validation_pairs(held_out, 4, **options)] for _ in range(2))
    clean = [*validation_pairs(held_out, 4, longest_px=64)]
    for pair, repeated, clean_pair in zip(first, again, clean, strict=True):
        np.testing.assert_array_equal(pair.low, repeated.low)
        np.testing.assert_array_equal(pair.high, clean_pair.high)
        before, after = (
            np.rint((x.low[0] + 1) * 127.5).astype(np.uint8) for x in (clean_pair, pair)
        )
        np.testing.assert_array_equal(after, _pillow(before, 30))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"jpeg": (95, 40)}, "jpeg must be two qualities from 1 to 100, the lower one first"),
        ({"jpeg": (0, 40)}, "jpeg must be two qualities"),
        ({"noise": -1.0}, "noise must be at least 0, got -1.0"),
        ({"blur": 9.0}, "blur must be at most 5.0, got 9.0"),
        ({"share": 1.5}, "share must be at most 1, got 1.5"),
        ({"again": -0.1}, "again must be at least 0, got -0.1"),
    ],
)
def test_strengths_are_checked(kinds: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        Degradation(**kinds)


def test_options_of_a_run_give_it():
    assert QUICK.degradation is None
    run = dataclasses.replace(
        QUICK, network="a:B", low_jpeg=(40, 95), low_noise=2.0, low_share=0.5, low_again=0.4
    )
    assert run.degradation == Degradation(jpeg=(40, 95), noise=2.0, share=0.5, again=0.4)
