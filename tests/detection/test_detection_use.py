"""Finding targets in pictures with the command, and its results."""

import csv
import json
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from jaxsr.data.scenes import open_scenes
from jaxsr.detect import main
from jaxsr.detection.targets import find_targets, overlay
from tests.detection.detectors import spotted


def test_targets_have_boxes_centroids_and_scores():
    probability = np.full((20, 30), 0.1, np.float32)
    probability[3:5, 7:10] = 0.8
    probability[4, 8] = 0.95
    probability[19, 29] = 0.7
    detection, mask = find_targets("a", probability)
    first, second = detection.targets
    assert (first.left, first.top, first.width, first.height, first.area_px) == (7, 3, 3, 2, 6)
    assert (first.x, first.y) == (8.0, 3.5) and first.score == pytest.approx(0.95)
    assert (second.x, second.y, second.area_px) == (29.0, 19.0, 1)
    assert mask.sum() == 255 * 7
    larger, without = find_targets("a", probability, least_px=2)
    assert larger.targets == (first,) and without[19, 29] == 0
    assert not find_targets("a", probability, threshold=0.96)[0].targets
    image = np.zeros((20, 30, 3), np.uint8)
    shown = overlay(image, detection, mask)
    assert shown.shape == image.shape and shown[3, 7, 0] > 100 and not image.any()


def _detect(*arguments):
    return main([str(a) for a in (*arguments, "--engine", "torch")])


def test_command_writes_masks_overlays_and_tables(weights, tmp_path):
    source = tmp_path / "in" / "deep"
    source.mkdir(parents=True)
    for number, size in enumerate([(40, 56), (33, 90)]):
        Image.fromarray(spotted(*size, (9, 9, 3, 3))).save(source / f"{number}.png")
    out = tmp_path / "out"
    status = _detect(tmp_path / "in", "--model", weights, "--out", out, "--threshold", "0.3")
    assert status == 0
    described = json.loads((out / "targets.json").read_text())
    assert described["weights"] is None
    assert [p["file"] for p in described["pictures"]] == ["deep/0.png", "deep/1.png"]
    rows = list(csv.DictReader((out / "targets.csv").open()))
    assert len(rows) == sum(len(p["targets"]) for p in described["pictures"])
    for number, size in enumerate([(40, 56), (33, 90)]):
        mask = np.asarray(Image.open(out / "masks" / "deep" / f"{number}.png"))
        assert mask.shape == size and set(np.unique(mask)) <= {0, 255}
        shown = np.asarray(Image.open(out / "overlays" / "deep" / f"{number}.png"))
        assert shown.shape == (*size, 3)
        areas = [int(r["area_px"]) for r in rows if r["file"] == f"deep/{number}.png"]
        assert sum(areas) == (mask > 0).sum()


def test_an_image_that_two_inputs_name_counts_once(weights, tmp_path, capsys):
    Image.fromarray(spotted(40, 56, (9, 9, 3, 3))).save(tmp_path / "a.png")
    out, words = tmp_path / "out", ["--model", weights, "--threshold", "0.01"]
    assert _detect(tmp_path, tmp_path / "a.png", *words, "--out", out) == 0
    (picture,) = json.loads((out / "targets.json").read_text())["pictures"]
    rows = (out / "targets.csv").read_text().splitlines()[1:]
    assert len(rows) == len(picture["targets"]) > 0 and "earlier input" in capsys.readouterr().out


