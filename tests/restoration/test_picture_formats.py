"""Everything that a picture file may hold, and what `restore` makes of it.

docs/formats.md is the table; each of its rows about pictures has a case here, and no other has.
"""

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, ImageCms, PngImagePlugin

from jaxsr.data.decode import decode_rgb, picture_size
from jaxsr.data.masks import read_mask
from jaxsr.data.picture_file import UnreadablePicture
from jaxsr.restoration.pictures import read_picture
from jaxsr.restore import main
from tests.restoration import networks

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
CASES: dict[tuple[str, str, str], Callable] = {}
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 24, 3), np.uint8)


def case(format: str, holds: str, result: str):
    def register(function: Callable) -> Callable:
        CASES[format, holds, result] = function
        return function

    return register


class Folder:
    """Writes files and restores them with a network that enlarges twofold."""

    def __init__(self, path: Path, capsys) -> None:
        self.path, self._capsys = path, capsys

    def restored(self, name: str, *options: str) -> tuple[Path, str]:
        """The result, and what was printed."""
        torch.manual_seed(0)
        torch.save(networks.Small().state_dict(), self.path / "w.pt")
        words = [
            "--model",
            "tests.restoration.networks:Small",
            "--weights",
            str(self.path / "w.pt"),
        ]
        words += ["--engine", "torch", "--platform", "cpu", "--out", str(self.path / "out")]
        assert main([str(self.path / name), *words, *options]) == 0
        (result,) = (self.path / "out").glob("[!.]*")
        said = self._capsys.readouterr()
        return result, said.out + said.err


def save(path: Path, format: str | None = None, **options) -> None:
    Image.fromarray(PIXELS).save(path, format, **options)


def exif(**more: object) -> bytes:
    tags = Image.Exif()
    tags[0x010F], tags[0x0112] = "A camera", 6
    for tag, value in more.items():
        tags[int(tag[1:])] = value
    return tags.tobytes()


def _png_with(path: Path, *chunks: tuple[bytes, bytes], late: bool) -> None:
    save(path)
    data = path.read_bytes()
    at = data.index(b"IEND") - 4 if late else 33
    added = b"".join(
        struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks
    )
    path.write_bytes(data[:at] + added + data[at:])


@case("PNG, JPEG, WebP, TIFF", "EXIF with its orientation, ICC profile, XMP", "kept")
def usual_notes(folder):
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for name in ("a.png", "b.jpg", "c.webp", "d.tif"):
        notes: dict[str, Any] = {"exif": exif(), "icc_profile": profile}
        if name == "d.tif":
            notes["tiffinfo"] = {274: 6, 700: b"<x:xmpmeta/>"}  # goes before exif
        elif name != "a.png":
            notes["xmp"] = b"<x:xmpmeta/>"
        else:
            notes["pnginfo"] = PngImagePlugin.PngInfo()
            notes["pnginfo"].add_itxt("XML:com.adobe.xmp", "<x:xmpmeta/>")
        save(folder.path / name, **notes)
        result, said = folder.restored(name)
        kept = read_picture(result).notes
        assert (kept.orientation, kept.icc, kept.xmp) == (6, profile, b"<x:xmpmeta/>")
        assert "note:" not in said
        result.unlink()


@case("CMYK TIFF, JPEG", "resolution", "kept; in EXIF where the result is JPEG")
def resolution_of_cmyk(folder):
    Image.fromarray(PIXELS).convert("CMYK").save(folder.path / "a.tif", dpi=(300, 300))
    for format in ("tiff", "jpeg"):
        result, printed = folder.restored("a.tif", "--format", format)
        with Image.open(result) as image:
            assert image.mode == "CMYK"
            assert image.info["dpi"] == (300, 300)
        assert "note:" not in printed
        result.unlink()


