"""Files that seem whole and lack some of their pixels, which decoders make black or gray."""

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import EpsImagePlugin, Image

import jaxsr
from jaxsr.data.decode import decode_rgb, is_deep, orientation_of, picture_size
from jaxsr.data.masks import read_mask
from jaxsr.data.picture_file import UnreadablePicture
from jaxsr.restoration.pictures import read_picture

H, W = 40, 33
READERS = (decode_rgb, read_picture, read_mask)


@pytest.fixture(scope="module")
def noise():
    return np.random.default_rng(7).integers(1, 255, (H, W, 3), dtype=np.uint8)


def png(content: bytes, *, depth=8, colour=2, interlaced=0, height=H) -> bytes:
    """A PNG whose compressed stream unpacks to these rows."""
    stream = zlib.compress(content)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", W, height, depth, colour, 0, 0, interlaced)),
        *([(b"PLTE", bytes(range(256)) * 3)] if colour == 3 else []),
        (b"IDAT", stream[:9]),
        (b"IDAT", stream[9:]),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def refused(path, data: bytes, match="truncated", readers=READERS) -> None:
    path.write_bytes(data)
    for read in readers:
        with pytest.raises(UnreadablePicture, match=match) as caught:
            read(path)
        assert "\n" not in str(caught.value)


KINDS = [(8, 0, 1), (8, 2, 3), (8, 6, 4), (8, 4, 2), (16, 0, 1), (16, 2, 3), (1, 0, 1), (4, 3, 1)]


