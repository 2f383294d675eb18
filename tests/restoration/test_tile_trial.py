"""Tiles of networks whose dependence shows on large images alone, against the whole in torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxsr
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.restoration import tile_trial
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import find_model
from jaxsr.restoration.pictures import Picture, PictureError
from jaxsr.restoration.receptive_field import measure_reach
from jaxsr.restoration.restore_arrays import restore_arrays
from jaxsr.restoration.restorer import open_tile_runner
from tests.restoration import networks
from tests.restoration.test_coverage import Function


def rows_times(x, factors):
    return x * factors(torch.arange(x.shape[2])).to(x)[:, None]


def turned(function):
    return lambda x: function(x.mT).mT


def moved(x):
    """Moves pixels above 0.95 by up to 40 rows; noise of a probe has none next to its ends."""
    rows, columns = torch.meshgrid(
        torch.linspace(-1, 1, x.shape[2]), torch.linspace(-1, 1, x.shape[3]), indexing="ij"
    )
    rows = rows + torch.relu(x[:, 0] - 0.95) * 1600 / (x.shape[2] - 1)
    grid = torch.stack((columns.expand_as(rows), rows), -1)
    return F.grid_sample(x, grid, align_corners=True, padding_mode="border")


def softmax_of_all(x, constant):
    return x + 100 * torch.softmax((x * 5 + constant).flatten(2), -1).view_as(x)


def most_frequent(x):
    counts = torch.bincount((x * 255).long().clamp(0, 255).flatten(), minlength=256)
    return x * (counts.argmax() / 255)


DEPENDENCES = {
    "taps further than the image of the analysis": nn.Conv2d(3, 3, 3, padding=130, dilation=130),
    "a shift by padding": Function(
        lambda x: (x + F.pad(x, (0, 0, 150, 0))[:, :, : x.shape[2]]) / 2
    ),
    "a factor of the height": Function(lambda x: x * (x.shape[2] / 640)),
    "a factor of the width": Function(lambda x: x * (x.shape[3] / 160)),
    "a factor of the area": Function(lambda x: x * (x.shape[2] * x.shape[3] / 102400)),
    "a branch on the height": Function(lambda x: x / 2 if x.shape[2] > 300 else x),
    "a branch on the width": Function(lambda x: x / 2 if x.shape[3] > 150 else x),
    "rows from 600 on": Function(lambda x: rows_times(x, lambda rows: rows < 600)),
    "columns from 600 on": Function(turned(lambda x: rows_times(x, lambda rows: rows < 600))),
    "a period of 97 rows": Function(lambda x: rows_times(x, lambda rows: rows % 97 != 5)),
    "a softmax after a constant": Function(lambda x: softmax_of_all(x, torch.tensor(-60.0))),
    "a softmax after constants": Function(
        lambda x: softmax_of_all(x, torch.full((1, 3, 1, 1), -60.0))
    ),
    "a histogram": Function(most_frequent),
    "a movement that depends on the value": Function(moved),
}


def uneven(height, width):
    """A dark half and a bright one: means of tiles differ."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 2] //= 3
    return pixels


def by_torch(network, pixels):
    with torch.no_grad():
        result = network(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255)
    return result[0].clamp(0, 1).permute(1, 2, 0).numpy() * 255


@pytest.mark.parametrize("name", DEPENDENCES)
def test_tiles_are_not_used_where_they_differ_from_the_whole(name):
    network = DEPENDENCES[name].eval()
    pixels = uneven(640, 160)
    if "columns" in name:
        pixels = np.ascontiguousarray(pixels.transpose(1, 0, 2))
    restored = jaxsr.restore(pixels, network, tile=128, engine="torch")
    assert np.abs(restored - by_torch(network, pixels)).max() <= 0.505


def test_a_black_image_shows_them_too():
    """The first frame of a video is often black; the tiles of all others are as its are."""
    network = DEPENDENCES["rows from 600 on"]
    pictures = [np.zeros((640, 160, 3), np.uint8), uneven(640, 160)]
    results = jaxsr.restore(pictures, network, tile=128)
    for pixels, restored in zip(pictures, results, strict=True):
        assert np.abs(restored - by_torch(network, pixels)).max() <= 0.505


def test_what_has_no_tiles_after_all_is_refused_where_it_is_too_large(monkeypatch, caplog):
    network = DEPENDENCES["a factor of the height"]
    monkeypatch.setattr("jaxsr.restoration.tiling.MOST_BYTES", 600 * 160 * 4 * 48)
    with pytest.raises(PictureError, match=r"GiB.*image's height.*--tiling approximate"):
        jaxsr.restore(uneven(640, 160), network, tile=128, engine="torch")
    assert "no exact tiles" in caplog.text
    tiled = jaxsr.restore(uneven(640, 160), network, tile=128, tiling="approximate")
    assert np.shape(tiled) == (640, 160, 3)


def test_a_constant_is_no_mask_and_far_taps_are_seen():
    for name in ("a softmax after a constant", "a softmax after constants"):
        assert measure_reach(DEPENDENCES[name], channels=3).margin is None
    for name, margin in (("taps further than the image of the analysis", 130),
                         ("a shift by padding", 150)):  # fmt: skip
        assert measure_reach(DEPENDENCES[name], channels=3).margin == margin


def tile_shapes(model, pixels, **options):
    config = RestoreConfig(engine="torch", tile=64, **options)
    runner = open_tile_runner(model, config)
    restore_arrays([Picture(pixels=pixels, kind="rgb")], model, config, runner)
    return {shape[2:] for shape in runner.programs}


@pytest.mark.parametrize(
    "make", [networks.Small, networks.Strided, networks.Gated], ids=lambda make: make.__name__
)
def test_exact_tiles_are_used_once_a_longer_image_was_tried(make, monkeypatch):
    tried, agrees = [], tile_trial._agrees

    def noted(plan, axis, *rest):
        tried.append(axis)
        return agrees(plan, axis, *rest)

    monkeypatch.setattr(tile_trial, "_agrees", noted)
    model = find_model(make())
    for pixels in (uneven(200, 168), uneven(200, 168)):
        (shape,) = tile_shapes(model, pixels)
        assert max(shape) < 168
    assert tried == [0, 1]


@pytest.mark.parametrize("word", ["clean", "photo", "clean_x2", "photo_x2"])
def test_networks_that_state_their_margin_are_tiled_untried(word, monkeypatch):
    monkeypatch.setattr("jaxsr.restoration.tile_trial._agrees", None)
    model = find_model(word)
    assert model.states_its_margin
    (shape,) = tile_shapes(model, uneven(80, 150))
    assert shape[1] < 150


def test_a_users_subclass_states_nothing():
    class Own(Generator):
        pass

    small = FastSRGANConfig(norm="none", depth=2, width=8)
    assert find_model(Generator(small)).states_its_margin
    assert not find_model(Own(small)).states_its_margin
