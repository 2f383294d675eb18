"""Videos: frames restored, everything else as it was, read back by PyAV."""

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxsr.restore import main
from tests.restoration import networks

av = pytest.importorskip("av", reason="videos need PyAV")

RATE = Fraction(30000, 1001)
MODEL = ("--engine", "torch", "--platform", "cpu", "--model", "tests.restoration.networks:Small")


def film(path: Path, *, codec: str = "libx264", pixels: str = "yuv420p", frames: int = 9) -> Path:
    """A moving gradient with a tone; the frames' times have a gap."""
    y, x = np.mgrid[:48, :80]
    with av.open(str(path), "w") as out:
        video = out.add_stream(codec, rate=RATE, options={"crf": "10"} if codec != "ffv1" else {})
        video.width, video.height, video.pix_fmt = 80, 48, pixels
        audio = out.add_stream("aac", rate=44100)
        for index in range(frames):
            picture = np.stack([(x * 3 + index) % 256, y * 5, (x + y + 9 * index) % 256], -1)
            frame = av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = index + (3 if index > 4 else 0), 1 / RATE
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
        tone = np.sin(np.arange(13 * 1024) / 9).astype(np.float32)[None]
        for start in range(0, tone.shape[1], 1024):
            frame = av.AudioFrame.from_ndarray(tone[:, start : start + 1024], "fltp", "mono")
            frame.rate, frame.pts = 44100, start
            out.mux(audio.encode(frame))
        out.mux(audio.encode(None))
    return path


def packets(path: Path, kind: str) -> list[tuple]:
    with av.open(str(path)) as container:
        return [
            (float(packet.pts * packet.time_base), bytes(packet))
            for packet in container.demux(**{kind: 0})
            if packet.pts is not None
        ]


def frames_of(path: Path) -> list:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def weights_of(network: torch.nn.Module, folder: Path) -> Path:
    torch.save(network.state_dict(), folder / "w.pt")
    return folder / "w.pt"


def run(path: Path, out: Path, network: torch.nn.Module, *options: str) -> int:
    weights = weights_of(network, path.parent)
    return main([str(path), "--out", str(out), "--weights", str(weights), *MODEL, *options])


@pytest.mark.parametrize(("ending", "codec"), [(".mp4", "libx264"), (".mkv", "ffv1")])
def test_frames_grow_and_the_rest_stays(tmp_path, ending, codec):
    torch.manual_seed(0)
    network = networks.Small()
    source = film(tmp_path / f"a{ending}", codec=codec)
    assert run(source, tmp_path / "out", network) == 0
    result = tmp_path / "out" / source.name
    assert packets(result, "audio") == packets(source, "audio")
    before, after = frames_of(source), frames_of(result)
    assert [f.time for f in after] == pytest.approx([f.time for f in before], abs=1e-3)
    assert {(f.width, f.height, f.format.name) for f in after} == {(160, 96, "yuv420p")}
    with av.open(str(result)) as container:
        assert container.streams.video[0].codec_context.name == codec.removeprefix("lib")[-4:] or (
            container.streams.video[0].codec_context.name == "h264"
        )
    picture = before[3].to_ndarray(format="rgb24")
    planes = torch.from_numpy(np.moveaxis(picture / 255, -1, 0)[None].astype(np.float32))
    with torch.no_grad():
        want = np.moveaxis(network.eval()(planes)[0].clamp(0, 1).numpy(), 0, -1) * 255
    got = after[3].to_ndarray(format="rgb24")
    # 4:2:0 halves the result's chroma, and H.264 is lossy: compare luma.
    luma = np.array([0.299, 0.587, 0.114])
    assert np.abs((got - want) @ luma).mean() < 2


def test_luma_network_passes_chroma_through(tmp_path):
    network = networks.Small(scale=1, channels=1)
    torch.nn.init.zeros_(network.last.weight)
    assert network.last.bias is not None
    torch.nn.init.constant_(network.last.bias, 0.25)  # adds 0.05 to every pixel
    source = film(tmp_path / "a.mkv", codec="ffv1")  # lossless: any change is ours
    options = ("--model-options", '{"scale": 1, "channels": 1}')
    assert run(source, tmp_path / "out", network, *options) == 0
    for before, after in zip(frames_of(source), frames_of(tmp_path / "out" / "a.mkv"), strict=True):
        old, new = before.to_ndarray(), after.to_ndarray()  # Y above U and V
        np.testing.assert_array_equal(new[48:], old[48:])
        want = np.rint(np.minimum(old[:48].astype(float) + 0.05 * 255, 255))
        assert np.abs(new[:48] - want).max() <= 1


def unchanging() -> networks.Small:
    """Gives its input back."""
    network = networks.Small(scale=1)
    for values in network.last.parameters():
        torch.nn.init.zeros_(values)
    return network


