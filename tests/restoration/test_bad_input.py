"""Bad files in a batch are listed, good ones come out, and nothing is half-written."""

import contextlib
import io
import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jaxsr.data.picture_file import ENDINGS
from jaxsr.errors import MissingFileError
from jaxsr.restoration import restore_files
from jaxsr.restoration.made_by import RECORD
from jaxsr.restoration.pictures import Picture, PictureError, read_picture
from jaxsr.restoration.restore_arrays import as_picture
from jaxsr.restore import main
from tests.oracles.hostile.files import mutated, pictures, tiffs
from tests.restoration import networks

MODEL = ("--model", "tests.restoration.networks:Small", "--engine", "torch", "--platform", "cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.pt"
    torch.save(networks.Small().state_dict(), path)
    return path


def noise(*shape: int, deep: bool = False) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(0, 65536 if deep else 256, shape, dtype=np.uint16 if deep else np.uint8)


def left_over(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "partial" in path.name]


def test_a_batch_of_everything(tmp_path, weights, capsys):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    good = io.BytesIO()
    Image.fromarray(noise(40, 50, 3)).save(good, "PNG")
    (source / "good.png").write_bytes(good.getvalue())
    (source / "truncated.png").write_bytes(good.getvalue()[:1500])
    (source / "zero.jpg").write_bytes(b"")
    (source / "text.png").write_text("I am no image")
    Image.fromarray(noise(1, 1, 3)).save(source / "one.png")
    Image.fromarray(noise(6, 30_000, 3)).save(source / "strip.png")
    Image.fromarray(noise(30, 40, 4), "CMYK").save(source / "press.jpg", quality=95)
    Image.fromarray(noise(30, 40, 4), "CMYK").save(source / "press.tif")
    palette = Image.fromarray(noise(20, 20, 3)).quantize(64)
    palette.save(source / "palette.png", transparency=bytes(range(64)))
    frames = [Image.fromarray(noise(9, 9) ^ np.uint8(k)) for k in range(3)]
    frames[0].save(source / "moving.gif", save_all=True, append_images=frames[1:])
    frames[0].save(source / "still.gif")
    (source / "picture.png").mkdir()  # a folder that is named like one
    assert main([str(source), "--out", str(out), "--weights", str(weights), *MODEL]) == 1
    sizes = {}
    for path in out.rglob("[!.]*.*"):
        with Image.open(path) as image:
            sizes[path.name] = image.size, image.mode
    assert sizes == {
        "good.png": ((100, 80), "RGB"),
        "one.png": ((2, 2), "RGB"),
        "strip.png": ((60_000, 12), "RGB"),
        "press.jpg": ((80, 60), "CMYK"),
        "press.tif": ((80, 60), "CMYK"),
        "palette.png": ((40, 40), "RGBA"),
        "still.png": ((18, 18), "L"),
    }
    error = capsys.readouterr().err
    assert "not restored: 4" in error
    for name, reason in (
        ("truncated.png", "truncated"),
        ("zero.jpg", "zero bytes"),
        ("text.png", "not a PNG"),
        ("moving.gif", "3 frames"),
    ):
        assert any(name in line and reason in line for line in error.splitlines()), (name, error)


def test_cmyk_is_restored_as_rgb_and_black(tmp_path, weights):
    import jaxsr

    picture = noise(30, 40, 4)
    network = networks.Small()
    network.load_state_dict(torch.load(weights, weights_only=True))
    rgb = jaxsr.restore(255 - picture[..., :3], network, engine="torch")
    got = np.asarray(jaxsr.restore(Image.fromarray(picture, "CMYK"), network, engine="torch"))
    assert np.abs(got[..., :3].astype(int) - (255 - np.asarray(rgb).astype(int))).max() <= 1


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs to mount a small file system"
)
def test_no_space_left(tmp_path, weights, capsys):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs to mount a small file system")
    try:
        Image.fromarray(noise(20, 20, 3)).save(tmp_path / "a.png")
        for name in ("big.png", "big.jpg", "big.tif"):
            Image.fromarray(noise(300, 300, 3)).save(tmp_path / name)
        inputs = [str(tmp_path / name) for name in ("a.png", "big.png", "big.jpg", "big.tif")]
        assert main([*inputs, "--out", str(small), "--weights", str(weights), *MODEL]) == 1
        assert [path.name for path in small.glob("[!.]*")] == ["a.png"]
        assert capsys.readouterr().err.count("No space left on device") == 3
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF"])
def test_a_full_disk_leaves_nothing(tmp_path, weights, monkeypatch, capsys, format):
    """As above without a mount: the file refuses to grow."""
    from jaxsr.restoration import encode

    class Full(io.FileIO):
        def write(self, data) -> int:
            if self.tell() + len(data) > 20_000:
                raise OSError(28, os.strerror(28))
            return super().write(data)

    def refusing(self, path):
        self.path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self.stream = Full(self._partial, "wb")

    monkeypatch.setattr(encode.AtomicFile, "__init__", refusing)
    ending = ENDINGS[format][0]
    Image.fromarray(noise(200, 200, 3)).save(tmp_path / f"big{ending}", format)
    Image.fromarray(noise(8, 8, 3)).save(tmp_path / f"small{ending}", format)
    inputs = [str(tmp_path / f"{name}{ending}") for name in ("big", "small")]
    out = tmp_path / "out"
    assert main([*inputs, "--out", str(out), "--weights", str(weights), *MODEL]) == 1
    assert [path.name for path in out.glob("[!.]*")] == [f"small{ending}"]
    assert "No space left on device" in capsys.readouterr().err


