"""Files are written by Pillow and OpenCV from known pixels, and those pixels must come back."""

import struct
import zlib

import cv2
import numpy as np
import pytest
import tifffile  # a dependency of scikit-image
from PIL import Image, ImageOps, PngImagePlugin

from jaxsr.data.decode import claims_to_be_picture, decode_rgb, orientation_of, picture_size
from jaxsr.data.picture_file import UnreadablePicture


@pytest.fixture
def rgb():
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "webp", "ppm", "gif"])
def test_lossless_formats_come_back_unchanged(tmp_path, rgb, ending):
    path = tmp_path / f"a.{ending}"
    if ending == "gif":  # 256 colours only
        rgb = np.repeat(rgb[..., :1], 3, axis=-1)
        Image.fromarray(rgb[..., 0]).save(path)
    else:
        Image.fromarray(rgb).save(path, lossless=True)
    np.testing.assert_array_equal(decode_rgb(path), rgb)
    assert picture_size(path) == (20, 30)


def test_jpeg_is_what_opencv_reads(tmp_path, rgb):
    path = tmp_path / "a.jpg"
    smooth = cv2.GaussianBlur(rgb, (0, 0), 3)
    Image.fromarray(smooth).save(path, quality=95, subsampling=0)
    want = np.asarray(cv2.imread(str(path)))[..., ::-1].astype(int)
    # Two builds of the same JPEG library may round the inverse transform apart by a level.
    assert np.abs(decode_rgb(path) - want).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
def test_exif_orientation_is_applied(tmp_path, orientation, ending):
    # A red top left, green top right, blue bottom left corner, as someone would see it.
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:16, :16, 0] = upright[:16, -16:, 1] = upright[-16:, :16, 2] = 255
    # How each orientation is stored, by the EXIF standard's table (row 0 is the visual …).
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{ending}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, quality=95)
    got = decode_rgb(path)
    assert got.shape == upright.shape == (*picture_size(path), 3)
    assert np.abs(got.astype(int) - upright).mean() < 2  # JPEG's loss around the squares' edges


@pytest.mark.parametrize("form", ["attribute", "element"])
@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("ending", ["png", "webp"])
def test_orientation_in_xmp_is_that_of_pillow(tmp_path, rgb, ending, place, form):
    stated = {
        "attribute": b'<x tiff:Orientation="6"/>',
        "element": b"<tiff:Orientation>6</tiff:Orientation>",
    }[form]
    path = tmp_path / f"a.{ending}"
    if ending == "webp":
        Image.fromarray(rgb).save(path, lossless=True, xmp=stated)
    else:
        Image.fromarray(rgb).save(path)
        data, text = path.read_bytes(), b"iTXtXML:com.adobe.xmp\0\0\0\0\0" + stated
        at = data.index(b"IDAT" if place == "before" else b"IEND") - 4
        chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
        path.write_bytes(data[:at] + chunk + data[at:])
    with Image.open(path) as image:
        image.load()
        want = np.asarray(ImageOps.exif_transpose(image))
    assert want.shape == (30, 20, 3)
    np.testing.assert_array_equal(decode_rgb(path), want)
    assert picture_size(path) == (30, 20) and orientation_of(path) == 6


