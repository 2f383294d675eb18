"""Everything that a video file may hold, and what `restore` and `detect` make of it.

docs/formats.md is the table; each of its rows about videos has a case here, and no other has.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxsr.data.video import video_size
from jaxsr.restore import main
from tests.restoration import networks

av = pytest.importorskip("av", reason="videos need PyAV")

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
CASES: dict[tuple[str, str, str], Callable] = {}
HEIGHT, WIDTH, FRAMES = 48, 80, 9
CODECS = {"webm": "libvpx-vp9", "mpg": "mpeg2video", "ogv": "libvpx"}
SOUND = {"webm": "libopus", "ogv": "libopus", "mpg": "mp2"}
CHAPTERS = [
    {"id": n, "start": 100 * n, "end": 100 * n + 100, "time_base": Fraction(1, 1000),
     "metadata": {"title": f"part {n}"}}
    for n in range(3)
]  # fmt: skip


def case(containers: str, feature: str, outcome: str):
    """Registers a case: it gets a folder and the ending of each container in turn."""

    def register(function: Callable) -> Callable:
        CASES[containers, feature, outcome] = function
        return function

    return register


def pictures() -> list[np.ndarray]:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    planes = [np.stack([x * 3 + 20 * i, y * 5 + 7 * i, x + y + 9 * i], -1) % 256
              for i in range(FRAMES)]  # fmt: skip
    return [plane.astype(np.uint8) for plane in planes]


@contextlib.contextmanager
def film(path: Path, *, codec: str | None = None, pixels: str = "yuv420p", sound: bool = True,
         options: dict | None = None, rounds: int = 1) -> Iterator[Any]:  # fmt: skip
    """A film to which the block adds notes; frames and sound are written at its end."""
    ending = path.suffix[1:]
    with av.open(str(path), "w") as out:
        video = out.add_stream(codec or CODECS.get(ending, "libx264"), rate=30)
        video.options = options or {}
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, pixels
        audio = out.add_stream(SOUND.get(ending, "aac"), rate=48000) if sound else None
        yield out, video, audio
        for index, picture in enumerate(pictures() * rounds):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
        if audio is not None:
            layout = audio.codec_context.format.name
            rate = audio.codec_context.frame_size or 1024
            for index in range(15 * 1024 // rate):
                tone = np.zeros((2, rate) if layout.endswith("p") else (1, 2 * rate))
                kind = np.float32 if "flt" in layout else np.int16
                frame = av.AudioFrame.from_ndarray(tone.astype(kind), layout, "stereo")
                frame.rate, frame.pts = 48000, index * rate
                out.mux(audio.encode(frame))
            out.mux(audio.encode(None))


def restored(path: Path, capsys, *, status: int = 0) -> tuple[Path, str]:
    """The result of a network that enlarges twofold, and what was printed."""
    torch.manual_seed(0)
    weights = path.with_suffix(".pt")
    torch.save(networks.Small().state_dict(), weights)
    words = [
        "--engine",
        "torch",
        "--platform",
        "cpu",
        "--model",
        "tests.restoration.networks:Small",
    ]
    result = path.parent / "out" / path.name
    assert (
        main([str(path), "--out", str(result.parent), "--weights", str(weights), *words]) == status
    )
    said = capsys.readouterr()
    return result, said.out + said.err


def facts(path: Path) -> dict:
    with av.open(str(path)) as container:
        streams = {s.type: s for s in container.streams}
        found = {
            "film": dict(container.metadata),
            "chapters": [
                (float(c["start"] * c["time_base"]), c["metadata"]) for c in container.chapters()
            ],
            "tracks": {k: dict(s.metadata) for k, s in streams.items()},
            "flags": {k: int(s.disposition) for k, s in streams.items()},
            "kinds": [s.type for s in container.streams],
            "codec": container.streams.video[0].codec_context.name,
            "pixels": container.streams.video[0].codec_context.pix_fmt,
            "aspect": container.streams.video[0].sample_aspect_ratio,
        }
        frames = list(container.decode(video=0))
        found["frames"] = len(frames)
        found["sizes"] = {(f.height, f.width) for f in frames}
        found["matrix"] = [
            tuple(np.frombuffer(d, np.int32)) for d in frames[0].side_data
            if d.type.name == "DISPLAYMATRIX"
        ]  # fmt: skip
    return found


def copy_packets(source: Any, out: Any, copies: list) -> None:
    """Copies every packet to the stream of `copies` that stands for its own."""
    for packet in source.demux():
        if packet.size:
            packet.stream = copies[packet.stream.index]
            out.mux(packet)


@case("MP4, MOV, MKV, WebM", "rotation and mirroring (display matrix)", "kept")
def rotation(tmp_path, ending, capsys):
    for degrees, mirrored in ((90, False), (180, False), (-90, True)):
        path = tmp_path / f"turned{degrees}.{ending}"
        with film(path) as (_, video, _):
            video.set_display_rotation(degrees, hflip=mirrored)
        before = facts(path)
        result, said = restored(path, capsys)
        assert before["matrix"] and facts(result)["matrix"] == before["matrix"]
        assert "note:" not in said


@case("MP4, MOV, MKV, WebM, AVI, FLV", "the film's title and comment", "kept")
def film_titles(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}") as (out, _, _):
        out.metadata.update(title="A film", comment="of ours")
    found = facts(restored(tmp_path / f"a.{ending}", capsys)[0])["film"]
    assert {found.get("title"), found.get("comment", found.get("COMMENT"))} == {"A film", "of ours"}


@case("MP4, MKV, WebM", "languages, titles and flags of tracks", "kept")
def tracks(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}") as (_, video, audio):
        video.metadata.update(title="View", language="eng")
        audio.metadata.update(title="Ton", language="deu")
        audio.disposition = av.stream.Disposition.default | av.stream.Disposition.dub
    before = facts(tmp_path / f"a.{ending}")
    after = facts(restored(tmp_path / f"a.{ending}", capsys)[0])
    for kind in ("video", "audio"):
        for name in ("language", "title", "name"):
            assert after["tracks"][kind].get(name) == before["tracks"][kind].get(name)
        assert after["flags"][kind] == before["flags"][kind]
    assert after["tracks"]["audio"]["language"] == "deu"


@case("MPEG-TS", "languages of tracks", "kept")
def track_languages(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}") as (_, _, audio):
        audio.metadata["language"] = "deu"
    assert (
        facts(restored(tmp_path / f"a.{ending}", capsys)[0])["tracks"]["audio"]["language"] == "deu"
    )


@case("MP4, MOV, MKV, WebM", "chapters", "kept")
def chapters(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}") as (out, _, _):
        out.set_chapters(CHAPTERS)
    result, said = restored(tmp_path / f"a.{ending}", capsys)
    assert facts(result)["chapters"] == [(n / 10, {"title": f"part {n}"}) for n in range(3)]
    assert "note:" not in said


@case("MKV", "attached files (fonts)", "kept")
def attachments(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}") as (out, _, _):
        out.add_attachment("letters.ttf", "font/ttf", b"letters")
    result, _ = restored(tmp_path / f"a.{ending}", capsys)
    with av.open(str(result)) as container:
        (attached,) = [s for s in container.streams if s.type == "attachment"]
        assert attached.data == b"letters" and attached.metadata["filename"] == "letters.ttf"


@case("MP4", "a cover image", "kept")
def cover(tmp_path, ending, capsys):
    import io

    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(picture, "PNG")
    with film(tmp_path / f"plain.{ending}"):
        pass
    path = tmp_path / f"a.{ending}"
    with av.open(str(tmp_path / f"plain.{ending}")) as source, av.open(str(path), "w") as out:
        image = out.add_mux_stream("png", width=16, height=16)
        image.disposition = av.stream.Disposition.attached_pic
        copies = [out.add_stream_from_template(s, opaque=True) for s in source.streams]
        packet = av.Packet(picture.getvalue())
        packet.stream = image
        out.mux(packet)
        copy_packets(source, out, copies)
    assert video_size(path) == ((HEIGHT, WIDTH), FRAMES)
    result, said = restored(path, capsys)
    with av.open(str(result)) as container:
        by_flag = {bool(s.disposition & 0x400): s for s in container.streams.video}
        assert (by_flag[False].codec_context.height, by_flag[False].codec_context.width) == (
            96,
            160,
        )
        (packet,) = [p for p in container.demux(by_flag[True]) if p.size]
        assert bytes(packet) == picture.getvalue()
    assert "note:" not in said


@case("MKV, MP4", "subtitles", "kept")
def subtitles(tmp_path, ending, capsys):
    text = b"1\n00:00:00,000 --> 00:00:00,200\nHello\n\n"
    (tmp_path / "a.srt").write_bytes(text)
    path = tmp_path / f"a.{ending}"
    with film(tmp_path / f"plain.{ending}"):
        pass
    with (
        av.open(str(tmp_path / f"plain.{ending}")) as source,
        av.open(str(path), "w") as out,
    ):
        copies = [out.add_stream_from_template(s, opaque=True) for s in source.streams]
        words = out.add_mux_stream("subrip" if ending == "mkv" else "mov_text")
        words.metadata["language"] = "fra"
        words.time_base = Fraction(1, 1000)
        content = b"Hello" if ending == "mkv" else b"\0\5Hello"
        packet = av.Packet(content)
        packet.stream, packet.pts, packet.dts, packet.duration = words, 0, 0, 200
        packet.time_base = Fraction(1, 1000)
        out.mux(packet)
        copy_packets(source, out, copies)
    result, said = restored(path, capsys)
    with av.open(str(result)) as container:
        (stream,) = container.streams.subtitles
        assert stream.metadata["language"] == "fra"
        assert any(b"Hello" in bytes(packet) for packet in container.demux(stream))
    assert "note:" not in said


@case("MP4, MKV", "sound", "kept, bit for bit")
def sound(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}"):
        pass
    result, _ = restored(tmp_path / f"a.{ending}", capsys)
    contents = []
    for path in (tmp_path / f"a.{ending}", result):
        with av.open(str(path)) as container:
            contents.append([bytes(packet) for packet in container.demux(audio=0)])
    assert contents[0] == contents[1]


@case("MKV", "more than 8 bits", "kept")
def ten_bits(tmp_path, ending, capsys):
    for codec, pixels in (("ffv1", "yuv420p10le"), ("libx264", "yuv422p10le")):
        path = tmp_path / f"{codec}.{ending}"
        with film(path, codec=codec, pixels=pixels):
            pass
        result, said = restored(path, capsys)
        assert facts(result)["pixels"] == pixels and "note:" not in said


@case("MP4, MKV", "tags of colours (primaries, transfer, matrix, range)", "kept")
def colours(tmp_path, ending, capsys):
    names = ("color_primaries", "color_trc", "colorspace", "color_range")
    with film(tmp_path / f"a.{ending}") as (_, video, _):
        for name, value in zip(names, (9, 16, 9, 1), strict=True):  # BT.2020, PQ, limited
            setattr(video.codec_context, name, value)
    result, _ = restored(tmp_path / f"a.{ending}", capsys)
    found = []
    for path in (tmp_path / f"a.{ending}", result):
        with av.open(str(path)) as container:
            coded = container.streams.video[0].codec_context
            found.append([int(getattr(coded, name)) for name in names])
    assert found[0] == found[1] == [9, 16, 9, 1]


@case("MP4, MKV, AVI", "interlaced fields", "changed, with a line")
def interlaced(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    options = {"flags": "+ildct+ilme", "x264-params": "tff=1"}
    with film(path, options=options):
        pass
    _, said = restored(path, capsys)
    assert "a." in said and "interlaced fields are written as whole frames" in said


@case("MP4, MKV", "HDR (mastering display, light levels)", "dropped, with a line")
def hdr(tmp_path, ending, capsys):
    params = ("master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)"
              "L(10000000,1):max-cll=1000,400:log-level=none")  # fmt: skip
    path = tmp_path / f"a.{ending}"
    with film(path, codec="libx265", pixels="yuv420p10le", options={"x265-params": params}):
        pass
    result, said = restored(path, capsys)
    assert "the mastering display's colours (HDR) is dropped" in said
    assert "light levels (HDR) is dropped" in said
    assert facts(result)["pixels"] == "yuv420p10le"


@case("MKV, WebM", "transparency", "dropped, with a line")
def transparency(tmp_path, ending, capsys):
    codec = {"mkv": "ffv1", "webm": "libvpx-vp9"}[ending]
    path = tmp_path / f"a.{ending}"
    with film(path, codec=codec, pixels="yuva420p"):
        pass
    _, said = restored(path, capsys)
    assert "its transparency is dropped" in said


@case("MKV, MP4", "RGB", "kept")
def rgb(tmp_path, ending, capsys):
    for codec, pixels in {"mkv": [("ffv1", "bgr0"), ("libx264rgb", "rgb24")],
                          "mp4": [("libx264rgb", "rgb24")]}[ending]:  # fmt: skip
        path = tmp_path / f"{codec}.{ending}"
        with film(path, codec=codec, pixels=pixels, options={"qp": "0"} if "264" in codec else {}):
            pass
        before = facts(path)
        result, said = restored(path, capsys)
        after = facts(result)
        assert (after["codec"], after["frames"]) == (before["codec"], FRAMES)
        assert after["pixels"] in ("bgr0", "gbrp") and "note:" not in said
        with av.open(str(result)) as container, av.open(str(path)) as source:
            new, old = (
                next(c.decode(video=0)).to_ndarray(format="rgb24") for c in (container, source)
            )
        planes = torch.from_numpy(np.moveaxis(old / 255, -1, 0)[None].astype(np.float32))
        torch.manual_seed(0)
        with torch.no_grad():
            want = networks.Small().eval()(planes)[0].clamp(0, 1).numpy() * 255
        assert np.abs(new - np.moveaxis(want, 0, -1)).mean() < 2


@case("MOV, AVI, MKV", "codecs without an encoder here", "H.264, with a line")
def other_codecs(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    codec, pixels = {"mov": ("qtrle", "rgb24"), "avi": ("mpeg4", "yuv420p"),
                     "mkv": ("mjpeg", "yuvj420p")}[ending]  # fmt: skip
    with film(path, codec=codec, pixels=pixels):
        pass
    result, said = restored(path, capsys)
    assert facts(result)["codec"] == "h264" and "is written as " in said
    assert facts(result)["frames"] == FRAMES


@case("WebM, MKV, MP4", "VP8, VP9, AV1", "kept")
def web_codecs(tmp_path, ending, capsys):
    codecs = {"libvpx": "vp8", "libvpx-vp9": "vp9", "libsvtav1": "av1"}
    for encoder in {"webm": codecs, "mkv": codecs, "mp4": ("libvpx-vp9", "libsvtav1")}[ending]:
        path = tmp_path / f"{encoder}.{ending}"
        with film(path, codec=encoder):
            pass
        before = facts(path)
        result, said = restored(path, capsys)
        after = facts(result)
        assert (after["codec"], after["frames"]) == (before["codec"], FRAMES) and "note" not in said


@case("AVI, MPEG-PS, MPEG-TS, MTS, M2TS, FLV", "frames out of order (B-frames)", "kept")
def reordered(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    codec = "mpeg2video" if ending == "mpg" else "libx264"
    with film(path, codec=codec, options={"bf": "2"}):
        pass
    before = facts(path)
    result, _ = restored(path, capsys)
    after = facts(result)
    assert after["frames"] == before["frames"] and after["sizes"] == {(2 * HEIGHT, 2 * WIDTH)}
    assert "audio" in after["kinds"]


@case("MP4, MKV", "shape of pixels (aspect ratio)", "kept")
def aspect(tmp_path, ending, capsys):
    with film(tmp_path / f"a.{ending}") as (_, video, _):
        video.codec_context.sample_aspect_ratio = Fraction(4, 3)
    assert facts(restored(tmp_path / f"a.{ending}", capsys)[0])["aspect"] == Fraction(4, 3)


@case("MKV, MPEG-TS", "further streams of video", "copied as they are, with a line")
def second_view(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    with film(path) as (out, _, _):
        second = out.add_stream("libx264", rate=30)
        second.width, second.height, second.pix_fmt = 32, 16, "yuv420p"
        for index in range(3):
            frame = av.VideoFrame.from_ndarray(np.zeros((16, 32, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            out.mux(second.encode(frame))
        out.mux(second.encode(None))
    result, said = restored(path, capsys)
    assert "(video, h264) is copied and not restored" in said
    with av.open(str(result)) as container:
        sizes = [(s.codec_context.height, s.codec_context.width) for s in container.streams.video]
    assert sorted(sizes) == [(16, 32), (2 * HEIGHT, 2 * WIDTH)]


@case("MPEG-TS", "streams of data", "dropped, with a line")
def data_streams(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    with film(path) as (out, _, _):
        data = out.add_data_stream("klv")
        packet = av.Packet(b"numbers")
        packet.stream, packet.pts, packet.dts, packet.time_base = data, 0, 0, Fraction(1, 90000)
        out.mux(packet)
    _, said = restored(path, capsys)
    assert "(data, " in said and " is dropped" in said


@case("MP4, MKV, AVI", "a file that is cut short", "the readable part, with a line and status 1")
def cut(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    with film(path, options={"crf": "1", "g": "1"}) as (out, _, _):
        if ending == "mp4":
            out.options["movflags"] = "faststart"
    if ending == "mp4":
        path.write_bytes(_index_first(path))
    whole = facts(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    result, said = restored(path, capsys, status=1)
    assert "cut short: 0." in said and "the result holds what could be read" in said
    assert 0 < facts(result)["frames"] < whole["frames"]


@case("MP4, MKV, AVI, MPEG-TS, WebM", "damage in the middle",
      "the readable part, with a line and status 1")  # fmt: skip
def damaged(tmp_path, ending, capsys):
    path = tmp_path / f"a.{ending}"
    codec = "mjpeg" if ending == "avi" else None
    with film(path, codec=codec, pixels="yuvj420p" if codec else "yuv420p", sound=False,
              options={} if codec else {"g": "1", "crf": "1"}, rounds=8):  # fmt: skip
        pass
    content = bytearray(path.read_bytes())
    start, stop = len(content) * 2 // 5, len(content) * 11 // 20
    noise = np.random.default_rng(0).integers(0, 256, stop - start, np.uint8)
    content[start:stop] = noise.tobytes()
    path.write_bytes(content)
    result, said = restored(path, capsys, status=1)
    assert re.search("damaged|cut short", said) and "the result holds what could be read" in said
    assert facts(result)["frames"] > 0


def _index_first(path: Path) -> bytes:
    """The MP4 with its index before the frames, as servers send it."""
    copy = path.with_name(f"first{path.suffix}")
    with (
        av.open(str(path)) as source,
        av.open(str(copy), "w", options={"movflags": "faststart"}) as out,
    ):
        copies = [out.add_stream_from_template(s, opaque=True) for s in source.streams]
        copy_packets(source, out, copies)
    return copy.read_bytes()


ENDINGS = {"MPEG-TS": "ts", "MPEG-PS": "mpg"}


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("key", "container"),
    [(key, container) for key in CASES for container in key[0].split(", ")],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_row(key, container, tmp_path, capsys):
    CASES[key](tmp_path, ENDINGS.get(container, container.lower()), capsys)


def test_the_page_has_these_rows():
    section = PAGE.read_text().partition("## Videos")[2]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    assert {row for row in rows if row[0] != "---"} == set(CASES)
