"""Margins measured on networks, and tiles that change nothing against the untiled torch network."""

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.restoration.around_tiles import around_tiles
from jaxsr.restoration.pictures import PictureError
from jaxsr.restoration.pipeline import Restorer, Work
from jaxsr.restoration.receptive_field import Reach, measure_reach
from jaxsr.restoration.restore_arrays import ArraySink
from jaxsr.restoration.tiling import MOST_BYTES, MOST_PROGRAMS, Tiler, WholePictureTooLarge
from jaxsr.runtime.torch_runner import TorchRunner
from tests.restoration import networks


def made(network: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    for parameter in network.parameters():
        if not parameter.any():  # a head that starts at zero reads nothing
            nn.init.normal_(parameter, std=0.1)
    return network.eval()


@pytest.mark.parametrize(
    ("make", "channels", "scale", "margin", "period"),
    [
        (lambda: nn.Conv2d(3, 3, 1), 3, 1, 0, 1),
        (lambda: networks.Small(scale=2), 3, 2, 4, 1),
        (lambda: networks.Small(scale=1, channels=1), 1, 1, 4, 1),
        (networks.Named, 3, 2, 4, 1),
        (lambda: networks.Named(listed=True), 3, 2, 4, 1),
        (networks.Gated, 3, 1, 3, 1),
        (networks.Dilated, 3, 1, 112, 1),
    ],
)
def test_margin_is_the_sum_of_the_kernels(make, channels, scale, margin, period):
    reach = measure_reach(made(make()), channels=channels)
    assert (reach.scale, reach.margin, reach.period) == (scale, margin, period)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "none", "depth": 2, "width": 8},
        {"norm": "batch", "depth": 3, "width": 8, "block": "mobile", "scale": 2},
        {"norm": "none", "depth": 2, "width": 8, "scale": 1, "channels": 1, "predict": "residual"},
        {"norm": "instance", "depth": 2, "width": 8},
    ],
)
def test_margin_is_what_the_family_says_of_itself(changes):
    config = FastSRGANConfig(**changes)
    reach = measure_reach(made(Generator(config)), channels=config.channels)
    assert reach.margin == config.receptive_radius
    assert reach.scale == config.scale


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (networks.Attentive, "whole image"),
        (networks.Positional, "position"),
        (lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.InstanceNorm2d(3)), "'1'"),
    ],
)
def test_what_has_no_margin_is_recognised(make, cause):
    reach = measure_reach(made(make()), channels=3)
    assert reach.margin is None and cause in reach.cause


def test_strided_networks_have_a_period():
    reach = measure_reach(made(networks.Strided()), channels=3)
    assert reach.period == 4 and reach.margin is not None and reach.margin % 4 == 0


def test_networks_that_do_not_restore_are_refused():
    with pytest.raises(ValueError, match=r"Conv2d turned \(3, 128, 32\) into \(8, 128, 32\)"):
        measure_reach(nn.Conv2d(3, 8, 3, padding=1), channels=3)
    with pytest.raises(ValueError, match=r"returned \(1, 12288\) for a \(1, 3, 128, 32\) image"):
        measure_reach(nn.Flatten(), channels=3)