def test_without_a_model_the_shipped_weights_find_targets_they_never_saw(
    tmp_path, monkeypatch, capsys
):
    scenes = open_scenes(12, seed=0, side=128, split="test")
    pairs = {f"{number:02}": scenes.load(name) for number, name in enumerate(scenes.names)}
    (tmp_path / "in").mkdir()
    for name, (image, _) in pairs.items():
        Image.fromarray(image).save(tmp_path / "in" / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    assert _detect("in") == 0
    assert "trained on drawn scenes alone" in capsys.readouterr().out
    shared = union = 0
    for name, (_, mask) in pairs.items():
        predicted = np.asarray(Image.open(tmp_path / "detected" / "masks" / f"{name}.png")) > 0
        shared += np.count_nonzero(predicted & (mask > 0))
        union += np.count_nonzero(predicted | (mask > 0))
    assert shared / union > 0.6


def _film(path, *, frames=5, size=(48, 64), codec="ffv1", pixels="gray", rotation=0, aspect=1):
    """A spot that moves, on frames whose times have a gap."""
    av = pytest.importorskip("av", reason="videos need PyAV")
    with av.open(str(path), "w") as out:
        video = out.add_stream(codec, rate=10)
        video.height, video.width, video.pix_fmt = *size, pixels
        video.time_base = Fraction(1, 10)
        video.set_display_rotation(rotation)
        video.codec_context.sample_aspect_ratio = Fraction(aspect)
        for number in range(frames):
            picture = spotted(*size, (9, 3 + 8 * number % 48, 4, 4))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number + 7 * (number > 2), Fraction(1, 10)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
    return path


def test_a_line_tells_of_16_bits_that_become_few_levels(weights, tmp_path, capsys):
    scene = spotted(48, 64, (9, 3, 4, 4))[..., 0].astype(np.uint16)
    for name, gain in (("whole", 257), ("camera", 8)):
        Image.fromarray(scene * gain).save(tmp_path / f"{name}.png")
    Image.fromarray((scene // 8).astype(np.uint8)).save(tmp_path / "dark.png")
    _film(tmp_path / "film.mkv", pixels="gray10le")
    assert _detect(tmp_path, "--model", weights, "--out", tmp_path / "out") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "note: " in line]
    assert "camera.png: samples of more than 8 bits become" in line


def test_a_shorter_video_leaves_no_masks_of_the_longer_one(weights, tmp_path):
    film, out = tmp_path / "film.mkv", tmp_path / "out"
    for frames in (5, 3):
        _film(film, frames=frames)
        assert _detect(film, "--model", weights, "--out", out) == 0
        masks = sorted(path.name for path in (out / "masks" / "film").iterdir())
        assert masks == [f"{number:06}.png" for number in range(frames)]


def test_the_overlay_of_joined_segments_follows_on(weights, tmp_path):
    av = pytest.importorskip("av", reason="videos need PyAV")
    film = _film(tmp_path / "film.ts", codec="libx264", pixels="yuv420p")
    film.write_bytes(film.read_bytes() * 2)
    assert _detect(film, "--model", weights, "--out", tmp_path / "out") == 0
    with av.open(str(tmp_path / "out" / "overlays" / "film.mp4")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert np.diff(times) == pytest.approx([0.1, 0.1, 0.8, 0.1, 0.1, 0.1, 0.1, 0.8, 0.1], abs=1e-3)


def test_images_in_a_folder_of_a_videos_name_are_refused(weights, tmp_path, capsys):
    films, out = tmp_path / "films", tmp_path / "out"
    (films / "film").mkdir(parents=True)
    _film(films / "film.mkv")
    Image.fromarray(spotted(48, 64, (9, 3, 4, 4))).save(films / "film" / "000000.png")
    assert _detect(films, "--model", weights, "--out", out) == 2
    assert "would both be written as masks/film" in capsys.readouterr().err
    assert not out.exists()


def test_a_video_that_cannot_be_opened_leaves_earlier_masks(weights, tmp_path):
    film, out = _film(tmp_path / "film.mkv"), tmp_path / "out"
    assert _detect(film, "--model", weights, "--out", out) == 0
    film.write_bytes(film.read_bytes()[:40])
    assert _detect(film, "--model", weights, "--out", out) == 1
    assert len([*(out / "masks" / "film").iterdir()]) == 5


class NotANumber(torch.nn.Module):
    """NaN where a target is bright."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = x.mean(1, keepdim=True)
        return torch.where(x > 0, x + torch.nan, x - 1) + self.bias


def test_nan_is_not_taken_for_no_target(tmp_path, capsys):
    _film(tmp_path / "film.mkv")
    for name, boxes in (("a", [(9, 3, 4, 4)]), ("b", [])):
        Image.fromarray(spotted(48, 64, *boxes)).save(tmp_path / f"{name}.png")
    torch.save(NotANumber().state_dict(), tmp_path / "w.pth")
    words = ["--model", "tests.detection.test_detection_use:NotANumber", "--out", tmp_path / "out"]
    words += ["--weights", tmp_path / "w.pth"]
    assert _detect(tmp_path, *words, "--size", "native") == 1
    said = capsys.readouterr().err
    assert all(
        f"{tmp_path / name}: the network returned NaN" in said for name in ("a.png", "film.mkv")
    )
    assert (tmp_path / "out/masks/b.png").exists() and not (tmp_path / "out/masks/a.png").exists()


class Bright(torch.nn.Module):
    """Logits above 0 where the image is bright."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x.mean(1, keepdim=True) - 1 + self.bias


def test_a_long_video_takes_no_more_memory_than_a_short_one(tmp_path):
    torch.save(Bright().state_dict(), tmp_path / "w.pth")
    words = ["--model", "tests.detection.test_detection_use:Bright", "--size", "native"]
    words += ["--weights", tmp_path / "w.pth", "--batch", "2", "--out", tmp_path / "out"]
    peaks = []
    for frames in (6, 6, 46):  # the first command loads libraries
        film = _film(tmp_path / "film.mkv", frames=frames, size=(480, 640))
        tracemalloc.start()
        assert _detect(film, *words) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(json.loads((tmp_path / "out/targets.json").read_text())["pictures"]) == 46
    assert peaks[2] - peaks[1] < 6 * 480 * 640  # bytes of a mask, of which 40 more are written


@pytest.mark.parametrize("size", [(48, 64), (45, 63)])
def test_command_takes_videos_and_keeps_their_times(weights, tmp_path, size):
    av = pytest.importorskip("av", reason="videos need PyAV")
    film, out = _film(tmp_path / "film.mkv", size=size), tmp_path / "out"
    assert _detect(film, "--model", weights, "--out", out, "--batch", "2") == 0
    pictures = json.loads((out / "targets.json").read_text())["pictures"]
    assert [p["frame"] for p in pictures] == list(range(5))
    masks = sorted((out / "masks" / "film").iterdir())
    assert [np.asarray(Image.open(mask)).shape for mask in masks] == [size] * 5
    with av.open(str(out / "overlays" / "film.mp4")) as container:
        shown = list(container.decode(video=0))
    assert [frame.time for frame in shown] == pytest.approx([0, 0.1, 0.2, 1.0, 1.1])
    assert (shown[0].height, shown[0].width) == size


def test_a_turned_video_is_looked_at_upright(weights, tmp_path):
    av = pytest.importorskip("av", reason="videos need PyAV")
    film, out = _film(tmp_path / "film.mkv", rotation=90), tmp_path / "out"
    assert _detect(film, "--model", weights, "--out", out) == 0
    with av.open(str(film)) as container:
        height, width = container.streams.video[0].height, container.streams.video[0].width
    masks = sorted((out / "masks" / "film").iterdir())
    assert {np.asarray(Image.open(mask)).shape for mask in masks} == {(width, height)}
    with av.open(str(out / "overlays" / "film.mp4")) as container:
        shown = next(container.decode(video=0))
    assert (shown.height, shown.width, shown.rotation) == (width, height, 0)


@pytest.mark.parametrize(("rotation", "shown"), [(0, 2), (90, Fraction(1, 2)), (180, 2)])
def test_wide_pixels_of_a_turned_video_become_high_ones(weights, tmp_path, rotation, shown):
    av = pytest.importorskip("av", reason="videos need PyAV")
    film, out = tmp_path / "film.mp4", tmp_path / "out"
    _film(film, codec="libx264", pixels="yuv420p", rotation=rotation, aspect=2)
    assert _detect(film, "--model", weights, "--out", out) == 0
    with av.open(str(out / "overlays" / "film.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == shown


def test_a_damaged_video_is_named_and_its_whole_frames_are_kept(weights, tmp_path, capsys):
    film = _film(tmp_path / "film.mkv", frames=40)
    film.write_bytes(film.read_bytes()[: int(0.7 * film.stat().st_size)])
    (tmp_path / "text.mp4").write_text("no video")
    out = tmp_path / "out"
    assert _detect(tmp_path, "--model", weights, "--out", out) == 1
    assert "text.mp4" in capsys.readouterr().err
    pictures = json.loads((out / "targets.json").read_text())["pictures"]
    assert 5 < len(pictures) < 40 and (out / "overlays" / "film.mp4").is_file()
    assert not (out / "overlays" / "text.mp4").exists()
    assert not list((out / "overlays").glob(".*"))


def test_names_that_are_not_utf8_keep_their_results(weights, tmp_path):
    import csv
    import os

    name = os.fsdecode(b"a\xff.png")
    Image.fromarray(spotted(32, 32, (5, 5, 3, 3))).save(tmp_path / name)
    out = tmp_path / "out"
    assert _detect(tmp_path / name, "--model", weights, "--out", out, "--threshold", "0.01") == 0
    assert (out / "masks" / name).is_file()
    with (out / "targets.csv").open(encoding="utf-8", errors="surrogateescape") as file:
        assert {row["file"] for row in csv.DictReader(file)} <= {name}
    (picture,) = json.loads((out / "targets.json").read_text())["pictures"]
    assert picture["file"] == name


def test_names_as_long_as_the_file_system_has_them_are_written(weights, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    Image.fromarray(spotted(32, 32)).save(tmp_path / "b.png")
    for name in ("x" * 251 + ".png", "y" * 244 + ".png", "b.png"):
        (tmp_path / "in" / name).write_bytes((tmp_path / "b.png").read_bytes())
    out = tmp_path / "out"
    assert _detect(tmp_path / "in", "--model", weights, "--out", out) == 0
    assert len([*(out / "masks").iterdir()]) == len([*(out / "overlays").iterdir()]) == 3
    assert "too long" not in capsys.readouterr().err


def test_unreadable_pictures_are_named_and_the_rest_is_done(weights, tmp_path, capsys):
    Image.fromarray(spotted(32, 32)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"not an image")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:2000])
    out = tmp_path / "out"
    assert _detect(tmp_path, "--model", weights, "--out", out) == 1
    error = capsys.readouterr().err
    assert "bad.png" in error and "cut.png" in error and len(error.splitlines()) == 2
    assert [path.name for path in (out / "masks").iterdir()] == ["good.png"]
    described = json.loads((out / "targets.json").read_text())
    assert [picture["file"] for picture in described["pictures"]] == ["good.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--platform", "cuda"], "torch finds no CUDA device; use --platform cpu"),
        (["--platform", "tpu"], "the torch engine runs on cuda or cpu"),
        (["--mesh", "2"], "the torch engine runs on one device, got mesh=2"),
    ],
)
def test_the_torch_engine_refuses_what_it_has_not(
    weights, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Image.fromarray(spotted(32, 32)).save(tmp_path / "a.png")
    command = [tmp_path / "a.png", "--model", weights, "--out", tmp_path / "out", *arguments]
    assert _detect(*command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_refused_before_any_work(weights, tmp_path, capsys):
    Image.fromarray(spotted(32, 32)).save(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    assert _detect(tmp_path / "a.png", "--model", weights, "--out", out) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_dtype_and_precision_are_options(weights, tmp_path):
    Image.fromarray(spotted(32, 32)).save(tmp_path / "a.png")
    command = [tmp_path / "a.png", "--model", weights, "--out", tmp_path / "out"]
    assert _detect(*command, "--dtype", "bfloat16", "--matmul-precision", "highest") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.png"], "no images found (nothing.png: no such file or folder)"),
        ([], "no input"),
        (["{picture}", "--threshold", "1.5"], "threshold must be"),
        (["{picture}", "--least-px", "0"], "least_px must be"),
        (["{picture}", "--base", "40"], "base must be"),
        (["{picture}", "--model", "none.pth"], "no weights file"),
        (["{picture}", "--model", "{picture}"], "weights are read from"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(weights, tmp_path, capsys, arguments, said):
    picture = tmp_path / "a.png"
    Image.fromarray(spotted(32, 32)).save(picture)
    command = [a.replace("{picture}", str(picture)) for a in arguments]
    if "--model" not in command:
        command += ["--model", str(weights)]
    assert _detect(*command, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "Traceback" not in error
    assert not (tmp_path / "out" / "targets.csv").exists()


def test_a_data_set_keeps_its_masks(weights, tmp_path, capsys):
    """Its masks have the names of results: they were replaced, with status 0."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        Image.fromarray(spotted(32, 32)).save(tmp_path / kind / "a.png")
    mask = (tmp_path / "masks/a.png").read_bytes()
    assert _detect(tmp_path / "images", "--model", weights, "--out", tmp_path) == 2
    assert "masks/a.png); choose another --out" in capsys.readouterr().err
    assert (tmp_path / "masks/a.png").read_bytes() == mask
    for _ in range(2):
        assert _detect(tmp_path / "images", "--model", weights, "--out", tmp_path / "out") == 0