@case("TIFF", "resolution without a unit, as ImageJ's", "dropped, with a line")
def resolution_without_a_unit(folder):
    path = folder.path / "a.tif"
    tifffile.imwrite(path, PIXELS, imagej=True, resolution=(2.5, 2.5), metadata={"unit": "um"})
    assert "written without the resolution without a unit" in folder.restored("a.tif")[1]


@case("PNG", "EXIF and XMP behind the samples", "kept")
def late_chunks(folder):
    notes = ((b"eXIf", exif().removeprefix(b"Exif\0\0")),
             (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta/>"))  # fmt: skip
    _png_with(folder.path / "a.png", *notes, late=True)
    kept = read_picture(folder.restored("a.png")[0]).notes
    assert kept.orientation == 6 and kept.xmp == b"<x:xmpmeta/>"
    assert picture_size(folder.path / "a.png") == decode_rgb(folder.path / "a.png").shape[:2]
    assert picture_size(folder.path / "a.png") == (24, 20)


@case(
    "PNG, JPEG, WebP",
    "a damaged part of EXIF",
    "kept in PNG and JPEG; dropped, with a line, in TIFF, and in WebP that has a resolution",
)
def damaged_exif(folder):
    pointer = struct.pack("<HHII", 0x8769, 4, 1, 60000)  # beyond the end
    turned = struct.pack("<HHIHH", 274, 3, 1, 6, 0)
    content = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + turned + pointer + bytes(4)
    save(folder.path / "a.jpg", exif=content)
    result, printed = folder.restored("a.jpg", "--format", "tiff")
    assert "written without a damaged part of EXIF (tag 34665)" in printed
    assert read_picture(result).notes.orientation == 6


@case(
    "PNG",
    "texts, times, colours (tEXt, zTXt, iTXt, tIME, gAMA, cHRM, sRGB, cICP, mDCV, cLLI)",
    "kept",
)
def png_texts(folder):
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Title", "An image")
    texts.add_text("Long", "word " * 99, zip=True)
    texts.add(b"gAMA", struct.pack(">I", 45455))
    save(folder.path / "a.png", pnginfo=texts)
    with Image.open(folder.restored("a.png")[0]) as image:
        image.load()
        assert image.text == {"Title": "An image", "Long": "word " * 99}
        assert image.info["gamma"] == 0.45455


@case("PNG", "other chunks (bKGD, oFFs, private ones)", "dropped, with a line")
def png_others(folder):
    _png_with(folder.path / "a.png", (b"bKGD", bytes(6)), (b"prVt", b"x"), late=False)
    assert "without the chunks bKGD, prVt" in folder.restored("a.png")[1]


@case("PNG", "one transparent gray or colour (tRNS), of 1 to 16 bits", "alpha")
def png_keys(folder):
    for depth in (1, 2, 4, 8, 16):
        path = folder.path / f"g{depth}.png"
        values = RNG.integers(0, 2**depth, (5, 8))
        key = int(values[0, 0])
        path.write_bytes(_gray_png(values, depth, key))
        alpha = read_picture(path).pixels[..., 1]
        peak = np.iinfo(alpha.dtype).max
        np.testing.assert_array_equal(alpha, np.where(values == key, 0, peak))
        gray = read_picture(path).pixels[..., 0].astype(np.int64)
        scale = peak if depth == 16 else 255
        np.testing.assert_array_equal(gray, values * scale // (2**depth - 1))
        # In training and detect transparency is laid over white.
        seen = decode_rgb(path)
        eight = values if depth == 8 else np.rint(values * 255 / (2**depth - 1)).astype(int)
        np.testing.assert_array_equal(
            seen, np.where(values == key, 255, eight)[..., None] + [0] * 3
        )
        if depth in (1, 16):
            result, _ = folder.restored(path.name)
            assert read_picture(result).kind == "gray-alpha"
            result.unlink()


def _gray_png(values: np.ndarray, depth: int, key: int) -> bytes:
    bits = (values[..., None] >> np.arange(depth)[::-1]) & 1
    packed = np.packbits(bits.reshape(len(values), -1), axis=1)
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    parts = ((b"IHDR", struct.pack(">IIBBBBB", values.shape[1], len(values), depth, 0, 0, 0, 0)),
             (b"tRNS", struct.pack(">H", key)), (b"IDAT", zlib.compress(rows)),
             (b"IEND", b""))  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in parts
    )


@case("PNG, JPEG, TIFF", "resolution", "kept; in EXIF where the result is WebP")
def resolution(folder):
    for name in ("a.png", "b.jpg", "c.tif"):
        save(folder.path / name, dpi=(300, 150))
        for options in ((), ("--format", "webp")):
            result, _ = folder.restored(name, *options)
            assert read_picture(result).notes.dpi == pytest.approx((300, 150), abs=0.02)
            result.unlink()


@case("WebP", "resolution in EXIF", "kept; also as the format's own where the result is another")
def webp_resolution(folder):
    save(folder.path / "a.webp", exif=exif(t282=300.0, t283=150.0, t296=2))
    for options in ((), ("--format", "png")):
        result, _ = folder.restored("a.webp", *options)
        assert read_picture(result).notes.dpi == pytest.approx((300, 150), abs=0.02)
        result.unlink()


@case("PNG", "shape of pixels (pHYs without a unit)", "kept")
def png_shape(folder):
    _png_with(folder.path / "a.png", (b"pHYs", struct.pack(">IIB", 4, 3, 0)), late=False)
    with Image.open(folder.restored("a.png")[0]) as image:
        assert image.info["aspect"] == (4, 3)


@case(
    "JPEG, GIF",
    "comment",
    "kept; as PNG's text where the result is PNG; dropped, with a line, in TIFF and WebP",
)
def comments(folder):
    save(folder.path / "a.jpg", comment=b"of ours")
    Image.fromarray(PIXELS[..., 0]).save(folder.path / "b.gif", comment=b"of ours")
    for name, options in (("a.jpg", ()), ("a.jpg", ("--format", "png")), ("b.gif", ())):
        result, said = folder.restored(name, *options)
        with Image.open(result) as image:
            image.load()
            assert image.info.get("comment", image.info.get("Comment")) in (b"of ours", "of ours")
        assert "note:" not in said
        result.unlink()
    jpeg = (folder.path / "a.jpg").read_bytes()
    further = b"\xff\xff\xfe\0\x0aof mine!"  # a byte FF may stand before each marker
    (folder.path / "c.jpg").write_bytes(jpeg[:2] + further + jpeg[2:])
    result, _ = folder.restored("c.jpg")
    with Image.open(result) as image:
        kept = [content for code, content in image.applist if code == "COM"]
    assert kept == [b"of mine!", b"of ours"]
    result.unlink()
    assert "TIFF written without the comment" in folder.restored("a.jpg", "--format", "tiff")[1]


@case(
    "JPEG",
    "IPTC, Photoshop's notes, extended XMP and other segments",
    "kept in JPEG; dropped, with a line, elsewhere",
)
def jpeg_segments(folder):
    save(folder.path / "a.jpg")
    data = (folder.path / "a.jpg").read_bytes()
    content = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\0"
    segment = struct.pack(">BBH", 0xFF, 0xED, len(content) + 2) + content
    (folder.path / "a.jpg").write_bytes(data[:20] + segment + data[20:])
    result, said = folder.restored("a.jpg")
    assert segment in result.read_bytes() and "note:" not in said
    result.unlink()
    assert "without JPEG's application segments" in folder.restored("a.jpg", "--format", "png")[1]


@case("JPEG (MPO)", "further images (depth, gain map)", "dropped, with a line")
def further_pictures(folder):
    images = [Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1])]
    images[0].save(folder.path / "a.jpg", "MPO", save_all=True, append_images=images[1:])
    assert "without 1 further images (depth, gain map)" in folder.restored("a.jpg")[1]


