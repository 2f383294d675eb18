"""Folders as users have them: nested, mixed, damaged. Every complaint must be one clear line."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from jaxsr.data.built_in_photos import BUILT_IN_TRAINING, BUILT_IN_VALIDATION
from jaxsr.data.photos import open_photos, open_training_photos
from jaxsr.data.picture_file import ChangedFileError


def _save(path: Path, height: int = 40, width: int = 50, seed: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


SIZES = {"a.png": (40, 50), "b.png": (30, 39)}


def _truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _complaint(folder: Path, **options: Any) -> str:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        open_photos(folder, **dict[str, Any](crop=32) | options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_photos_are_found_at_any_depth_in_a_fixed_order(tmp_path):
    b = _save(tmp_path / "b.png", seed=1)
    a = _save(tmp_path / "x" / "y" / "a.png", 64, 48, seed=2)
    _save(tmp_path / "C.PNG", seed=3)
    (tmp_path / "labels.json").write_text("{}")
    (tmp_path / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (tmp_path / "._b.png").write_bytes(b"\0\5\26\7")  # what macOS leaves on foreign disks
    photos = open_photos(tmp_path, crop=32)
    assert photos.names == ("C.PNG", "b.png", "x/y/a.png")
    assert photos.sizes.tolist() == [[40, 50], [40, 50], [64, 48]]
    np.testing.assert_array_equal(photos.read(1), b)
    np.testing.assert_array_equal(photos.read(2), a)
    assert photos.nbytes == sum(photos.read(i).nbytes for i in range(3))
    assert not photos.read(0).flags.writeable


def test_links_are_followed_once(tmp_path):
    _save(tmp_path / "real" / "a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    assert len(open_photos(tmp_path / "data", crop=32)) == 1


def test_no_folder(tmp_path):
    text = _complaint(tmp_path / "typo")
    assert "no folder" in text and "typo" in text and "give the path" in text


def test_a_file_for_a_folder(tmp_path):
    _save(tmp_path / "a.png")
    assert "is a file, not a folder" in _complaint(tmp_path / "a.png")


@pytest.mark.parametrize("on_bad_file", ["error", "skip"])
def test_no_picture(tmp_path, on_bad_file):
    (tmp_path / "notes.txt").write_text("nothing here")
    text = _complaint(tmp_path, on_bad_file=on_bad_file)
    assert f"no image in {tmp_path}" in text and "give a folder" in text


def test_videos_say_how_their_frames_become_images(tmp_path, caplog):
    for number in range(5):
        (tmp_path / f"{number}.mp4").write_bytes(b"a film")
    assert "no image in" in _complaint(tmp_path)
    frames = "a video: write its frames into a folder with ffmpeg -i VIDEO FOLDER/%06d.png"
    (line,) = caplog.messages
    assert line.endswith(f"2.mp4 and 2 more: {frames}")
    assert _complaint(tmp_path / "0.mp4").endswith(f"0.mp4 is {frames}")


BAD = {
    "zero.png": (lambda p: p.write_bytes(b""), "zero bytes"),
    "text.png": (lambda p: p.write_text("hello " * 100), "not an image"),
    "cut.jpg": (lambda p: (_save(p, 200, 300), _truncate(p)), "truncated"),
    "cut.png": (lambda p: (_save(p, 200, 300), _truncate(p)), ""),  # Pillow's wording varies
    "small.png": (lambda p: _save(p, 40, 31), "31×40 px (width×height), less than crop=32"),
    "folder.png": (lambda p: p.symlink_to(p.parent / "gone.png"), "no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_bad_file_is_named_with_its_reason(tmp_path, name):
    for i in range(3):
        _save(tmp_path / f"good{i}.png", seed=i)
    make, reason = BAD[name]
    make(tmp_path / name)
    text = _complaint(tmp_path)
    assert "1 of 4 images" in text and f"{name} (" in text and reason in text
    assert "--on-bad-file skip" in text


def test_few_levels_of_deep_samples_pass_with_a_line(tmp_path, caplog):
    gray = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint16)
    for name, gain in (("whole", 257), ("camera", 8)):
        Image.fromarray(gray * gain).save(tmp_path / f"{name}.png")
    open_photos(tmp_path, crop=32)
    assert "1 of the images" in caplog.text and "such as camera.png: samples" in caplog.text


def test_skip_counts_and_names(tmp_path, caplog):
    _save(tmp_path / "good.png")
    for name, (make, _) in BAD.items():
        make(tmp_path / name)
    with caplog.at_level(logging.WARNING):
        photos = open_photos(tmp_path, crop=32, on_bad_file="skip")
    assert photos.names == ("good.png",)
    assert {file.name for file in photos.skipped} == set(BAD)
    assert len(caplog.messages) == 1
    assert all(name in caplog.text for name in BAD) and f"skipped {len(BAD)} bad" in caplog.text


def test_only_bad_files_is_an_error_in_skip_mode_too(tmp_path):
    _save(tmp_path / "small.png", 8, 8)
    text = _complaint(tmp_path, on_bad_file="skip")
    assert "no image" in text and "skipped 1" in text and "small.png" in text


def test_a_long_list_is_cut_short(tmp_path):
    for i in range(100):
        (tmp_path / f"{i:03}.png").write_bytes(b"")
    text = _complaint(tmp_path)
    assert "100 of 100" in text and "and 92 more" in text and len(text) < 700


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_files_and_folders_without_permission(tmp_path, monkeypatch):
    _save(tmp_path / "good.png")
    _save(tmp_path / "secret.png")
    _save(tmp_path / "closed" / "a.png")
    (tmp_path / "secret.png").chmod(0)
    (tmp_path / "closed").chmod(0)
    if os.geteuid() == 0:  # root may read everything: stand in for the system's answer
        open_file, scandir = os.open, os.scandir

        def refuse_open(path, *options, **named):
            if os.path.basename(path) == "secret.png":
                raise PermissionError(13, "Permission denied", str(path))
            return open_file(path, *options, **named)

        def refuse_list(path):
            if os.path.basename(path) == "closed":
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "open", refuse_open)
        monkeypatch.setattr(os, "scandir", refuse_list)
    try:
        text = _complaint(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert "2 of 3 images" in text
    assert "secret.png (permission denied)" in text
    assert "closed (folder cannot be listed: permission denied)" in text


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        with open(path, "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert "caf" in _complaint(tmp_path).encode("utf-8").decode()


def test_header_check_finds_small_files_but_not_truncated_ones(tmp_path):
    _save(tmp_path / "cut.png", 200, 300)
    _truncate(tmp_path / "cut.png")
    photos = open_photos(tmp_path, crop=32, check="header")
    assert photos.sizes.tolist() == [[200, 300]]
    with pytest.raises(RuntimeError, match=r"cut\.png was readable"):
        photos.read(0)
    assert "300×200 px" in _complaint(tmp_path, crop=256, check="header")


def test_a_crop_that_is_not_kept_is_that_of_the_whole_photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 4), np.uint8)
    picture = Image.fromarray(pixels)
    turned = Image.Exif()
    turned[0x0112] = 6
    picture.convert("RGB").save(tmp_path / "turned.jpg", exif=turned, quality=90)
    picture.save(tmp_path / "transparent.png")
    picture.convert("P").save(tmp_path / "palette.png", transparency=3)
    cv2.imwrite(str(tmp_path / "deep.png"), pixels[..., :3].astype(np.uint16) * 257)
    cached = open_photos(tmp_path, crop=32)
    alone = open_photos(tmp_path, crop=32, cache_bytes=0)
    assert cached.names == alone.names and len(cached) == 4
    for index in range(4):
        expected = cached.read(index)[9:41, 7:39]
        np.testing.assert_array_equal(alone.read_crop(index, top=9, left=7, side=32), expected)
        np.testing.assert_array_equal(cached.read_crop(index, top=9, left=7, side=32), expected)
    picture.resize((60, 60)).save(tmp_path / "transparent.png")
    index = alone.names.index("transparent.png")
    with pytest.raises(ChangedFileError, match=r"was 48×64 px .* is 60×60 now"):
        alone.read_crop(index, top=0, left=0, side=32)


def test_a_file_that_changes_after_the_check(tmp_path):
    _save(tmp_path / "a.png")
    photos = open_photos(tmp_path, crop=32, cache_bytes=0)
    _save(tmp_path / "a.png", 60, 60)
    with pytest.raises(RuntimeError, match=r"a\.png was 40×50 px .* is 60×60 now"):
        photos.read(0)
    (tmp_path / "a.png").unlink()
    with pytest.raises(RuntimeError, match=r"a\.png was readable .* no such file"):
        photos.read(0)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"crop": 0}, "crop"), ({"on_bad_file": "ignore"}, "skip"), ({"check": "no"}, "decode")],
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_are_checked(tmp_path, option, message):
    assert message in _complaint(tmp_path, **option)


def test_split_holds_out_by_name_alone(tmp_path):
    for i in range(60):
        _save(tmp_path / f"{i}.png", 8, 8, seed=i)
    train, validation = open_photos(tmp_path, crop=8).split(0.25)
    assert set(train.names).isdisjoint(validation.names)
    assert len(train) + len(validation) == 60
    assert 5 <= len(validation) <= 25  # binomial(60, 1/4) leaves this about once in a thousand
    for i in range(60, 80):  # photos that come later move none of the old ones
        _save(tmp_path / f"{i}.png", 8, 8, seed=i)
    later, later_held = open_photos(tmp_path, crop=8).split(0.25)
    assert set(train.names) <= set(later.names) and set(validation.names) <= set(later_held.names)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_photos_are_split_too(tmp_path, count):
    for i in range(count):
        _save(tmp_path / f"{i}.png", 8, 8, seed=i)
    train, validation = open_photos(tmp_path, crop=8).split(0.1)
    assert len(validation) >= 1 and len(train) >= 1 and len(train) + len(validation) == count


def test_one_photo_cannot_be_split(tmp_path):
    _save(tmp_path / "a.png", 8, 8)
    with pytest.raises(ValueError, match=r"1 photo.*too few to hold out.*--val"):
        open_photos(tmp_path, crop=8).split(0.1)


@pytest.mark.parametrize("held_out", [0, 1, -0.1, 1.5, float("nan")])
@pytest.mark.usefixtures("unchecked_types")
def test_fraction_is_checked(tmp_path, held_out):
    _save(tmp_path / "a.png", 8, 8)
    with pytest.raises(ValueError, match="held_out must be a fraction"):
        open_photos(tmp_path, crop=8).split(held_out)


def test_copies_stay_on_one_side(tmp_path):
    for i in range(30):
        _save(tmp_path / f"{i}.png", 8, 8, seed=i)
        shutil.copy(tmp_path / f"{i}.png", tmp_path / f"copy of {i}.png")
    train, validation = open_photos(tmp_path, crop=8).split(0.3)
    pixels = [{train.read(i).tobytes() for i in range(len(train))}]
    pixels += [{validation.read(i).tobytes() for i in range(len(validation))}]
    assert pixels[0].isdisjoint(pixels[1])


def test_built_in_photos():
    train, validation = open_training_photos(None, None, crop=96)
    assert train.names == tuple(sorted(BUILT_IN_TRAINING))
    assert validation.names == tuple(sorted(BUILT_IN_VALIDATION))
    assert train.nbytes < 20e6
    for photos in (train, validation):
        for i in range(len(photos)):
            assert photos.read(i).shape == (*photos.sizes[i], 3)


def test_built_in_photos_are_smaller_than_a_large_crop():
    with pytest.raises(ValueError, match="crop=1000") as caught:
        open_training_photos(None, None, crop=1000)
    assert "astronaut" in str(caught.value)


def test_a_folder_with_and_without_a_validation_folder(tmp_path):
    for i in range(6):
        _save(tmp_path / "data" / f"{i}.png", seed=i)
        _save(tmp_path / "val" / f"{i}.png", 16, 16, seed=100 + i)
    train, validation = open_training_photos(tmp_path / "data", None, crop=32)
    assert len(train) + len(validation) == 6
    train, validation = open_training_photos(tmp_path / "data", tmp_path / "val", crop=32)
    assert len(train) == len(validation) == 6
    assert validation.cache is train.cache
    train, validation = open_training_photos(None, tmp_path / "val", crop=32)
    assert set(BUILT_IN_TRAINING) <= set(train.names)
    with pytest.raises(ValueError, match=r"also trains on.*without common photos"):
        open_training_photos(tmp_path, tmp_path / "val", crop=8)


def test_a_folder_and_the_built_in_photos_together(tmp_path):
    for i in range(6):
        _save(tmp_path / "data" / f"{i}.png", seed=i)
        _save(tmp_path / "val" / f"{i}.png", 16, 16, seed=100 + i)
    alone, alone_held = open_training_photos(tmp_path / "data", None, crop=32)
    train, validation = open_training_photos(tmp_path / "data", None, crop=32, built_in=True)
    assert train.names == (*alone.names, *sorted(BUILT_IN_TRAINING))
    assert validation.names == (*alone_held.names, *sorted(BUILT_IN_VALIDATION))
    assert train.source == f"{tmp_path / 'data'} and the built-in photos"
    last = len(train) - 1
    assert train.read(last).shape == (*train.sizes[last], 3)
    train, validation = open_training_photos(
        tmp_path / "data", tmp_path / "val", crop=32, built_in=True
    )
    assert len(train) == 6 + len(BUILT_IN_TRAINING)
    assert validation.source == str(tmp_path / "val")
    # Nothing to add them to: they are all there is.
    assert open_training_photos(None, None, crop=32, built_in=True)[0].names == tuple(
        sorted(BUILT_IN_TRAINING)
    )


def test_photos_at_several_sizes(tmp_path):
    pixels = {name: _save(tmp_path / name, *size) for name, size in SIZES.items()}
    photos = open_photos(tmp_path, crop=20).at_fractions((1.0, 0.5), crop=20)
    assert photos.names == ("a.png", "b.png", "a.png")  # half of b is smaller than a crop
    assert photos.sizes.tolist() == [[40, 50], [30, 39], [20, 25]]
    np.testing.assert_array_equal(photos.read(0), pixels["a.png"])
    half = Image.fromarray(pixels["a.png"]).resize((25, 20), Image.Resampling.BICUBIC)
    for _ in range(2):  # decoded, then from memory, beside the photo itself
        np.testing.assert_array_equal(photos.read(2), half)
        np.testing.assert_array_equal(photos.read(0), pixels["a.png"])
    assert photos.subset([2]).read(0).shape == (20, 25, 3)


@pytest.mark.parametrize("fractions", [(), (0.0,), (1.0, 1.5), (-0.5,)])
def test_fractions_are_checked(tmp_path, fractions):
    _save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="fractions must be one or more numbers above 0"):
        open_photos(tmp_path, crop=8).at_fractions(fractions, crop=8)


def test_importing_needs_neither_torch_nor_a_device():
    code = (
        "import sys, jaxsr.data.photos, jaxsr.data.batches; "
        "assert 'torch' not in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": "."})


def test_one_photo_with_two_endings_lies_on_one_side_of_the_split(tmp_path):
    import cv2

    for number in range(12):
        coarse = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        photo = cv2.resize(coarse, (64, 64), interpolation=cv2.INTER_CUBIC)
        for name in (f"png/{number}.png", f"jpg/{number}.jpg", f"jpg/{number}.webp"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.fromarray(photo).save(tmp_path / name)
    train, validation = open_training_photos(tmp_path, None, crop=16, held_out=0.4)
    stems = [
        {name.split("/")[1].split(".")[0] for name in side.names} for side in (train, validation)
    ]
    assert not stems[0] & stems[1]
    assert len(train) + len(validation) == 36 and len(validation) % 3 == 0
    with pytest.raises(ValueError, match=r"also trains on, such as 0.jpg \(the same as 0.png\)"):
        open_training_photos(tmp_path / "png", tmp_path / "jpg", crop=16)