@pytest.mark.parametrize(("depth", "colour", "channels"), KINDS)
def test_a_png_whose_stream_unpacks_to_fewer_rows(tmp_path, depth, colour, channels):
    row = 1 + (W * depth * channels + 7) // 8
    values = np.random.default_rng(depth).integers(1, 255, (H, row), dtype=np.uint8)
    values[:, 0] = 0  # no filter
    path = tmp_path / "a.png"
    path.write_bytes(png(values.tobytes(), depth=depth, colour=colour))
    assert decode_rgb(path).shape == (*read_picture(path).pixels.shape[:2], 3) == (H, W, 3)
    for missing in (1, H // 2, H - 1):
        short = values[: H - missing].tobytes()
        match = f"unpack to {len(short):,} of {H * row:,} bytes|file is truncated"  # or Pillow's
        refused(path, png(short, depth=depth, colour=colour), match)
    # A stream that is cut and not closed.
    whole = png(values.tobytes(), depth=depth, colour=colour)
    refused(path, whole[: len(whole) // 2] + whole[-12:], "(?i)truncated|broken|chunk")


def test_an_interlaced_png_whose_stream_unpacks_to_fewer_rows(tmp_path, noise):
    starts = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2))
    rows = [r for x, y, dx, dy in (*starts, (0, 1, 1, 2)) for r in noise[y::dy, x::dx]]
    path = tmp_path / "a.png"
    content = [b"\0" + row.tobytes() for row in rows]
    path.write_bytes(png(b"".join(content), interlaced=1))
    np.testing.assert_array_equal(decode_rgb(path), noise)
    for missing in (1, 7, 30):
        refused(path, png(b"".join(content[:-missing]), interlaced=1))


@pytest.mark.parametrize("height", [1, H])
def test_a_black_png_is_whole(tmp_path, height):
    path = tmp_path / "a.png"
    path.write_bytes(png(bytes(height * (1 + W * 3)), height=height))
    for read in READERS:
        read(path)
    # Wrong sums behind the last pixel change nothing of it.
    path.write_bytes(png(bytes(height * (1 + W * 3)) + b"more", height=height))
    assert not decode_rgb(path).any()


JPEGS: list[dict[str, Any]] = [{}, {"progressive": True}, {"restart_marker_rows": 1}]


@pytest.mark.parametrize("options", JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_that_is_closed_early(tmp_path, noise, options, mode):
    pixels = np.repeat(np.repeat(noise, 4, 0), 4, 1)
    out = io.BytesIO()
    thumbnail = b"\xff\xe5\0\x06\xff\xd9\xff\xd9"  # an end marker that is not the image's
    Image.fromarray(pixels).convert(mode).save(out, format="JPEG", extra=thumbnail, **options)
    whole, path = out.getvalue(), tmp_path / "a.jpg"
    path.write_bytes(whole)
    assert decode_rgb(path).shape == pixels.shape
    start = whole.index(b"\xff\xda")  # of the first scan
    length = whole.find(b"\xff\xc4", start) - start  # of the first of a progressive file
    length = length if length > 0 else len(whole) - start
    # Blocks of a progressive file that border on missing ones are smoothed: no longer plain gray.
    for part in (0.3, 0.6, 0.9)[: 2 if "progressive" in options else 3]:
        cut = whole[: start + int(part * length)].rstrip(b"\xff")
        refused(path, cut, "truncated")
        refused(path, cut + b"\xff\xd9")
        refused(path, cut + b"\xff\xd9" + b"notes behind the image", "truncated")


def test_a_gray_jpeg_is_whole(tmp_path):
    for mode, gray in (("RGB", (128, 128, 128)), ("L", 128), ("CMYK", (127, 127, 127, 127))):
        for options in JPEGS:
            Image.new(mode, (W, H), gray).save(tmp_path / "a.jpg", **options)
            assert np.ptp(read_picture(tmp_path / "a.jpg").pixels) == 0
            decode_rgb(tmp_path / "a.jpg")


def with_tag(data: bytes, tag: int, *, count: int | None = None, last: int | None = None) -> bytes:
    """A little-endian TIFF with another count of a tag's values, or another last value."""
    changed = bytearray(data)
    (directory,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, directory)
    for at in range(directory + 2, directory + 2 + 12 * entries, 12):
        name, kind, number, offset = struct.unpack_from("<HHII", data, at)
        if name == tag:
            form, size = {3: ("<H", 2), 4: ("<I", 4)}[kind]
            first = offset if number * size > 4 else at + 8
            if last is not None:
                struct.pack_into(form, changed, first + (number - 1) * size, last)
            if count is not None:
                struct.pack_into("<I", changed, at + 4, number + count)
    return bytes(changed)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("layout", ["rgb", "rgb16", "planes", "planes16", "gray16", "gray-alpha16"])
def test_a_tiff_of_fewer_strips(tmp_path, noise, layout, compression, tiled):
    pixels = noise.astype(np.uint16) * 257 if "16" in layout else noise
    options: Any = {"photometric": "rgb" if "gray" not in layout else "minisblack"}
    if "planes" in layout:
        pixels, options["planarconfig"] = np.moveaxis(pixels, -1, 0).copy(), "separate"
    elif "gray" in layout:
        pixels = pixels[..., :2].copy() if "alpha" in layout else pixels[..., 0].copy()
        options |= {"extrasamples": ["unassalpha"]} if "alpha" in layout else {}
    options |= {"tile": (16, 16)} if tiled else {"rowsperstrip": 8}
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels, compression=compression, **options)
    whole = path.read_bytes()
    readers = READERS[: 3 if layout in ("rgb", "rgb16", "gray16") else 2]
    for read in readers[:2]:
        read(path)
    offsets, lengths = (324, 325) if tiled else (273, 279)
    word = "tiles" if tiled else "strips"
    refused(path, with_tag(whole, offsets, count=-1), f"of .* {word}|decod", readers)
    empty = with_tag(with_tag(whole, offsets, last=0), lengths, last=0)
    refused(path, empty, f"of .* {word}", readers)
    refused(path, with_tag(whole, 257, last=H + 24), f"of .* {word}", readers)


def test_a_tiff_whose_jpeg_strip_is_cut(tmp_path, noise):
    path = tmp_path / "a.tif"
    Image.fromarray(noise).save(path, compression="jpeg", strip_size=1000)
    whole = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        half = file.pages.first.databytecounts[-1] // 2
        count = len(file.pages.first.databytecounts)
    decode_rgb(path)
    refused(path, with_tag(whole, 279, last=half), f"truncated: it has {count - 1} of {count}")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n{} loop\n%%EOF\n"


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.eps"])
def test_a_program_under_the_name_of_a_picture_does_not_run(tmp_path, monkeypatch, name):
    """Pillow has Ghostscript run PostScript."""
    ran = tmp_path / "ran"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # not looked for yet
    (tmp_path / name).write_bytes(EPS)
    for read in (*READERS, picture_size, orientation_of):
        with contextlib.suppress(UnreadablePicture):
            read(tmp_path / name)
    assert not is_deep(tmp_path / name) and not ran.exists()
    refused(tmp_path / name, EPS, match="not a")


def test_pictures_are_opened_in_one_place():
    root = Path(jaxsr.__file__).parent
    places = [path for path in root.rglob("*.py") if "Image.open(" in path.read_text()]
    assert [path.name for path in places] == ["picture_file.py"]