def test_an_unreadable_folder_is_listed(tmp_path, weights, capsys, monkeypatch):
    (tmp_path / "in" / "locked").mkdir(parents=True)
    Image.fromarray(noise(10, 10, 3)).save(tmp_path / "in" / "good.png")
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "locked":  # root may read anything, so a lock alone proves nothing
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    arguments = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--weights", str(weights)]
    assert main([*arguments, *MODEL]) == 1
    assert (tmp_path / "out" / "good.png").is_file()
    error = capsys.readouterr().err
    assert "locked: Permission denied" in error


def test_an_unwritable_folder_is_said_at_once(tmp_path, weights, capsys):
    Image.fromarray(noise(10, 10, 3)).save(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    arguments = [str(tmp_path / "a.png"), "--out", str(tmp_path / "file" / "out")]
    assert main([*arguments, "--weights", str(weights), *MODEL]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_a_network_that_returns_nan_fails_its_pictures(tmp_path, capsys):
    import jaxsr

    class Broken(networks.Small):
        def forward(self, x):
            y = super().forward(x)
            return y / (x.max() < 0.9)  # infinite for bright pictures

    with pytest.raises(ValueError, match="NaN or infinity; try --dtype float32"):
        jaxsr.restore(noise(40, 40, 3), Broken(), engine="torch", tiling="off")


@pytest.mark.slow
def test_a_killed_run_leaves_no_result_that_is_not_whole(tmp_path, weights):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for index in range(30):
        Image.fromarray(noise(300, 300 + index, 3)).save(source / f"{index:02}.png")
    command = [sys.executable, "-m", "jaxsr.restore", str(source), "--out", str(out)]
    process = subprocess.Popen([*command, "--weights", str(weights), *MODEL], cwd=ROOT)
    for _ in range(600):
        if len(list(out.glob("*.png"))) > 3:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    process.terminate()
    assert process.wait(60) == 130
    assert not left_over(out)
    for path in out.glob("*.png"):
        assert read_picture(path).pixels.shape[0] == 600


KILLED = """
import os, sys
from pathlib import Path
from jaxsr.interop.atomic_write import AtomicFile
file = AtomicFile(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_command_left_is_removed_by_the_next(tmp_path, weights):
    source, out = tmp_path / "in", tmp_path / "out"
    for folder in (source, out):
        (folder / "deep").mkdir(parents=True)
    Image.fromarray(noise(20, 24, 3)).save(source / "deep" / "a.png")
    subprocess.run([sys.executable, "-c", KILLED, str(out / "deep" / "b.mp4")], check=False)
    assert len(left_over(out)) == 1
    assert main([str(source), "--out", str(out), "--weights", str(weights), *MODEL]) == 0
    assert not left_over(out) and (out / "deep" / "a.png").is_file()


def seeds() -> dict[str, bytes]:
    """Small pictures of every kind of file that is read."""
    return {n: data for n, data in (pictures() | tiffs()).items() if not n.endswith("gif")}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_mutated_files_are_pictures_or_refused(tmp_path):
    """900 files, read alone: a picture with sensible samples, or a reason of one line."""
    rng = random.Random(20240)
    files, refused, path = seeds(), 0, tmp_path / "x"
    for _ in range(900 // len(files)):
        for name, data in files.items():
            path.write_bytes(mutated(data, rng))
            try:
                picture = read_picture(path, max_pixels=4_000_000)
            except PictureError as error:
                refused += 1
                assert str(error) and "\n" not in str(error), name
                continue
            assert isinstance(picture, Picture)
            assert picture.pixels.ndim == 3 and picture.pixels.dtype in (np.uint8, np.uint16)
            _ = picture.notes.orientation
    assert refused > 200


@pytest.mark.slow
def test_five_hundred_mutated_files_go_through_the_command(tmp_path, weights):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    rng = random.Random(1)
    files = list(seeds().items())
    for index in range(520):
        name, data = files[index % len(files)]
        (source / f"{index:03}-{name}").write_bytes(mutated(data, rng))
    command = [sys.executable, "-m", "jaxsr.restore", str(source), "--out", str(out)]
    command += ["--weights", str(weights), "--max-pixels", "1000000", *MODEL]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    listed = done.stderr.split("not restored: ")[1].splitlines()
    results = [path for path in out.rglob("[!.]*") if path.is_file()]
    assert int(listed[0]) + len(results) == 520
    assert not left_over(out)
    for path in results:
        read_picture(path)
    shutil.rmtree(out)


def header_only_png(width: int, height: int) -> bytes:
    """A PNG of fewer than 70 bytes that claims any size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [(2**31 - 1, 2**31 - 1), (2**31 - 1, 1), (178_000_000, 1)])
def test_a_size_is_judged_before_tiles_are_planned(tmp_path, weights, capsys, size):
    source = tmp_path / "in"
    source.mkdir()
    (source / "claims.png").write_bytes(header_only_png(*size))
    Image.fromarray(noise(10, 10, 3)).save(source / "good.png")
    os.mkfifo(source / "pipe.png")
    out = tmp_path / "out"
    assert main([str(source), "--out", str(out), "--weights", str(weights), *MODEL]) == 1
    assert (out / "good.png").is_file()
    printed = capsys.readouterr()
    assert "not restored: 1" in printed.err
    assert "pipe.png: a FIFO, not a file" in printed.out


def test_a_rerun_beside_the_sources_restores_nothing_twice(tmp_path, weights, capsys, monkeypatch):
    Image.fromarray(noise(10, 10, 3)).save(tmp_path / "a.png")
    options = ["--out", str(tmp_path), "--suffix", "_x2", "--weights", str(weights), *MODEL]
    assert main([str(tmp_path / "a.png"), *options]) == 0
    folder = tmp_path / "b"
    folder.mkdir()
    (tmp_path / "a.png").rename(folder / "a.png")
    for name in ("a_x2.png", RECORD):
        (tmp_path / name).rename(folder / name)

    def no_restorer(*_, **__):
        raise AssertionError("a rerun with nothing to do opens no runner")

    monkeypatch.setattr(restore_files, "make_restorer", no_restorer)
    options[1] = str(folder)
    capsys.readouterr()
    assert main([str(folder), *options]) == 0
    printed = capsys.readouterr().out
    assert "left alone: 1 result " in printed and "1 result of an earlier run" in printed
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["a.png", "a_x2.png"]


def test_a_name_that_is_not_utf_8(tmp_path, weights):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    name = os.fsdecode(b"\xff\xe9.png")
    Image.fromarray(noise(10, 10, 3)).save(source / name)
    (source / os.fsdecode(b"bad\xff.png")).write_bytes(b"")
    os.mkfifo(source / os.fsdecode(b"pipe\xff.png"))
    command = [sys.executable, "-m", "jaxsr.restore", str(source), "--out", str(out)]
    command += ["--weights", str(weights), *MODEL]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 1 and b"Traceback" not in done.stderr, done.stderr
    assert b"bad\\udcff.png: zero bytes" in done.stderr and b"pipe\\udcff.png" in done.stdout
    assert (out / name).is_file()


def test_a_suffix_that_makes_names_too_long_ends_no_batch(tmp_path, weights, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.png", f"{'b' * 248}.png"):
        Image.fromarray(noise(10, 10, 3)).save(folder / name)
    arguments = [str(folder), "--weights", str(weights), *MODEL, "--out", str(tmp_path / "out")]
    assert main([*arguments, "--suffix", "_larger_x2"]) == 1
    assert (tmp_path / "out" / "a_larger_x2.png").is_file()
    errors = capsys.readouterr().err
    assert "not restored: 1" in errors and "File name too long" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", ""], "--out got an empty text"),
        (["--truth="], "--truth got an empty text"),
        (["--model", ""], "--model got an empty text"),
        (["--report", "FILE", "--truth", "."], "choose another --report"),
        (["--value-range", "-inf", "inf"], "value_range must be finite, got -inf"),
    ],
)
def test_options_without_sense_are_one_line(tmp_path, weights, capsys, options, message):
    Image.fromarray(noise(10, 10, 3)).save(tmp_path / "a.png")
    (tmp_path / "FILE").write_text("notes")
    options = [str(tmp_path / "FILE") if word == "FILE" else word for word in options]
    arguments = [str(tmp_path / "a.png"), "--out", str(tmp_path / "out"), "--weights", str(weights)]
    assert main([*arguments, *MODEL, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_empty_name_is_not_the_current_folder(weights, capsys):
    assert main(["", "--weights", str(weights), *MODEL]) == 2
    assert "'': an empty name" in capsys.readouterr().err


def test_a_path_that_is_not_there_is_named():
    with pytest.raises(MissingFileError, match=r"no file nothing\.jpg; give the path of an image"):
        as_picture("nothing.jpg", 0)
