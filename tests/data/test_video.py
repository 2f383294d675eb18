"""Frames of videos as players show them."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jaxsr.data.video import display_matrix, frame_count, open_video, turned, write_video

av = pytest.importorskip("av", reason="videos need PyAV")


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
@pytest.mark.parametrize("mirrored", [False, True])
def test_turned_is_what_a_player_shows(tmp_path, degrees, mirrored):
    """As FFmpeg's display.h defines it: turned against the clock, then mirrored."""
    path, pixels = tmp_path / "a.mkv", np.random.default_rng(0).integers(0, 256, (48, 80, 3))
    with av.open(str(path), "w") as out:
        video = out.add_stream("ffv1", rate=30)
        video.width, video.height, video.pix_fmt = 80, 48, "bgr0"
        video.set_display_rotation(degrees, hflip=mirrored)
        frame = av.VideoFrame.from_ndarray(pixels.astype(np.uint8), format="rgb24")
        frame.pts, frame.time_base = 0, Fraction(1, 30)
        out.mux(video.encode(frame))
        out.mux(video.encode(None))
    with open_video(path) as reading:
        frame = next(reading.frames())
    want = np.rot90(pixels, degrees // 90)
    want = want[:, ::-1] if mirrored else want
    shown = turned(frame.to_ndarray(format="rgb24"), display_matrix(frame))
    np.testing.assert_array_equal(shown, want)


@pytest.mark.parametrize("name", ["10:30.mkv", "http:127.0.0.1:9?x.mkv"])
def test_names_with_colons_are_of_files(tmp_path, monkeypatch, name):
    """FFmpeg takes a word before a colon for a protocol, and would fetch the second one."""
    monkeypatch.chdir(tmp_path)
    with write_video(Path(name)) as out:
        video = out.add_stream("ffv1", rate=30)
        video.width, video.height, video.pix_fmt = 16, 16, "bgr0"
        out.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))))
        out.mux(video.encode(None))
    with open_video(Path(name)) as reading:
        assert len([*reading.frames()]) == 1


def test_a_packet_that_ffmpeg_does_not_decode_is_damage(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        video = out.add_stream("ffv1", rate=30)
        video.width, video.height, video.pix_fmt = 16, 16, "bgr0"
        out.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))))
        out.mux(video.encode(None))

    def fails():
        raise av.InvalidDataError(1, "no picture")

    with open_video(path) as reading:
        stream = SimpleNamespace(index=0, type="video")
        assert not [*reading.decode(SimpleNamespace(stream=stream, decode=fails, size=1))]
        assert len([*reading.frames()]) == 1
        shortage = reading.shortage() or ""
        assert "damaged" in shortage and "no picture" in shortage


@pytest.mark.parametrize(("ending", "codec"), [("mkv", "libx264"), ("webm", "libvpx-vp9"),
                                               ("mp4", "libx264"), ("flv", "libx264")])  # fmt: skip
def test_a_video_that_begins_late_is_whole(tmp_path, ending, codec):
    path = tmp_path / f"a.{ending}"
    with av.open(str(path), "w") as out:
        video = out.add_stream(codec, rate=10)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        video.codec_context.time_base, video.codec_context.max_b_frames = Fraction(1, 1000), 0
        for number in range(30):
            noise = np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(noise)
            frame.pts, frame.time_base = 5000 + 100 * number, Fraction(1, 1000)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
    with open_video(path) as reading:
        assert len([*reading.frames()]) == 30 and reading.shortage() is None
    if ending in ("mkv", "webm"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
        with open_video(path) as reading:
            assert len([*reading.frames()]) < 25
            assert "of the 8.00 s that its header states" in (reading.shortage() or "")


@pytest.mark.parametrize("b_frames", [0, 2])
def test_times_of_an_avi_whose_clock_is_finer_than_its_frames(tmp_path, b_frames):
    """FFmpeg guesses them a frame late, and the last twice."""
    path, times = tmp_path / "a.avi", [0, 40, 100, 200, 300, 400, 520, 700, 800, 900]
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=1000)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        video.codec_context.max_b_frames = b_frames
        video.codec_context.time_base = Fraction(1, 1000)
        for number, time in enumerate(times):
            noise = np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(noise)
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
    with av.open(str(path)) as container:
        stored = [packet.dts for packet in container.demux(video=0) if packet.size]
    with open_video(path) as reading:
        assert [frame.pts for frame in reading.frames()] == stored


