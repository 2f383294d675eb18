"""Reading and writing picture files, against Pillow, OpenCV and tifffile."""

import dataclasses
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageCms, ImageOps

from jaxsr.data.picture_file import ENDINGS
from jaxsr.restoration.encode import write_picture
from jaxsr.restoration.encoding import Encoding
from jaxsr.restoration.notes import Notes, lost_in, with_size
from jaxsr.restoration.pictures import (
    CHANNELS,
    PictureError,
    picture_size,
    read_picture,
    upright,
)


def noise(*shape: int, deep: bool = False) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(0, 65536 if deep else 256, shape, dtype=np.uint16 if deep else np.uint8)


def encoding(kind, *, format: str, deep: bool = False, size=(9, 9), notes=None, quality=95):
    height, width = size
    return Encoding(
        format=format,
        kind=kind,
        deep=deep,
        height=height,
        width=width,
        notes=notes or Notes(format=format),
        quality=quality,
    )


def written(path: Path, pixels: np.ndarray, kind, notes: Notes, quality: int = 95) -> Path:
    bands = [
        pixels[start : start + 7] for start in range(0, len(pixels), 7)
    ]  # divide nothing evenly
    deep, size = pixels.dtype == np.uint16, pixels.shape[:2]
    spec = encoding(kind, format=notes.format, deep=deep, size=size, notes=notes, quality=quality)
    write_picture(path, bands, spec)
    return path


def profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def exif_with(orientation: int, size: tuple[int, int] | None = None) -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "A camera"
    exif[0x8769] = {0x9003: "2024:01:02 03:04:05"}
    if size:
        exif[0x0100], exif[0x0101] = size
        exif[0x8769] |= {0xA002: size[0], 0xA003: size[1]}
    return exif.tobytes().removeprefix(b"Exif\0\0")


@pytest.mark.parametrize("kind", ["gray", "gray-alpha", "rgb", "rgb-alpha", "cmyk"])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_lossless_formats_return_every_sample(tmp_path, format, deep, kind):
    if (format, kind) == ("PNG", "cmyk"):
        pytest.skip("PNG holds no CMYK")
    pixels = noise(45, 31, CHANNELS[kind], deep=deep)
    path = written(tmp_path / f"x{ENDINGS[format][0]}", pixels, kind, Notes(format=format))
    again = read_picture(path)
    assert again.kind == kind
    np.testing.assert_array_equal(again.pixels, pixels)
    others = _decoded_by_others(path, deep)
    if others is not None:
        np.testing.assert_array_equal(others.reshape(pixels.shape), pixels)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def _decoded_by_others(path: Path, deep: bool) -> np.ndarray | None:
    if path.suffix == ".tif":
        return tifffile.imread(path) if _has_tiff_codecs() else None
    if not deep:
        return np.asarray(Image.open(path))
    pixels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    if pixels.ndim == 3:
        pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]
        if Image.open(path).tile[0].args == "LA;16B":
            pixels = pixels[..., (0, 3)]
    return pixels


def _has_tiff_codecs() -> bool:
    try:
        tifffile.imread(io.BytesIO(_tiff(noise(4, 4, 3), compression="zlib", predictor=True)))
    except (ValueError, ImportError):
        return False
    return True


def _tiff(pixels: np.ndarray, **options) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, pixels, photometric=options.pop("photometric", "rgb"), **options)
    return out.getvalue()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_notes_survive(tmp_path, format):
    notes = Notes(
        format=format, exif=exif_with(6), icc=profile(), xmp=b"<x:xmpmeta/>", dpi=(300.0, 150.0)
    )
    path = written(tmp_path / f"x{ENDINGS[format][0]}", noise(20, 30, 3), "rgb", notes)
    again = read_picture(path).notes
    assert again.orientation == 6
    assert again.icc == notes.icc
    assert again.xmp == notes.xmp
    with Image.open(path) as image:
        assert image.getexif()[0x010F] == "A camera"
        assert image.getexif().get_ifd(0x8769)[0x9003] == "2024:01:02 03:04:05"
    assert again.dpi == pytest.approx((300, 150), abs=0.0127)  # whole dots a metre
    if format in ("PNG", "JPEG"):  # WebP's EXIF says the resolution, too
        assert again.exif == notes.exif