@pytest.mark.parametrize(
    ("ending", "codec", "pixels"),
    [("avi", "huffyuv", "rgb24"), ("avi", "rawvideo", "bgr24"), ("avi", "rawvideo", "rgb555le"),
     ("mov", "qtrle", "rgb24"), ("mov", "png", "rgb48be"), ("avi", "utvideo", "gbrp"),
     ("mov", "png", "pal8"), ("mov", "qtrle", "gray")],
)  # fmt: skip
def test_rgb_keeps_its_colours_where_the_result_is_yuv(tmp_path, ending, codec, pixels):
    """FFmpeg reads the result by its own tags; it was BT.601 with the tag of BT.709."""
    network = unchanging()
    source, colours = tmp_path / f"a.{ending}", (200, 60, 30)
    with av.open(str(source), "w") as out:
        video = out.add_stream(codec, rate=10)
        video.width, video.height, video.pix_fmt = 32, 16, pixels
        frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), colours, np.uint8))
        if pixels == "pal8":
            palette = np.full((256, 4), (255, *colours), np.uint8)
            indices = np.zeros((16, 32), np.uint8)
            frame = av.VideoFrame.from_ndarray((indices, palette), format="pal8")
        for _ in range(3):
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
    assert run(source, tmp_path / "out", network, "--model-options", '{"scale": 1}') == 0
    result = frames_of(tmp_path / "out" / source.name)[0]
    want = frames_of(source)[0].to_ndarray(format="rgb24")[8, 16].astype(int)
    if not result.format.name.startswith("gray"):
        assert not result.format.is_rgb and (result.colorspace, result.color_range) == (1, 1)
    got = result.reformat(format="yuv444p").to_ndarray(format="rgb24")[8, 16].astype(int)
    assert np.abs(got - want).max() <= 4, (got, want)


def test_a_video_becomes_no_darker(tmp_path):
    """The mean of Y stays through RGB and back, where chroma is subsampled too."""
    network = unchanging()
    source = film(tmp_path / "a.mkv", codec="ffv1")
    assert run(source, tmp_path / "out", network, "--model-options", '{"scale": 1}') == 0
    for before, after in zip(frames_of(source), frames_of(tmp_path / "out" / "a.mkv"), strict=True):
        luma = [frame.to_ndarray()[:48].astype(float) for frame in (before, after)]
        assert abs(luma[1].mean() - luma[0].mean()) < 0.3


def test_a_matrix_that_cannot_be_converted_is_one_line(tmp_path, capsys):
    source = film(tmp_path / "plain.mkv", frames=2)
    with av.open(str(source)) as plain, av.open(str(tmp_path / "a.mkv"), "w") as out:
        video = out.add_stream("libx264", rate=RATE)
        video.width, video.height, video.pix_fmt = 80, 48, "yuv444p"
        video.codec_context.colorspace = 8
        for frame in plain.decode(video=0):
            out.mux(video.encode(frame.reformat(format="yuv444p")))
        out.mux(video.encode(None))
    assert run(tmp_path / "a.mkv", tmp_path / "out", networks.Small()) == 1
    error = capsys.readouterr().err
    assert "a.mkv: its colour matrix is YCgCo, and only" in error and "zscale" in error
    assert not [*(tmp_path / "out").glob("[!.]*")]


def test_ten_bits_stay_ten_bits(tmp_path):
    source = film(tmp_path / "a.mkv", codec="ffv1", pixels="yuv420p10le")
    assert run(source, tmp_path / "out", networks.Small()) == 0
    assert frames_of(tmp_path / "out" / "a.mkv")[0].format.name == "yuv420p10le"


def test_a_broken_video_is_listed_and_leaves_nothing(tmp_path, capsys):
    source = film(tmp_path / "good.mp4", frames=3)
    (tmp_path / "cut.mp4").write_bytes(source.read_bytes()[:900])
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "zero.mp4").write_bytes(b"")
    weights = weights_of(networks.Small(), tmp_path)
    inputs = [str(tmp_path / f"{name}.mp4") for name in ("cut", "text", "zero", "good")]
    out = tmp_path / "out"
    assert main([*inputs, "--out", str(out), "--weights", str(weights), *MODEL]) == 1
    assert [path.name for path in out.glob("[!.]*")] == ["good.mp4"]
    error = capsys.readouterr().err
    assert "not restored: 3" in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.mp4", "#EXTM3U\n#EXTINF:1,\nother.mp4\n#EXT-X-ENDLIST\n"),
        ("list.mkv", "ffconcat version 1.0\nfile other.mp4\n"),
    ],
)
def test_playlists_open_no_other_files(tmp_path, name, text):
    from jaxsr.data.video import UnreadableVideo, open_video

    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableVideo), open_video(tmp_path / name):
        pass


