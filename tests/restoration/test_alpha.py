"""Invisible pixels, and what the progress counts."""

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from jaxsr.restoration.colour import fill_hidden
from jaxsr.restoration.progress import Progress, short
from jaxsr.restore import main, restore
from tests.restoration import networks


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_invisible_pixels_get_the_nearest_colour(dtype):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, np.iinfo(dtype).max, (23, 31, 4), dtype)
    pixels[..., 3] *= generator.random((23, 31)) < 0.2
    hidden = pixels[..., 3] == 0
    distance = np.asarray(ndimage.distance_transform_edt(hidden))
    filled = fill_hidden(pixels)
    np.testing.assert_array_equal(filled[~hidden], pixels[~hidden])
    np.testing.assert_array_equal(filled[..., 3], pixels[..., 3])
    visible = {tuple(colour) for colour in pixels[~hidden][:, :3]}
    assert {tuple(colour) for colour in filled[hidden][:, :3]} <= visible
    near = hidden & (distance == 1)  # several may be as near: one of the four neighbours
    for y, x in zip(*near.nonzero(), strict=True):
        around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
        colours = [tuple(pixels[p][:3]) for p in around
                   if 0 <= p[0] < 23 and 0 <= p[1] < 31 and not hidden[p]]  # fmt: skip
        assert tuple(filled[y, x, :3]) in colours


def test_all_or_nothing_hidden_stays():
    clear = np.zeros((4, 5, 2), np.uint8)
    assert fill_hidden(clear) is clear
    assert fill_hidden(clear + np.uint8(1)).tolist() == (clear + 1).tolist()


@pytest.mark.parametrize("hidden", [0, 255])
def test_hidden_colour_does_not_reach_the_visible_edge(hidden):
    image = np.full((24, 24, 4), hidden, np.uint8)
    image[..., 3] = 0
    image[6:18, 6:18] = (90, 120, 60, 255)
    plain = np.full((24, 24, 3), (90, 120, 60), np.uint8)
    network = networks.Small(scale=2)
    got = np.asarray(restore(image, network, engine="torch"))
    want = np.asarray(restore(plain, network, engine="torch"))
    inside = got[..., 3] > 0
    # Away from the picture's own edge the colours are those of a plain picture.
    np.testing.assert_array_equal(got[inside][:, :3], want[inside][:, :3])


def test_pictures_that_are_refused_do_not_count(tmp_path, monkeypatch, capsys):
    import torch

    made: list[Progress] = []
    start = Progress.__init__

    def watched(self, total):
        start(self, total)
        made.append(self)

    monkeypatch.setattr(Progress, "__init__", watched)
    folder = tmp_path / "in"
    folder.mkdir()
    Image.new("RGB", (20, 10)).save(folder / "good.png")
    frames = [Image.new("RGB", (30, 30), (n, n, n)) for n in (0, 9)]
    frames[0].save(folder / "two.gif", save_all=True, append_images=frames[1:])
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(folder / "whole.png")
    content = (folder / "whole.png").read_bytes()
    (folder / "whole.png").write_bytes(content[: len(content) // 2])
    network = networks.Small(scale=2)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    words = [str(folder), "--out", str(tmp_path / "out"), "--engine", "torch"]
    words += ["--model", "tests.restoration.networks:Small", "--weights", str(tmp_path / "w.pt")]
    assert main(words) == 1
    assert "not restored: 2" in capsys.readouterr().err
    assert made[0].pixels == made[0]._total == 200


def test_small_figures_are_written_without_an_exponent():
    assert [short(x) for x in (6.4e-05, 0.0123, 0.5, 16)] == ["0.000064", "0.012", "0.5", "16.0"]