def test_jpeg_and_webp_are_near_and_lossless_webp_is_exact(tmp_path):
    smooth = np.asarray(Image.fromarray(noise(8, 8, 4)).resize((64, 48), Image.Resampling.BICUBIC))
    jpeg = written(tmp_path / "x.jpg", smooth[..., :3].copy(), "rgb", Notes(format="JPEG"))
    assert np.abs(read_picture(jpeg).pixels - smooth[..., :3].astype(int)).mean() < 2
    cmyk = written(tmp_path / "c.jpg", smooth.copy(), "cmyk", Notes(format="JPEG"))
    assert read_picture(cmyk).kind == "cmyk"
    assert np.abs(read_picture(cmyk).pixels - smooth.astype(int)).mean() < 2
    webp = written(tmp_path / "x.webp", smooth, "rgb-alpha", Notes(format="WEBP"))
    np.testing.assert_array_equal(read_picture(webp).pixels, smooth)
    assert read_picture(webp).notes.lossless
    lossy = Notes(format="WEBP", lossless=False)
    webp = written(tmp_path / "y.webp", smooth, "rgb-alpha", lossy)
    assert not read_picture(webp).notes.lossless


def _one_frame(webp: bytes) -> bytes:
    """An animation of one frame; Pillow's writer makes a still of it."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)

    size = struct.pack("<I", 29)[:3] * 2  # less 1
    content = b"WEBP" + chunk(b"VP8X", b"\x02\0\0\0" + size) + chunk(b"ANIM", bytes(6))
    content += chunk(b"ANMF", bytes(6) + size + bytes(4) + webp[12:])
    return b"RIFF" + struct.pack("<I", len(content)) + content


@pytest.mark.parametrize("lossless", [True, False])
def test_webp_is_lossless_by_the_chunk_of_its_samples(tmp_path, lossless):
    pixels, files = noise(30, 30, 3), [io.BytesIO() for _ in range(3)]
    for file, icc in zip(files, (b"", profile() + bytes(60_001), b"VP8L" * 9), strict=True):
        Image.fromarray(pixels).save(file, "WEBP", lossless=lossless, icc_profile=icc)
    path = tmp_path / "x.webp"
    for data in (*[file.getvalue() for file in files], _one_frame(files[0].getvalue())):
        path.write_bytes(data)
        picture = read_picture(path)
        assert np.array_equal(picture.pixels, pixels) == picture.notes.lossless == lossless


@pytest.mark.parametrize("deep", [False, True])
def test_a_turned_tiff_keeps_its_samples_and_its_tag(tmp_path, deep):
    pixels = noise(20, 31, 3, deep=deep)
    path = written(tmp_path / "x.tif", pixels, "rgb", Notes(format="TIFF", exif=exif_with(6)))
    again = read_picture(path)
    assert again.notes.orientation == 6 and picture_size(path) == (20, 31)
    np.testing.assert_array_equal(again.pixels, pixels)


@pytest.mark.parametrize("options", [{}, {"planarconfig": "separate"}, {"byteorder": ">"}])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_layouts(tmp_path, options, dtype):
    pixels = noise(21, 34, 3, deep=dtype == np.uint16)
    stored = np.moveaxis(pixels, -1, 0) if "planarconfig" in options else pixels
    (tmp_path / "x.tif").write_bytes(_tiff(stored, **options))
    np.testing.assert_array_equal(read_picture(tmp_path / "x.tif").pixels, pixels)


@pytest.mark.parametrize("extra", ["assocalpha", "unassalpha"])
def test_deep_gray_with_alpha_has_the_notes_of_8_bits(tmp_path, extra):
    """Pillow reads the 8-bit form, and not the 16-bit one."""
    alpha = noise(20, 30, 1, deep=True) | 0x4000
    gray = (noise(20, 30, 1, deep=True) * (alpha / 65535)).astype(np.uint16)
    xmp, deep = b"<x:xmpmeta/>", np.concatenate([gray, alpha], -1)
    tags = [(700, 1, len(xmp), xmp, True), (0xC001, 4, 1, 99, True)]
    options: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"}
    options |= {"extrasamples": [extra], "extratags": tags, "metadata": None}
    got = {}
    for pixels in (deep, (deep >> 8).astype(np.uint8)):
        data = _tiff(pixels, resolution=(300, 150), resolutionunit=2, **options)
        # tifffile writes no pointer to EXIF.
        pointer = struct.pack("<HHII", 0x8769, 4, 1, len(data))
        data = data.replace(struct.pack("<HHII", 0xC001, 4, 1, 99), pointer)
        # EXIF's directory, with one entry: ExposureProgram 2.
        (tmp_path / "a").write_bytes(data + struct.pack("<HHHII4x", 1, 0x8822, 3, 1, 2))
        got[pixels.dtype] = read_picture(tmp_path / "a")
    picture, shallow = got.values()
    assert picture.kind == shallow.kind == "gray-alpha" and picture.notes == shallow.notes
    assert (picture.notes.dpi, picture.notes.xmp) == ((300, 150), xmp)
    exif = Image.Exif()
    exif.load(picture.notes.exif or b"")
    assert exif.get_ifd(0x8769) == {0x8822: 2}
    straight = np.rint(gray * (65535 / alpha)) if extra == "assocalpha" else gray
    np.testing.assert_array_equal(picture.pixels, np.concatenate([straight, alpha], -1))


@pytest.mark.parametrize("order", ["<", ">"])  # Pillow knows one of them
def test_white_is_zero_and_float_tiffs(tmp_path, order):
    gray = noise(9, 8, deep=True)
    white_is_zero = _tiff(65535 - gray, photometric="miniswhite", byteorder=order)
    (tmp_path / "w.tif").write_bytes(white_is_zero)
    np.testing.assert_array_equal(read_picture(tmp_path / "w.tif").pixels[..., 0], gray)
    (tmp_path / "f.tif").write_bytes(_tiff(np.ones((4, 5), np.float32), photometric="minisblack"))
    with pytest.raises(PictureError, match="32-bit samples"):
        read_picture(tmp_path / "f.tif")


def test_palettes_and_bilevel(tmp_path):
    colours = Image.fromarray(noise(16, 16, 3)).quantize(200)
    colours.save(tmp_path / "p.png")
    got = read_picture(tmp_path / "p.png")
    assert got.kind == "rgb"
    np.testing.assert_array_equal(got.pixels, np.asarray(colours.convert("RGB")))
    colours.save(tmp_path / "t.png", transparency=bytes(range(200)))
    got = read_picture(tmp_path / "t.png")
    assert got.kind == "rgb-alpha"
    with Image.open(tmp_path / "t.png") as image:
        np.testing.assert_array_equal(got.pixels, np.asarray(image.convert("RGBA")))
    Image.fromarray(noise(5, 9)).convert("P").save(tmp_path / "g.gif")
    assert read_picture(tmp_path / "g.gif").kind == "gray"
    Image.fromarray(noise(5, 9)).convert("1").save(tmp_path / "b.png")
    got = read_picture(tmp_path / "b.png")
    assert got.kind == "gray"
    assert set(np.unique(got.pixels)) <= {0, 255}


def test_sixteen_bit_transparent_colour(tmp_path):
    pixels = noise(6, 5, 3, deep=True)
    writer_path = written(tmp_path / "k.png", pixels, "rgb", Notes())
    data = writer_path.read_bytes()
    key = struct.pack(">HHH", *pixels[2, 3].tolist())
    chunk = struct.pack(">I", 6) + b"tRNS" + key + struct.pack(">I", zlib.crc32(b"tRNS" + key))
    writer_path.write_bytes(data[:33] + chunk + data[33:])
    got = read_picture(writer_path)
    assert got.kind == "rgb-alpha"
    assert got.pixels[2, 3, 3] == 0 and (got.pixels[..., 3] == 0).sum() == 1
    np.testing.assert_array_equal(got.pixels[..., :3], pixels)


def test_png_text_and_gamma_stay(tmp_path):
    notes = Notes(png_chunks=((b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"Author\0me")))
    again = read_picture(written(tmp_path / "x.png", noise(4, 4, 3), "rgb", notes))
    assert again.notes.png_chunks == notes.png_chunks


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_turns_as_pillow_does(orientation):
    image = Image.fromarray(noise(5, 7, 3))
    image.getexif()[0x0112] = orientation
    want = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(upright(noise(5, 7, 3), orientation), want)


def test_exif_size_follows_the_picture():
    notes = with_size(Notes(exif=exif_with(1, (30, 20))), height=80, width=120)
    exif = Image.Exif()
    assert notes.exif is not None
    exif.load(notes.exif)
    assert (exif[0x0100], exif[0x0101]) == (120, 80)
    inner = exif.get_ifd(0x8769)
    assert (inner[0xA002], inner[0xA003]) == (120, 80)
    assert inner[0x9003] == "2024:01:02 03:04:05"
    broken = Notes(exif=b"II*\0\xff\xff\0\0")
    assert with_size(broken, height=1, width=1) == broken


def test_refusals_are_short_phrases(tmp_path):
    def refused(name: str, content: bytes, match: str, **options) -> None:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(PictureError, match=match):
            read_picture(path, **options)

    out = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(out, "PNG")
    encoded = out.getvalue()
    refused("zero.png", b"", "zero bytes")
    refused("text.png", b"this is a text\n" * 9, "not a PNG")
    refused("cut.png", encoded[: len(encoded) // 2], "truncated|broken|unexpected")
    refused("large.png", encoded, r"64×64 pixels claimed; .*--max-pixels", max_pixels=4000)
    out = io.BytesIO()
    frames = [Image.fromarray(noise(8, 8) ^ np.uint8(k)) for k in range(3)]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    refused("moving.gif", out.getvalue(), "3 frames")
    bomb = bytearray(encoded)
    bomb[16:24] = struct.pack(">II", 2**30, 2**30)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    refused("bomb.png", bytes(bomb), "--max-pixels")
    assert picture_size(tmp_path / "cut.png") == (64, 64)
    assert picture_size(tmp_path / "text.png") is None


def test_formats_say_what_they_cannot_hold():
    with pytest.raises(PictureError, match=r"JPEG holds no transparency.*--format png"):
        encoding("rgb-alpha", format="JPEG").check()
    with pytest.raises(PictureError, match="WEBP holds 8 bits"):
        encoding("rgb", format="WEBP", deep=True).check()
    with pytest.raises(PictureError, match="PNG holds no CMYK"):
        encoding("cmyk", format="PNG").check()
    with pytest.raises(PictureError, match=r"at most 16383 pixels.*120000×40"):
        encoding("rgb", format="WEBP", size=(40, 120_000)).check()
    encoding("rgb", format="PNG", deep=True, size=(40, 120_000)).check()


def test_an_abandoned_file_leaves_nothing(tmp_path):
    def bands():
        yield noise(4, 9, 3)
        raise RuntimeError("the network failed")

    with pytest.raises(RuntimeError):
        write_picture(tmp_path / "x.png", bands(), encoding("rgb", format="PNG"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize(
    ("source", "format"),
    [(source, format) for source in ("TIFF", "deep TIFF", "JPEG", "PNG") for format in ENDINGS],
)
def test_texts_stay_byte_for_byte(tmp_path, source, format, encoding):
    """Those of tifffile, and in EXIF of Pillow, whose own text of another encoding is put in."""
    texts = {270: "Grüße, 1 µm", 315: "Jürgen", 33432: "© Jürgen Müller"}
    stored = {tag: text.encode(encoding) for tag, text in texts.items()}
    path, pixels, options = tmp_path / "a", noise(20, 30, 3), {}
    if source == "deep TIFF":  # which Pillow does not read
        pixels, options = noise(20, 30, 2, deep=True), {"photometric": "minisblack"}
        options |= {"extrasamples": (2,), "planarconfig": "contig"}
    if source.endswith("TIFF"):
        extra = [(tag, 2, len(text) + 1, text + b"\0", True) for tag, text in stored.items()]
        path.write_bytes(_tiff(pixels, extratags=extra, metadata=None, **options))
    else:
        exif = Image.Exif()
        for tag, text in stored.items():
            exif[tag] = text
        exif[0x8769] = {0x9003: "2024:01:02 03:04:05", 0xA430: "J~rgen"}
        stored[0xA430] = b"J\xfcrgen\0"
        data = exif.tobytes().replace(b"J~rgen\0", stored[0xA430])
        Image.fromarray(pixels).save(path, source, exif=data, dpi=(300, 300))
    picture = read_picture(path)
    pixels = pixels if pixels.shape[2] == 3 or format in ("PNG", "TIFF") else noise(20, 30, 3)
    kind = picture.kind if pixels.shape[2] == 2 else "rgb"
    notes = dataclasses.replace(picture.notes, format=format)
    result = written(tmp_path / "b", pixels, kind, notes)
    assert all(text in result.read_bytes() for text in stored.values())
    if format == "TIFF" and encoding == "utf-8":
        with tifffile.TiffFile(result) as file:
            assert {tag: file.pages.first.tags[tag].value for tag in texts} == texts


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("entry", "damage"),
    [
        (struct.pack("<HHII", 0x8769, 4, 1, 60000), "a damaged part of EXIF (tag 34665)"),
        (struct.pack("<HHI4s", 0x8825, 2, 4, b"abc"), "a damaged part of EXIF (tag 34853)"),
        (struct.pack("<HHII", 0x8769, 4, 1, 38), None),  # a directory of no entries
        (None, "damaged EXIF"),
    ],
)
def test_damaged_exif_is_kept_or_left_out_with_a_line(tmp_path, format, entry, damage):
    """Its orientation stays, as Pillow reads it."""
    turned = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = struct.pack("<2sHIH", b"II", 42, 8, 2) + turned + (entry or b"") + bytes(4 + 2)
    exif = exif if entry else b"no directory"
    notes = Notes(format=format, exif=exif, dpi=(72.0, 72.0))
    path = written(tmp_path / "a", noise(20, 30, 3), "rgb", notes)
    lost = (damage,) if damage and format in ("TIFF", "WEBP") else ()
    assert lost_in(notes, format) == lost and read_picture(path).notes.dpi == pytest.approx(
        (72, 72), abs=0.02
    )
    if entry:
        with Image.open(path) as image:
            assert image.getexif()[0x0112] == 6


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_comment_is_text_in_png(tmp_path, encoding):
    text = "Gruss" if encoding == "ascii" else "Grüße"
    notes = Notes(comments=(text.encode(encoding),))
    with Image.open(written(tmp_path / "a.png", noise(9, 9, 3), "rgb", notes)) as image:
        assert image.info["Comment"] == text