@case("JPEG", "data behind the image (a motion photo's video)", "dropped, with a line")
def data_behind_the_picture(folder):
    save(folder.path / "a.jpg")
    data = (folder.path / "a.jpg").read_bytes()
    (folder.path / "a.jpg").write_bytes(data + bytes(99))
    result, said = folder.restored("a.jpg")
    assert "note:" not in said
    result.unlink()
    (folder.path / "a.jpg").write_bytes(data + b"\x18ftypmp42" + bytes(9) + b"end")
    assert "without 21 bytes behind the image" in folder.restored("a.jpg")[1]


@case("JPEG", "an ICC profile whose parts do not fit together", "dropped, with a line")
def damaged_profile(folder):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    save(folder.path / "a.jpg", icc_profile=profile)
    data = (folder.path / "a.jpg").read_bytes()
    (folder.path / "a.jpg").write_bytes(
        data.replace(b"ICC_PROFILE\0\x01\x01", b"ICC_PROFILE\0\x01\x02")
    )
    assert "without a damaged ICC profile" in folder.restored("a.jpg")[1]


@case("PNG", "an ICC profile or text of more than 1 MiB", "kept")
def large_profile(folder):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes() + bytes(2**21)
    save(folder.path / "a.png", icc_profile=profile)
    result, said = folder.restored("a.png")
    assert "note:" not in said and read_picture(result).notes.icc == profile