def test_the_size_of_a_png_with_xmp_is_read_without_its_pixels(tmp_path, rgb):
    xmp = PngImagePlugin.PngInfo()
    xmp.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="8"/>')
    Image.fromarray(rgb).save(tmp_path / "a.png", pnginfo=xmp)
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[: data.index(b"IDAT") + 40])
    assert picture_size(tmp_path / "a.png") == (30, 20)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_orientation_of_16_bit_colour(tmp_path, ending):
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:16, :16, 0] = 255
    path = tmp_path / f"a.{ending}"
    stored = np.ascontiguousarray(np.rot90(upright, 1)).astype(np.uint16) * 257
    if ending == "tif":
        tifffile.imwrite(path, stored, photometric="rgb", extratags=[(274, "H", 1, 6, True)])
    else:  # OpenCV writes no EXIF: put the chunk after the header
        cv2.imwrite(str(path), stored[..., ::-1])
        data, exif = path.read_bytes(), Image.Exif()
        exif[0x0112] = 6
        body = b"eXIf" + exif.tobytes()[6:]
        chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        path.write_bytes(data[:33] + chunk + data[33:])
    np.testing.assert_array_equal(decode_rgb(path), upright)
    assert picture_size(path) == (48, 64)


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits_are_rounded_to_8(tmp_path, ending, channels):
    deep = np.random.default_rng(1).integers(0, 65536, (9, 7, channels), dtype=np.uint16)
    deep[0, :4, 0] = 0, 128, 129, 65535  # a half level of 8 bits is 128.5
    deep[..., 3:] = 65535
    path = tmp_path / f"a.{ending}"
    cv2.imwrite(str(path), deep)
    want = np.rint(deep[..., :3].astype(np.float64) / 257).astype(np.uint8)[..., ::-1]
    np.testing.assert_array_equal(decode_rgb(path), np.broadcast_to(want, (9, 7, 3)))


def shown(samples: np.ndarray, *, white_is_zero: bool) -> np.ndarray:
    """8-bit RGB over white, from what the TIFF standard says the samples mean."""
    peak = np.iinfo(samples.dtype).max
    colours = 3 if samples.shape[-1] > 2 else 1
    colour = samples[..., :colours].astype(np.float64) / peak
    colour = 1 - colour if white_is_zero else colour
    return np.broadcast_to(np.rint(255 * colour), (*samples.shape[:2], 3)).astype(np.uint8)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize(
    ("channels", "photometric"),
    [
        (1, "minisblack"),
        (1, "miniswhite"),
        (2, "minisblack"),
        (2, "miniswhite"),
        (3, "rgb"),
        (4, "rgb"),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_samples_mean_what_the_standard_says(
    tmp_path, dtype, channels, photometric, planes, order, compression
):
    peak = np.iinfo(dtype).max
    samples = np.random.default_rng(3).integers(0, peak + 1, (13, 11, channels), dtype)
    options = {}
    if channels in (2, 4):
        samples[..., -1] = peak
        options["extrasamples"] = ["unassalpha"]
    if channels > 1:
        options["planarconfig"] = planes
    stored = np.moveaxis(samples, -1, 0) if planes == "separate" else samples
    tifffile.imwrite(
        tmp_path / "a.tif",
        np.squeeze(stored),
        photometric=photometric,
        byteorder=order,
        compression=compression,
        **options,
    )
    want = shown(samples, white_is_zero=photometric == "miniswhite")
    np.testing.assert_array_equal(decode_rgb(tmp_path / "a.tif"), want)
    assert picture_size(tmp_path / "a.tif") == (13, 11)


@pytest.mark.parametrize("kind", ["assocalpha", "unassalpha", "unspecified"])
def test_tiff_planes_of_transparent_colour(tmp_path, kind):
    samples = np.full((4, 13, 11), 16384, np.uint16)
    samples[3] = 32768
    tifffile.imwrite(
        tmp_path / "a.tif", samples, photometric="rgb", planarconfig="separate", extrasamples=[kind]
    )
    # A quarter at half cover: over white 1/4 + 1/2, or 1/4 · 1/2 + 1/2; without cover 1/4.
    want = {"assocalpha": 0.75, "unassalpha": 0.625, "unspecified": 0.25}[kind] * 255
    assert np.abs(decode_rgb(tmp_path / "a.tif") - want).max() < 1.5  # alpha is 8 bits by then


@pytest.mark.parametrize("kind", ["assocalpha", "unassalpha"])
def test_tiff_of_transparent_gray(tmp_path, kind):
    samples = np.full((13, 11, 2), (64, 128), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", samples, photometric="minisblack", extrasamples=[kind])
    want = {"assocalpha": 0.75, "unassalpha": 0.625}[kind] * 255
    assert np.abs(decode_rgb(tmp_path / "a.tif") - want).max() < 1.5


@pytest.mark.parametrize("kept", [0.3, 0.95])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_truncated_tiff_planes_are_refused(tmp_path, kept, compression):
    samples = np.random.default_rng(4).integers(0, 65536, (3, 40, 40), dtype=np.uint16)
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, samples, photometric="rgb", planarconfig="separate", compression=compression
    )
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(UnreadablePicture):
        decode_rgb(path)


def test_gray_is_repeated(tmp_path, rgb):
    Image.fromarray(rgb[..., 0]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode_rgb(tmp_path / "a.png"), np.stack([rgb[..., 0]] * 3, -1))


def test_bilevel_is_black_and_white(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2, (9, 11)).astype(bool)
    Image.fromarray(bits).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode_rgb(tmp_path / "a.png")[..., 1], bits * np.uint8(255))


def test_palette_is_looked_up(tmp_path):
    colours = np.array([[255, 0, 0], [0, 128, 0], [1, 2, 3]], np.uint8)
    index = np.random.default_rng(0).integers(0, 3, (9, 11), dtype=np.uint8)
    image = Image.fromarray(index)
    image.putpalette(colours.tobytes())
    image.save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode_rgb(tmp_path / "a.png"), colours[index])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path, mode):
    image = Image.new("RGBA", (8, 6), (40, 40, 40, 255))
    image.paste((200, 0, 0, 0), (0, 0, 4, 6))
    path = tmp_path / "a.png"
    if mode == "P":
        palette = Image.fromarray(np.array([[0] * 4 + [1] * 4] * 6, np.uint8))
        palette.putpalette([200, 0, 0, 40, 40, 40])
        palette.save(path, transparency=0)
    else:
        image.convert(mode).save(path)
    got = decode_rgb(path)
    assert (got[:, :4] == 255).all() and (got[:, 4:] == 40).all()


