"""Copies of one photo, as Pillow writes them, among other photos of equal names."""

import numpy as np
import pytest
from PIL import Image

from jaxsr.data.clips import Clips
from jaxsr.data.host_cache import PixelCache
from jaxsr.data.photos import open_training_photos
from jaxsr.data.same_photos import same_photos

COUNT = 70  # more than are compared at once


def stars(seed):
    draw = np.random.default_rng(seed)
    pixels = draw.poisson(3, (64, 64, 3)).astype(np.uint8)
    pixels[draw.integers(0, 64, 15), draw.integers(0, 64, 15)] = draw.integers(100, 255, (15, 1))
    return Image.fromarray(pixels)


def fog(seed):
    """Low contrast, around one level."""
    pixels = 200 + np.random.default_rng(seed).normal(0, 4, (8, 8, 3)).round()
    return Image.fromarray(pixels.astype(np.uint8)).resize((96, 64), Image.Resampling.BICUBIC)


def flat(seed):
    return Image.new("RGB", (40, 40), (seed, seed, 2 * seed))


def photo(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    return Image.fromarray(pixels).resize((64, 64), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("make", [stars, fog, flat, photo])
def test_a_photo_in_other_formats_and_sizes_is_found_among_others(make, tmp_path):
    paths, expected = {}, {}

    def save(image, name, original=None, **options):
        paths[name] = tmp_path / name
        paths[name].parent.mkdir(exist_ok=True)
        image.save(paths[name], **options)
        if original is not None:
            expected[name] = original

    for seed in range(COUNT):
        save(make(seed), f"{seed}/stack.png")
    for seed in range(0, COUNT, 7):
        image, original = make(seed), f"{seed}/stack.png"
        half = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
        save(image, f"{seed}/stack.bmp", original)
        save(image, f"{seed}/stack.webp", original, lossless=True)
        if make is not flat:  # JPEG's rounding makes another colour
            save(image, f"{seed}/Stack.jpg", original, quality=95)
        save(half, f"half{seed}/stack.png", original)
        save(image, f"{seed}/other.png", original)  # the same bytes under another name
    assert same_photos(paths, PixelCache(0)) == expected


def test_dark_photos_of_equal_names_are_held_out_and_validated_on(tmp_path):
    for seed in range(20):
        (tmp_path / "data" / f"night{seed}").mkdir(parents=True)
        stars(seed).save(tmp_path / "data" / f"night{seed}" / "stack.png")
    (tmp_path / "val").mkdir()
    stars(100).save(tmp_path / "val" / "stack.png")
    parts = open_training_photos(tmp_path / "data", None, crop=16, held_out=0.3)
    assert sum(map(len, parts)) == 20
    parts = open_training_photos(tmp_path / "data", tmp_path / "val", crop=16)
    assert [*map(len, parts)] == [20, 1]


def test_clips_whose_frames_have_equal_names_are_opened_without_decoding(tmp_path, monkeypatch):
    for clip in range(3):
        (tmp_path / str(clip)).mkdir()
        for frame in range(2):
            photo(clip).save(tmp_path / str(clip) / f"im{frame}.png")

    def refused(*args):
        raise AssertionError("decoded")

    monkeypatch.setattr("jaxsr.data.same_photos.decode_rgb", refused)
    monkeypatch.setattr("jaxsr.data.photos.decode_rgb", refused)
    assert len(Clips(tmp_path, frames=2, crop=16)) == 3


def page(seed):
    """Lines of words between margins: all pages have one layout."""
    draw = np.random.default_rng(seed)
    pixels = np.full((440, 310), 255, np.uint8)
    for top in range(35, 400, 7):
        left = 30
        while left < 260:
            width = int(draw.integers(6, 30))
            ink = draw.random((5, width)) < 0.2
            pixels[top : top + 5, left : left + width][ink] = 0
            left += width + 4
    return Image.fromarray(pixels).convert("RGB")


def test_pages_of_one_name_are_told_apart(tmp_path):
    for number in range(6):
        folder = tmp_path / f"book{number % 2}"
        folder.mkdir(exist_ok=True)
        page(number).save(folder / f"page_{number // 2:03}.png")
    parts = open_training_photos(tmp_path / "book0", tmp_path / "book1", crop=96)
    assert [*map(len, parts)] == [3, 3]