def _tiff(path: Path, pixels: np.ndarray, **options: Any) -> None:
    tifffile.imwrite(path, pixels, **{"photometric": "rgb", **options})


@case(
    "TIFF",
    "samples of no stated kind (ExtraSamples 0: infrared), of 8 and 16 bits",
    "dropped, with a line",
)
def extra_samples(folder):
    for dtype in (np.uint8, np.uint16):
        for planar in ("contig", "separate"):
            pixels = RNG.integers(0, np.iinfo(dtype).max, (20, 24, 4), dtype)
            path = folder.path / f"{planar}{np.dtype(dtype).itemsize}.tif"
            stored = np.moveaxis(pixels, -1, 0) if planar == "separate" else pixels
            _tiff(path, stored, extrasamples=[0], planarconfig=planar)
            picture = read_picture(path)
            assert picture.kind == "rgb"
            np.testing.assert_array_equal(picture.pixels, pixels[..., :3])
            seen = decode_rgb(path)  # in training and detect
            eight = np.rint(pixels[..., :3] / (np.iinfo(dtype).max / 255))
            assert np.abs(seen - eight).max() <= 1
    result, said = folder.restored("contig2.tif")
    assert read_picture(result).kind == "rgb"
    assert "TIFF written without 1 samples a pixel of no stated kind" in said


@case("TIFF", "alpha (ExtraSamples 1 and 2)", "kept; premultiplied colours are divided by it")
def tiff_alpha(folder):
    for kind in (1, 2):
        pixels = np.full((20, 24, 4), 40000, np.uint16)
        pixels[..., :3] = 10000
        _tiff(folder.path / "a.tif", pixels, extrasamples=[kind])
        picture = read_picture(folder.path / "a.tif")
        assert picture.kind == "rgb-alpha"
        assert picture.pixels[0, 0, 0] == (16384 if kind == 1 else 10000)


@case("TIFF", "smaller copies of the image (thumbnail pages, SubIFDs)", "dropped, with a line")
def thumbnails(folder):
    with tifffile.TiffWriter(folder.path / "a.tif") as file:
        file.write(PIXELS, photometric="rgb")
        file.write(PIXELS[::2, ::2], photometric="rgb", subfiletype=1)
    with tifffile.TiffWriter(folder.path / "b.tif") as file:
        file.write(PIXELS, photometric="rgb", subifds=1)
        file.write(PIXELS[::2, ::2], photometric="rgb", subfiletype=1)
    for name in ("a.tif", "b.tif"):
        result, said = folder.restored(name)
        assert "TIFF written without previews" in said
        result.unlink()