def test_cmyk_keeps_white_and_black(tmp_path):
    gray = np.zeros((32, 32, 3), np.uint8)
    gray[:, 16:] = 255
    Image.fromarray(gray).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    got = decode_rgb(tmp_path / "a.jpg").astype(int)
    assert np.abs(got - gray).mean() < 3  # JPEG's loss; an inverted picture would be 255 off


def test_floats_within_0_to_1_only(tmp_path):
    path = tmp_path / "a.tif"
    Image.fromarray(np.array([[0, 0.5, 1.0]], np.float32)).save(path)
    assert decode_rgb(path)[0, :, 0].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0, 0.5, 300.0]], np.float32)).save(path)
    with pytest.raises(UnreadablePicture, match="from 0 to 300, not within 0 to 1"):
        decode_rgb(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "bmp", "webp", "gif"])
@pytest.mark.parametrize("kept", [0, 3, 10, 0.3, 0.9])
def test_truncated_files_are_refused(tmp_path, ending, kept):
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"
    pixels = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(whole)
    data = whole.read_bytes()
    cut.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(UnreadablePicture) as caught:
        decode_rgb(cut)
    assert "\n" not in str(caught.value)


def test_damaged_png_is_refused(tmp_path, rgb):
    Image.fromarray(rgb).save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(UnreadablePicture):
        decode_rgb(tmp_path / "a.png")


def test_pictures_are_known_by_content(tmp_path, rgb):
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "JPEG2000", "AVIF"):
        path = tmp_path / f"{form}.dat"
        Image.fromarray(rgb).save(path, form)
        assert claims_to_be_picture(path), form
        assert decode_rgb(path).shape == (20, 30, 3)
    (tmp_path / "notes.txt").write_text("not an image")
    assert not claims_to_be_picture(tmp_path / "notes.txt")
    (tmp_path / "notes.png").write_text("not an image")
    assert claims_to_be_picture(tmp_path / "notes.png")


def test_formats_of_opencv_alone(tmp_path):
    # Radiance HDR: Pillow does not read it. Values within 0 to 1 are kept, to the format's 8 bits.
    pixels = np.full((9, 11, 3), 0.5, np.float32)
    cv2.imwrite(str(tmp_path / "a.hdr"), pixels)
    assert (decode_rgb(tmp_path / "a.hdr") == 128).all()
    assert picture_size(tmp_path / "a.hdr") == (9, 11)