@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(1, 700), st.integers(1, 700)),
    margin=st.integers(0, 20),
    period=st.sampled_from([1, 2, 4, 8]),
    side=st.integers(64, 200),
    fitted=st.booleans(),
    least=st.sampled_from([1, 48]),
    devices=st.sampled_from([None, 2, 8]),
)
def test_tiles_cover_each_pixel_once_with_their_margin(
    size, margin, period, side, fitted, least, devices
):
    aligned = -(-margin // period) * period
    reach = Reach(scale=2, margin=aligned, period=period, live=192, least_side=least)
    plan = Tiler(reach, tile=side, sizes=[size] if fitted else [], devices=devices).plan(size)
    height, width = plan.size
    assert min(plan.shape) >= least
    assert height % period == width % period == 0
    for padded, length in zip(plan.size, size, strict=True):
        assert 0 <= padded - max(length, least) < period
    counted = np.zeros(plan.size, int)
    for row in plan.rows:
        for tile in row:
            counted[tile.inner_top : tile.inner_bottom, tile.inner_left : tile.inner_right] += 1
            bottom, right = tile.top + plan.shape[0], tile.left + plan.shape[1]
            assert tile.top >= 0 and bottom <= height and tile.left >= 0 and right <= width
            assert tile.top % period == tile.left % period == 0
            assert tile.top == 0 or tile.inner_top - tile.top >= aligned
            assert tile.left == 0 or tile.inner_left - tile.left >= aligned
            assert bottom == height or bottom - tile.inner_bottom >= aligned
            assert right == width or right - tile.inner_right >= aligned
    assert (counted == 1).all()


def test_a_hundred_sizes_need_at_most_four_programs():
    sizes = np.random.default_rng(0).integers(1, 2000, (100, 2)).tolist()
    for margin in (0, 4, 20, 40):
        tiler = Tiler(Reach(scale=4, margin=margin, live=600), sizes=map(tuple, sizes))
        plans = [tiler.plan(tuple(size)) for size in sizes]
        assert len({plan.shape for plan in plans if plan.compiled}) <= MOST_PROGRAMS


def test_fitted_tiles_waste_little():
    reach = Reach(scale=4, margin=20, live=192)
    for size, share in (((180, 320), 1.0), ((720, 1280), 1.25), ((4000, 4000), 1.25)):
        plan = Tiler(reach, sizes=[size]).plan(size)
        assert plan.computed <= share * size[0] * size[1]


def test_a_picture_alone_is_spread_over_all_devices():
    reach = Reach(scale=4, margin=20, live=192)
    for devices, most in ((2, 0.65), (8, 0.25)):
        tiler = Tiler(reach, sizes=[(180, 320)], devices=devices)
        plan = tiler.plan((180, 320))
        assert plan.tiles <= devices and tiler.at_once(8) == 1
        assert math.prod(plan.shape) <= most * 180 * 320
    # More tiles than devices: none waits for a last one.
    tiler = Tiler(reach, sizes=[(720, 1280)], devices=8)
    assert tiler.plan((720, 1280)).tiles == 8 * tiler.at_once(8)


def test_a_line_of_hundreds_of_millions_of_pixels_is_planned_at_once(monkeypatch):
    shares = []
    share = Tiler._share

    def counted(tiler: Tiler, length: int, parts: int) -> int:
        shares.append(parts)
        return share(tiler, length, parts)

    monkeypatch.setattr(Tiler, "_share", counted)
    size = (64, 178_000_000)
    Tiler(Reach(scale=2, margin=4, live=48), sizes=[size])
    assert len(shares) < 10_000


def test_a_large_picture_is_not_cut_unasked():
    reach = Reach(scale=4, margin=None, cause="InstanceNorm2d at 'body'", live=3072)
    with pytest.raises(
        WholePictureTooLarge, match=r"InstanceNorm2d at 'body'.*--tiling approximate"
    ):
        Tiler(reach).plan((4000, 4000))
    assert Tiler(reach).plan((100, 90)).shape == (100, 90)
    assert len(Tiler(reach, approximate=True).plan((4000, 4000)).rows) > 1


def test_a_tile_too_small_for_the_margin_becomes_the_next_that_works():
    tiler = Tiler(Reach(scale=4, margin=20), tile=32)
    assert tiler.note and tiler.side == 72
    tiler = Tiler(Reach(scale=4, margin=24, period=8), tile=30)
    assert tiler.note and tiler.side == 80
    assert not Tiler(Reach(scale=4, margin=20), tile=64).note


def test_approximate_tiles_do_not_overlap_by_a_large_margin():
    reach = Reach(scale=4, margin=160, period=8, live=3072)
    assert Tiler(reach).margin == 160
    assert Tiler(reach, approximate=True).margin == 16


def test_a_tile_takes_at_most_the_memory_that_is_said():
    esrgan = Reach(scale=4, margin=349, live=2051)
    for sizes in ([], [(720, 1280)], [(1500, 4000)]):
        tiler = Tiler(esrgan, sizes=sizes)
        for size in ((720, 1280), (1500, 4000), (700, 9000)):
            shape = tiler.plan(size).shape
            assert tiler.tile_bytes(shape) <= MOST_BYTES
            assert tiler.at_once(8) == 1
    assert Tiler(Reach(scale=4, margin=19, live=819)).at_once(8) == 8
    assert Tiler(Reach(scale=4, margin=None, live=2051)).at_once(8) == 1  # of any size


def test_margins_that_leave_only_larger_tiles_are_refused_unless_one_is_asked_for():
    reach = Reach(scale=4, margin=349, live=9000)
    with pytest.raises(WholePictureTooLarge, match=r"\d GiB.*349 pixels.*approximate.*--tile 730"):
        Tiler(reach).plan((2000, 2000))
    assert Tiler(reach).plan((300, 500)).shape == (300, 500)
    assert Tiler(reach, tile=730).plan((2000, 2000)).shape == (730, 730)
    assert len(Tiler(reach, approximate=True).plan((2000, 2000)).rows) > 1


def test_small_pictures_are_filled_up_to_the_least_side():
    tiler = Tiler(Reach(scale=2, margin=8, period=4, least_side=40))
    assert tiler.padded((30, 41)) == (40, 44)
    assert tiler.plan((10, 10)).shape == (40, 40)


CASES = {
    "small": (lambda: networks.Small(scale=2), (0.0, 1.0)),
    "strided": (networks.Strided, (0.0, 1.0)),
    "gated": (networks.Gated, (0.0, 1.0)),
    "fast-srgan": (lambda: Generator(FastSRGANConfig(norm="none", depth=2, width=8)), (-1.0, 1.0)),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [(200, 168), (64, 300), (131, 66), (33, 180), (1, 1), (5, 400)])
def test_tiled_equals_untiled(name, size):
    make, (low, high) = CASES[name]
    network = made(make())
    reach = measure_reach(network, channels=3)
    if reach.period > 1:  # torch itself takes no other size
        size = tuple(max(reach.period, length // reach.period * reach.period) for length in size)
    pixels = np.random.default_rng(1).integers(0, 65536, (*size, 3), dtype=np.uint16)
    engine = TorchRunner(network, around=around_tiles((low, high), ensemble=False))
    sink = ArraySink()
    tiler = Tiler(reach, tile=96, sizes=[(1, 1), (2, 2), (3, 3)])
    restorer = Restorer(engine, engine, tiler, scale=reach.scale, channels=3, batch=3)
    restorer.run([Work(pixels=pixels, kind="rgb", sink=sink)])
    planes = torch.from_numpy(np.moveaxis(pixels.astype(np.float32) / 65535, -1, 0)[None])
    with torch.no_grad():
        restored = (network(planes * (high - low) + low) - low) / (high - low)
    want = np.moveaxis(restored[0].clamp(0, 1).numpy().astype(np.float64), 0, -1) * 65535
    # Half a level of rounding, and float32 sums in another order: 1e-6 of 65535 levels.
    assert np.abs(sink.result - want).max() <= 0.5 + 0.1


class NoMemory:
    """A runner whose device has too little of it."""

    network, platform, programs, compiles, devices = None, "cuda", frozenset(), True, 1

    def submit(self, batch, **named):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Attempting to allocate 8.00G. There are 2.00G free."
        )

    def run(self, method, batch, *, seed):
        raise NotImplementedError


def test_a_shortage_of_memory_names_the_batch_that_fits():
    reach = Reach(scale=1, margin=0, period=1, least_side=1)
    runner: Any = NoMemory()
    sink = ArraySink()
    restorer = Restorer(runner, runner, Tiler(reach, tile=96), scale=1, channels=3, batch=8)
    restorer.feed(Work(pixels=np.zeros((8, 8, 3), np.uint8), kind="rgb", sink=sink))
    restorer.flush()
    with pytest.raises(PictureError, match=r"2.00 GiB are free; --batch 2 instead of 8 may fit"):
        _ = sink.result