@case("TIFF", "name, page, description, maker, software, artist, copyright, IPTC", "kept")
def tiff_notes(folder):
    tags = [(269, "s", 0, "name", True), (285, "s", 0, "page", True), (315, "s", 0, "me", True),
            (33432, "s", 0, "mine", True), (33723, "B", 4, (28, 2, 5, 0), True)]  # fmt: skip
    _tiff(folder.path / "a.tif", PIXELS, description="words", software="ours", extratags=tags,
          metadata=None)  # fmt: skip
    result, said = folder.restored("a.tif")
    with Image.open(result) as image:
        found = {tag: image.tag_v2.get(tag) for tag in (269, 270, 285, 305, 315, 33432)}
        assert bytes(image.tag_v2[33723]) == bytes((28, 2, 5, 0))
    assert [*found.values()] == ["name", "words", "page", "ours", "me", "mine"]
    assert "note:" not in said


@case("TIFF", "other tags (GeoTIFF's, private ones)", "dropped, with a line")
def tiff_others(folder):
    tags = [(33550, "d", 3, (1.0, 1.0, 0.0), True)]
    _tiff(folder.path / "a.tif", PIXELS, extratags=tags, metadata=None)
    assert "TIFF written without the tags 33550" in folder.restored("a.tif")[1]


@case("TIFF", "CMYK in planes", "kept; RGB in training and detect")
def planar_cmyk(folder):
    pixels = RNG.integers(0, 256, (20, 24, 4), np.uint8)
    _tiff(folder.path / "a.tif", np.moveaxis(pixels, -1, 0), photometric="separated",
          planarconfig="separate")  # fmt: skip
    seen = decode_rgb(folder.path / "a.tif")
    np.testing.assert_array_equal(seen, np.asarray(Image.fromarray(pixels, "CMYK").convert("RGB")))
    assert read_picture(folder.restored("a.tif")[0]).kind == "cmyk"


@case("TIFF, GIF, WebP, PNG", "several pages or frames", "refused")
def several(folder):
    frames = [Image.fromarray(PIXELS + n) for n in range(2)]
    for name in ("a.tif", "b.gif", "c.webp", "d.png"):
        frames[0].save(folder.path / name, save_all=True, append_images=frames[1:])
        for read in (read_picture, decode_rgb, picture_size, read_mask):
            with pytest.raises(ValueError, match=r"^2 (pages|frames), and only stills are read"):
                read(folder.path / name)


@case("all", "a file that is cut short, or that lacks some of its pixels", "refused")
def incomplete(folder):  # files that look whole: tests/data/test_picture_file.py
    for ending in ("png", "jpg", "webp", "tif", "avif", "bmp", "gif"):
        path = folder.path / f"a.{ending}"
        save(path)
        path.write_bytes(path.read_bytes()[: 3 * path.stat().st_size // 4])
        with pytest.raises(UnreadablePicture):
            read_picture(path)


@case("AVIF, BMP, GIF", "a still", "PNG")
def other_formats(folder):
    for name in ("a.avif", "b.bmp", "c.gif"):
        save(folder.path / name)
        result, said = folder.restored(name)
        with Image.open(result) as image:
            assert (image.format, image.size) == ("PNG", (48, 40))
        assert "note:" not in said
        result.unlink()


@case("AVIF", "more than 8 bits", "8 bits, with a line")
def deep_avif(folder):
    av = pytest.importorskip("av", reason="Pillow writes 8 bits alone")
    with av.open(str(folder.path / "a.avif"), "w") as out:
        stream = out.add_stream("libsvtav1", rate=1)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p10le"
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    assert "written without the samples' bits below 8" in folder.restored("a.avif")[1]


@pytest.mark.parametrize("key", list(CASES), ids=lambda key: f"{key[0]}: {key[1][:30]}")
def test_row(key, tmp_path, capsys):
    CASES[key](Folder(tmp_path, capsys))


def test_the_page_has_these_rows():
    section = PAGE.read_text().partition("## Images")[2].partition("## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    assert {row for row in rows if row[0] != "---"} == set(CASES)