def test_frames_without_a_time_follow_the_one_before(tmp_path):
    """As of H.264 in MPEG-PS, several frames of which lie in one packet with a time."""
    path = tmp_path / "a.mpg"
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        video.codec_context.max_b_frames = 0
        for number in range(8):
            black = np.zeros((48, 64, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(black)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
    with open_video(path) as reading:
        times = [frame.pts for frame in reading.frames()]
    assert len(times) == 8 and set(np.diff(times)) == {3600}


@pytest.mark.parametrize(("times", "sound_s"), [
    (range(0, 1000, 100), None), (range(0, 1000, 100), (3, 6)), (range(4000, 5000, 100), (4, 5)),
    ((0, 5000, 10000), None), ((*range(0, 1000, 100), 9000), None),
])  # fmt: skip
@pytest.mark.parametrize("ending", ["avi", "flv", "mkv", "mp4", "ts"])
def test_whole_files_of_any_times_are_whole(tmp_path, ending, times, sound_s):
    path = tmp_path / f"a.{ending}"
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=10 if len(times) > 3 else 1)
        video.width, video.height, video.pix_fmt = 48, 32, "yuv420p"
        video.codec_context.time_base = Fraction(1, 1000)
        sound = out.add_stream("libmp3lame" if ending == "avi" else "aac", rate=48000)
        for time in times:
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8))
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
        first, last = sound_s or (0, 0)
        for start in range(48000 * first, 48000 * last, 1024):
            silence = np.zeros((2, 1024), np.float32)
            tone = av.AudioFrame.from_ndarray(silence, "fltp", "stereo")
            tone.rate, tone.pts, tone.time_base = 48000, start, Fraction(1, 48000)
            out.mux(sound.encode(tone))
        out.mux(sound.encode(None))
    with open_video(path) as reading:
        assert len([*reading.frames()]) == len(times) and reading.shortage() is None


@pytest.mark.parametrize(("ending", "codec"), [
    ("mp4", "libx264"), ("mkv", "libx264"), ("webm", "libvpx-vp9"), ("ts", "libx264"),
    ("mpg", "mpeg2video"), ("h264", "libx264"),
])  # fmt: skip
def test_frames_to_come(tmp_path, ending, codec):
    path = tmp_path / f"a.{ending}"
    with av.open(str(path), "w") as out:
        video = out.add_stream(codec, rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        for number in range(50):
            pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)
            out.mux(video.encode(av.VideoFrame.from_ndarray(pixels)))
        out.mux(video.encode(None))
    with open_video(path) as reading:
        stated = frame_count(reading.container)
        decoded = len([*reading.frames()])
    # MPEG-TS and MPEG-PS have no length but that of the times present.
    assert decoded == 50 and (stated == 0 if ending == "h264" else abs(stated - 50) <= 2)


def test_joined_transport_streams_follow_on(tmp_path):
    """At the times of FFmpeg's own concat demuxer."""
    for name, size in (("a.ts", (48, 32)), ("b.ts", (64, 48))):
        with av.open(str(tmp_path / name), "w") as out:
            video = out.add_stream("libx264", rate=25)
            video.width, video.height = size
            for number in range(9):
                pixels = np.full((*size[::-1], 3), 20 * number, np.uint8)
                out.mux(video.encode(av.VideoFrame.from_ndarray(pixels)))
            out.mux(video.encode(None))
    names = ("a.ts", "b.ts", "a.ts")
    (tmp_path / "list").write_text("".join(f"file {name}\n" for name in names))
    (tmp_path / "joined.ts").write_bytes(b"".join((tmp_path / n).read_bytes() for n in names))
    with av.open(str(tmp_path / "list"), format="concat", options={"safe": "0"}) as container:
        want = [frame.pts for frame in container.decode(video=0)]
    with open_video(tmp_path / "joined.ts") as reading:
        pts = [frame.pts for frame in reading.frames()]
        assert reading.shortage() is None
    assert np.diff(pts).tolist() == np.diff(want).tolist() == [3600] * 26
