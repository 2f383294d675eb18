"""Which shipped weights a picture gets: by Pillow's JPEG files, and what they leave in pixels."""

import io
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxsr import restore
from jaxsr.data.photos import open_training_photos
from jaxsr.errors import InputError, MissingFileError
from jaxsr.models import weight_sources
from jaxsr.models.load import load_model
from jaxsr.restoration.config import included_enlargers
from jaxsr.restoration.pictures import read_picture
from jaxsr.restoration.shipped import choose, shows_jpeg


@pytest.fixture(scope="module")
def photos():
    """Never JPEGs: photos of half their size."""
    training = open_training_photos(None, None, crop=96)[0]
    return [training.read(index)[::2, ::2] for index in range(4)]


@pytest.fixture
def two_enlargers(tmp_path, monkeypatch):
    """The shipped file, and beside it one of other weights."""
    folder = tmp_path / "package"
    (folder / "weights").mkdir(parents=True)
    shipped = resources.files("jaxsr").joinpath("weights", weight_sources.SHIPPED["clean"])
    for name in weight_sources.SHIPPED.values():
        (folder / "weights" / name).write_bytes(Path(str(shipped)).read_bytes())
    monkeypatch.setattr(weight_sources.resources, "files", lambda package: folder)


def _file(pixels, name="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, name, **options)
    return file


@pytest.mark.parametrize("quality", [30, 75, 90, 95])
def test_traces_of_jpeg_are_seen_wherever_a_crop_begins(photos, quality):
    for photo in photos:
        decoded = np.asarray(Image.open(_file(photo, quality=quality)))
        assert shows_jpeg(decoded)
        assert shows_jpeg(decoded[3:, 5:])
        assert shows_jpeg(np.dstack([decoded, np.full(decoded.shape[:2], 255, np.uint8)]))


def test_other_pictures_show_none(photos):
    for photo in photos:
        assert not shows_jpeg(photo)
        small = Image.fromarray(np.asarray(Image.open(_file(photo, quality=60))))
        shrunk = small.resize((small.width // 2, small.height // 2), Image.Resampling.BICUBIC)
        assert not shows_jpeg(np.asarray(shrunk))
    noise = np.random.default_rng(0).integers(0, 256, (40, 33, 1), np.uint8)
    flat = np.full((64, 64, 3), 9, np.uint8)
    bars = np.repeat(np.repeat(noise[:8, :8], 8, 0), 8, 1)  # pixel art on the grid of blocks
    for picture in (noise, flat, noise[:20], photos[0].astype(np.uint16) * 257):
        assert not shows_jpeg(picture)
    assert isinstance(shows_jpeg(bars), bool)


@pytest.mark.parametrize(("scale", "end"), [(4, ""), (2, "_x2")])
def test_files_say_it_themselves(photos, tmp_path, scale, end):
    for name, options, word in (
        ("a.jpg", {"format": "JPEG", "quality": 100}, "photo"),
        ("b.webp", {"format": "WEBP", "quality": 100}, "photo"),
        ("c.webp", {"format": "WEBP", "lossless": True}, "clean"),
        ("d.png", {"format": "PNG"}, "clean"),
    ):
        Image.fromarray(photos[0]).save(tmp_path / name, **options)
        assert choose(read_picture(tmp_path / name), included_enlargers(scale)) == word + end, name


@pytest.mark.usefixtures("two_enlargers")
def test_the_command_takes_one_for_each_file(photos, tmp_path, capsys):
    small = photos[0][:40, :40]
    Image.fromarray(small).save(tmp_path / "a.jpg", quality=50)
    Image.fromarray(small).save(tmp_path / "b.png")
    words = [str(tmp_path / "a.jpg"), str(tmp_path / "b.png"), "--engine", "torch"]
    assert restore.main([*words, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "jaxsr's own, photo for 1 of 2 files" in told
    assert "jaxsr's own, clean for 1 of 2 files" in told
    assert "weights are chosen per file: photo for JPEG artefacts" in told
    (tmp_path / "truth").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(photos[0][:160, :160]).save(tmp_path / "truth" / name)
    report = ["--truth", str(tmp_path / "truth"), "--out", str(tmp_path / "out")]
    assert restore.main([*words, *report]) == 0
    figures = json.loads((tmp_path / "out" / "report" / "figures.json").read_text())
    models = {row["name"]: row["model"] for row in figures["pictures"]}
    assert models == {"a.jpg": "jaxsr's own, photo", "b.png": "jaxsr's own, clean"}
    assert figures["model"] == "jaxsr's own, photo; jaxsr's own, clean"
    assert restore.main([*words, "--model", "clean", "--out", str(tmp_path / "again")]) == 0
    assert "model: jaxsr's own, clean, RGB ×4" in capsys.readouterr().out
    for name in ("a.jpg", "b.png"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    arrays = restore.restore([small, np.asarray(Image.open(tmp_path / "a.jpg"))], engine="torch")
    assert [array.shape for array in arrays] == [(160, 160, 3)] * 2
    assert restore.main([*words, "--model", "auto", "--model-options", '{"a": 1}']) == 2
    assert "--model auto takes jaxsr's own weights" in capsys.readouterr().err


def test_a_scale_chooses_among_the_weights_of_that_scale(photos, tmp_path, capsys):
    small = photos[0][:40, :40]
    Image.fromarray(small).save(tmp_path / "a.jpg", quality=50)
    Image.fromarray(small).save(tmp_path / "b.png")
    words = [str(tmp_path / "a.jpg"), str(tmp_path / "b.png"), "--engine", "torch"]
    assert restore.main([*words, "--scale", "2", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "jaxsr's own, photo_x2 for 1 of 2 files, RGB ×2" in printed
    assert "jaxsr's own, clean_x2 for 1 of 2 files, RGB ×2" in printed
    assert "--model clean_x2 or photo_x2 takes one for all" in " ".join(printed.split())
    for name, word in {"a.jpg": "photo_x2", "b.png": "clean_x2"}.items():
        options = ["--engine", "torch", "--model", word, "--out", str(tmp_path / word)]
        assert restore.main([str(tmp_path / name), *options]) == 0
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / word / name).read_bytes()
    array = restore.restore(small, scale=2, engine="torch")
    assert np.array_equal(array, np.asarray(Image.open(tmp_path / "out" / "b.png")))
    capsys.readouterr()
    assert restore.main([*words, "--scale", "2", "--model", "clean"]) == 2
    assert "scale=2 chooses among included weights, and the model has" in capsys.readouterr().err
    with pytest.raises(InputError, match="scale=2 chooses among included weights"):
        restore.restore(small, "photo", scale=2)


def test_a_word_whose_weights_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(weight_sources.resources, "files", lambda package: tmp_path)
    with pytest.raises(MissingFileError, match="has no weights 'photo'"):
        load_model("photo")