def test_frames_larger_than_the_limit_are_refused(tmp_path):
    from jaxsr.data.video import UnreadableVideo, open_video
    from tests.oracles.hostile.files import videos

    path = tmp_path / "a.mp4"
    path.write_bytes(videos()["a.mp4"])
    with (
        pytest.raises(UnreadableVideo, match="64×48 pixels claimed; more than 3,071"),
        open_video(path, max_pixels=64 * 48 - 1),
    ):
        pass


def test_films_of_one_name_do_not_replace_each_other(tmp_path, capsys):
    torch.manual_seed(0)
    network = networks.Small()
    sources = [tmp_path / folder / "a.mp4" for folder in ("first", "second")]
    for frames, source in enumerate(sources, 2):
        source.parent.mkdir()
        film(source, frames=frames)
    out, weights = tmp_path / "out", weights_of(network, tmp_path)
    words = [*map(str, sources), "--out", str(out), "--weights", str(weights), *MODEL]
    assert main(words) == 1
    assert (
        f"its result would be {out / 'a.mp4'}, as that of {sources[0]}" in capsys.readouterr().err
    )
    assert len(frames_of(out / "a.mp4")) == 2


def test_a_name_too_long_for_the_result_is_one_line(tmp_path, capsys):
    torch.manual_seed(0)
    source = tmp_path / "in"
    source.mkdir()
    long = film(source / f"{'m' * 246}.mp4", frames=2)
    film(source / "z.mp4", frames=2)  # the one after
    assert run(source, tmp_path / "out", networks.Small(), "--suffix", "_restored") == 1
    printed = capsys.readouterr()
    assert "not restored: 1\n" in printed.err
    assert "File name too long" in printed.err.split(str(long))[1]
    assert "restored 1 file" in printed.out
    assert len(frames_of(tmp_path / "out" / "z_restored.mp4")) == 2


def test_a_film_that_is_cut_short_fails_again(tmp_path, capsys):
    """Its result stays, and a second command does not take it for the whole film."""
    torch.manual_seed(0)
    whole = film(tmp_path / "whole.mkv", codec="ffv1", frames=30)
    source = tmp_path / "a.mkv"
    source.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])
    weights = weights_of(networks.Small(), tmp_path)
    for _ in range(2):
        words = [str(source), "--out", str(tmp_path / "out"), "--weights", str(weights), *MODEL]
        assert main(words) == 1
        assert "the result holds what could be read" in capsys.readouterr().err
    assert frames_of(tmp_path / "out" / "a.mkv")


def test_a_film_of_joined_segments_follows_on(tmp_path):
    source = film(tmp_path / "a.ts")
    data, before, sound = source.read_bytes(), frames_of(source), packets(source, "audio")
    source.write_bytes(data * 3)
    assert run(source, tmp_path / "out", networks.Small()) == 0
    times = [frame.time for frame in frames_of(tmp_path / "out" / "a.ts")]
    joined = packets(tmp_path / "out" / "a.ts", "audio")
    assert len(times) == 3 * len(before) and np.diff(times).min() > 0.03
    assert [part for _, part in joined] == [part for _, part in sound] * 3
    assert np.diff([time for time, _ in joined]).min() > 0.02
    shifts = [[times[9 * n] - times[0], joined[len(sound) * n][0] - joined[0][0]] for n in (1, 2)]
    np.testing.assert_allclose([s[0] for s in shifts], [s[1] for s in shifts], atol=1e-4)  # a tick


def test_an_encoder_that_refuses_the_result_is_not_the_sources_fault(tmp_path, capsys):
    with av.open(str(tmp_path / "wide.mp4"), "w") as out:
        video = out.add_stream("libx264", rate=10)
        video.width, video.height = 2100, 16  # eightfold, more than H.264's 16384
        out.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((16, 2100, 3), np.uint8))))
        out.mux(video.encode(None))
    network = networks.Small()
    assert run(tmp_path / "wide.mp4", tmp_path / "out", network, "--outscale", "8") == 1
    error = capsys.readouterr().err
    assert "wide.mp4: FFmpeg cannot encode or write wide.mp4 (" in error
    assert "try a copy of the video (ffmpeg -i VIDEO COPY.mkv), or a smaller result" in error


def test_encoders_print_nothing(tmp_path, capfd, monkeypatch):
    """They would describe themselves in twenty lines, past Python's own streams."""
    monkeypatch.delenv("SVT_LOG", raising=False)
    source = film(tmp_path / "a.mkv", codec="libx265", frames=2)
    capfd.readouterr()
    assert run(source, tmp_path / "out", networks.Small()) == 0
    assert "info]" not in capfd.readouterr().err
    assert os.environ["SVT_LOG"] == "1"  # which SVT-AV1 reads once in a process: errors alone
