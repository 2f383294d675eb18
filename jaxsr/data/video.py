"""Video files, read and written with PyAV: complete or not at all, encoded as their source was.

docs/formats.md lists everything that a video may contain, and how it is handled.
"""

import collections
import contextlib
import heapq
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.data.picture_limits import MAX_PIXELS, too_large
from jaxsr.data.video_times import PacketTimes
from jaxsr.errors import InputError, first_of, one_line, printable
from jaxsr.interop.atomic_write import Note, atomic_path
from jaxsr.interop.install import install_extra

# Encoders of common codecs; a video of another codec is written as H.264.
_ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "vp8": "libvpx",
    "vp9": "libvpx-vp9",
    "av1": "libsvtav1",
    "libdav1d": "libsvtav1",
    "ffv1": "ffv1",
}
_OTHERWISE = ("libx264", "libvpx-vp9", "libvpx")
"""Encoders for a video of another codec: the first that the container holds."""
# Near-transparent for H.264 and H.265 by their authors' scales.
_RATE_FACTOR = {"libx264": "16", "libx264rgb": "16", "libx265": "18", "libvpx-vp9": "20",
                "libvpx": "4", "libsvtav1": "20"}  # fmt: skip
_WITHOUT_B_FRAMES = frozenset(("avi", "mpeg", "vob", "dvd", "svcd", "vcd", "flv"))
"""Containers that keep one time for each frame, or that players expect in order."""

# Playlists and scripts, which FFmpeg knows by their content, would open other files and addresses.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,m4v,ogg,flv"
)
_LOCAL_ONLY = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"}

_WITHOUT_LENGTH = ("mpeg", "mpegts", "mpegvideo", "h264", "hevc", "ogg")
"""Formats whose header lacks the length, which FFmpeg derives from the data present."""
_REORDERED = 16
"""Frames that H.264 and H.265 hold back at most, to bring them into order."""
_COVER = 0x400
"""FFmpeg's AV_DISPOSITION_ATTACHED_PIC."""
_STATISTICS = ("DURATION", "NUMBER_OF_", "_STATISTICS", "BPS", "ENCODER", "VENDOR_ID",
               "ALPHA_MODE")  # fmt: skip
"""Prefixes of container tags that describe the old stream, not the film."""
_FRAME_NOTES = {
    "A53_CC": "closed captions",
    "MASTERING_DISPLAY_METADATA": "the mastering display's colours (HDR)",
    "CONTENT_LIGHT_LEVEL": "light levels (HDR)",
    "DYNAMIC_HDR_PLUS": "HDR10+",
    "DOVI_METADATA": "Dolby Vision",
    "DOVI_RPU_BUFFER": "Dolby Vision",
    "STEREO3D": "the arrangement of stereo views",
    "SPHERICAL": "the spherical projection",
    "AFD": "the active format description",
    "PANSCAN": "pan and scan",
    "FILM_GRAIN_PARAMS": "film grain parameters (their grain is in the frames)",
    "S12M_TIMECODE": "timecodes of frames",
}
"""Side data of frames that no encoder here takes over."""


class UnreadableVideo(InputError):
    """A file that is not a video, or cannot be decoded or encoded; the message is the reason."""


@contextlib.contextmanager
def open_video(path: Path, *, max_pixels: int = MAX_PIXELS) -> "Iterator[Reading]":
    """A video to read from.

    Raises:
      UnreadableVideo: not a file that FFmpeg opens, no video in it, frames of more than
        `max_pixels`, or PyAV is not installed.
      OSError: the file cannot be read.
    """
    try:
        import av
    except ImportError as error:
        raise UnreadableVideo(f"videos need PyAV: {install_extra('video')}") from error
    errors = av.logging.get_last_error()[0]
    # Titles that are not UTF-8 are not a fault of the video; from PyAV 19 on they never are.
    is_strict = int(av.__version__.partition(".")[0]) < 19
    options: dict[str, Any] = {"metadata_errors": "replace"} if is_strict else {}
    try:
        with _counting():
            opened = av.open(_local(path), options=_LOCAL_ONLY, **options)
    except av.FFmpegError as error:
        raise UnreadableVideo(error.strerror or one_line(error)) from error
    with opened as container:
        stream = main_stream(container)
        coded = stream.codec_context
        if coded is None or coded.pix_fmt is None:
            raise UnreadableVideo("no decoder for its video stream")
        if reason := too_large((coded.height, coded.width), max_pixels=max_pixels):
            raise UnreadableVideo(reason)
        coded.options = {"max_pixels": str(max_pixels)}  # for frames of another size
        # A thread that logs waits for Python, which waits for it where it closes a decoder.
        coded.thread_count = 1
        yield Reading(container, errors)


def video_size(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[tuple[int, int], int]:
    """Height and width of a video's frames, and how many its header states; 0 where it does not.

    Raises: as `open_video`.
    """
    with open_video(path, max_pixels=max_pixels) as reading:
        stream = main_stream(reading.container)
        return (stream.codec_context.height, stream.codec_context.width), stream.frames


def frame_count(container: Any) -> int:
    """Frames that a video's header states, or about as many as its length and rate make.

    0 where the header tells neither, as in raw streams.
    """
    stream = main_stream(container)
    if stream.duration:
        length_s = stream.duration * stream.time_base
    else:  # Matroska and WebM state that of the file alone
        length_s = Fraction(container.duration or 0, 10**6)
    return stream.frames or max(round(length_s * (stream.average_rate or 0)), 0)


@contextlib.contextmanager
def _counting() -> Iterator[None]:
    """PyAV counts FFmpeg's errors inside the block; FFmpeg goes on where it meets damage."""
    from av import logging as libav

    logging.getLogger("libav").setLevel(logging.CRITICAL + 1)
    level = libav.get_level()
    libav.set_level(libav.ERROR)  # it counts those that it would log
    try:
        yield
    finally:
        libav.set_level(level)


def main_stream(container: Any) -> Any:
    """The video's stream: the first that is not a cover image.

    Raises:
      UnreadableVideo: there is none.
    """
    for stream in container.streams.video:
        if not stream.disposition & _COVER:
            return stream
    raise UnreadableVideo("no video stream")


class Reading:
    """A container's packets, and whether it is damaged or holds less than its header says.

    Args:
      container: PyAV's.
      errors: of FFmpeg before the container was opened.
    """

    def __init__(self, container: Any, errors: int) -> None:
        self.container = container
        self._errors = errors
        self._stream, self._is_avi = main_stream(container), container.format.name == "avi"
        self._start, self._end = math.inf, 0.0
        self._decoded_at: float | None = None
        self._longest_s = 0.0
        self._raised: Exception | None = None
        self._late: collections.deque[Any] = collections.deque()
        self._times: list[int] = []
        self._stored: dict[int, collections.deque[int]] = collections.defaultdict(collections.deque)
        self._next_pts, self._least_pts = 0, -(2**63)
        self._pictures = 0
        self._corrupt: list[int] = []
        self._packet_times = PacketTimes()

    def packets(self) -> Iterator[Any]:
        """All packets, of every stream, in their order, as far as FFmpeg reads them.

        Times that start again follow on, see `PacketTimes`.
        """
        demuxed = self.container.demux()
        while (packet := self._tried(lambda: next(demuxed, None))) is not None:
            is_main = packet.stream.index == self._stream.index
            if self._packet_times.put_in_order(packet):
                # FFmpeg misses bytes before a new start, and says so a packet late.
                self._corrupt = [n for n in self._corrupt if n < self._pictures - 1]
            if packet.dts is not None:
                at = float(packet.dts * packet.time_base)
                self._start = min(self._start, at)
                if is_main:
                    before, self._decoded_at = self._decoded_at, at
                    self._longest_s = max(self._longest_s, 0 if before is None else at - before)
            if packet.pts is not None and (is_main or not self._is_avi):
                last = packet.pts + (packet.duration or 0)
                self._end = max(self._end, float(last * packet.time_base))
                if packet.stream.type == "video":
                    self._pictures += 1
                    self._corrupt += [self._pictures] if packet.is_corrupt else []
            yield packet

    def frames(self) -> Iterator[Any]:
        """The video's frames, as `decode` of each packet gives them."""
        for packet in self.packets():
            yield from self.decode(packet)

    def decode(self, packet: Any) -> Iterator[Any]:
        """Frames of a packet, in the order of their times; other streams' packets have none.

        AVI numbers frames as they are stored, so the times of those out of order are exchanged;
        FFmpeg's guesses are a frame late, and double at the end. A frame without a time follows
        the one before at the stream's rate.
        """
        if packet.stream.index != self._stream.index:
            return
        frames = self._tried(packet.decode) or ()
        if not self._is_avi:
            yield from map(self._timed, frames)
            return
        if packet.pts is not None and packet.dts is not None:
            self._stored[packet.pts].append(packet.dts)
        for frame in frames:
            self._late.append(frame)
            if frame.pts is not None:
                stored = self._stored.get(frame.pts)
                heapq.heappush(self._times, stored.popleft() if stored else frame.pts)
        is_end = packet.size == 0
        while self._late and (is_end or len(self._late) > _REORDERED):
            frame = self._late.popleft()
            if self._times:
                frame.pts = heapq.heappop(self._times)
            yield self._timed(frame)

    def _timed(self, frame: Any) -> Any:
        if frame.pts is None:
            frame.pts, frame.time_base = self._next_pts, self._stream.time_base
        frame.pts = max(frame.pts, self._least_pts)
        self._least_pts = frame.pts + 1
        rate = self._stream.average_rate or 25
        self._next_pts = frame.pts + max(round(1 / (rate * self._stream.time_base)), 1)
        return frame

    def _tried(self, read: Callable[[], Any]) -> Any:
        """The result of `read`; None where FFmpeg raises, which `shortage` tells of."""
        import av

        try:
            with _counting():
                return read()
        except av.FFmpegError as error:
            self._raised = error
            return None

    def shortage(self) -> str | None:
        """Damage of the file, after all of it was read; None if there is none, or nobody knows."""
        import av

        container, stream = self.container, self._stream
        rate = stream.average_rate
        if self._is_avi:  # its sound may be stored at once, and its last frame be of any length
            stated_s = float((stream.duration or 0) * stream.time_base)
            frame_s = max(self._longest_s, 1 / float(rate) if rate else 0)
        else:
            # Matroska and WebM count from 0, the others from the first packet.
            counts_from_0 = container.format.name.startswith("matroska")
            start = 0 if counts_from_0 or self._start == math.inf else max(self._start, 0)
            stated_s = (container.duration or 0) / 1e6 + start
            frame_s = 1 / float(rate) if rate else 0.1
        missing = stated_s - self._end - 1.5 * frame_s
        is_stated = container.format.name not in _WITHOUT_LENGTH
        # Sound may be told to end a frame later than it does.
        if is_stated and (self._corrupt or missing > 0.1):
            return f"cut short: {self._end:.2f} s of the {stated_s:.2f} s that its header states"
        errors, last = av.logging.get_last_error()
        if errors > self._errors and last is not None:
            return f"damaged ({printable(f'{last[1]}: {last[2]}', 100)})"
        if self._raised is not None:
            return f"damaged ({one_line(self._raised)})"
        return "damaged: a packet lacks bytes" if self._corrupt else None


def _local(path: Path) -> str:
    """The path in full: FFmpeg takes letters before a colon for a protocol, as in `10:30.mp4`."""
    return str(path.absolute())


@contextlib.contextmanager
def write_video(target: Path, note: Note | None = None) -> Iterator[Any]:
    """A PyAV container to write to; the file appears once the block has ended well.

    Raises:
      UnreadableVideo: FFmpeg cannot encode its frames, or put them or its packets into this format.
      OSError: the file cannot be written.
    """
    import av

    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_path(target, note) as partial, av.open(_local(partial), "w") as out:
            yield out
    except av.FFmpegError as error:
        if isinstance(error, OSError):  # a full disk
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise UnreadableVideo(
            f"FFmpeg cannot encode or write {target.name} ({error.strerror or one_line(error)}); "
            "try a copy of the video (ffmpeg -i VIDEO COPY.mkv), or a smaller result"
        ) from error


def display_matrix(frame: Any) -> tuple[int, ...] | None:
    """How players turn and mirror frames, FFmpeg's nine numbers; None where they do not."""
    for side in frame.side_data:
        if side.type.name == "DISPLAYMATRIX":
            matrix = tuple(np.frombuffer(side, np.int32).tolist())
            return None if matrix[:5] == (65536, 0, 0, 0, 65536) else matrix
    return None


def turned(pixels: np.ndarray, matrix: tuple[int, ...] | None) -> np.ndarray:
    """A frame's samples as players show them, turned by quarters and mirrored.

    The matrix maps a column and a row of the frame to those of the screen, as in ISO/IEC 14496-12.
    """
    if matrix is None:
        return pixels
    a, b, _, c, d = matrix[:5]
    if abs(b) > abs(a) and abs(c) > abs(d):
        pixels = pixels.swapaxes(0, 1)
        across, down = c, b
    else:
        across, down = a, d
    pixels = pixels[:, ::-1] if across < 0 else pixels
    return pixels[::-1] if down < 0 else pixels


def add_encoder(
    out: Any,
    stream: Any,
    frame: Any,
    size: tuple[int, int],
    *,
    codec: str | None = None,
    quarter_turn: bool = False,
) -> tuple[Any, list[str]]:
    """Adds a video stream like `stream`, of another size; also returns its other differences.

    Args:
      out: container of `write_video`.
      stream: of the source; codec, pixel format, rate and time base are taken over.
      frame: the first, of which the colour tags are.
      size: height and width in pixels.
      codec: an encoder instead of the source's codec and pixel format.
      quarter_turn: frames come turned by a quarter, so that a pixel's width is the source's height.
    """
    coded = stream.codec_context
    preferred = codec or _ENCODERS.get(coded.name)
    if preferred == "libx264" and not codec and coded.format.is_rgb:
        preferred = "libx264rgb"
    names = dict.fromkeys(name for name in (preferred, *_OTHERWISE) if name is not None)
    encoder, name = _first_stream(out, names, rate=stream.average_rate or 25)
    remarks = [] if name == preferred else [f"{coded.name} is written as {name}"]
    if name in _RATE_FACTOR:
        os.environ.setdefault("SVT_LOG", "1")  # encoders print their settings
        quiet = {"x265-params": "log-level=error"} if name == "libx265" else {}
        encoder.options = {"crf": _RATE_FACTOR[name], **quiet}
    if name == "libvpx":  # its quality is bounded by a rate, 256 kbit/s by default
        encoder.bit_rate = round(float(stream.average_rate or 25) * size[0] * size[1])
    if out.format.name in _WITHOUT_B_FRAMES:
        encoder.codec_context.max_b_frames = 0
    encoder.height, encoder.width = size
    pixels = "yuv420p" if codec else coded.pix_fmt
    encoder.pix_fmt = _pixel_format(encoder.codec_context.codec, pixels, size)
    if codec is None:
        remarks += _differing_samples(stream, encoder.codec_context.format)
    encoder.time_base = encoder.codec_context.time_base = stream.time_base
    for field in ("color_range", "color_primaries", "color_trc", "colorspace"):
        setattr(encoder.codec_context, field, getattr(frame, field))
    if has_matrix(encoder.codec_context.format) and not has_matrix(coded.format):
        encoder.codec_context.colorspace = encoder.codec_context.color_range = 1  # BT.709, limited
    if ratio := stream.sample_aspect_ratio:
        encoder.codec_context.sample_aspect_ratio = 1 / ratio if quarter_turn else ratio
    return encoder, remarks


def _first_stream(out: Any, names: Mapping[str, Any], *, rate: Any) -> tuple[Any, str]:
    reasons = []
    for name in names:
        try:
            return out.add_stream(name, rate=rate), name
        except ValueError as error:  # no such encoder, or none for this container
            reasons.append(one_line(error))
    raise UnreadableVideo(f"no encoder for its container ({first_of(reasons)}); give it another")


def _pixel_format(codec: Any, pixels: str, size: tuple[int, int]) -> str:
    """The encoder's format that holds these samples, or comes nearest."""
    from av.codec.codec import find_best_pix_fmt_of_list

    known = [each.name for each in codec.video_formats or ()]
    # Chroma of 4:2:0 covers two by two pixels: an odd size keeps its last row in 4:4:4.
    odd = any(length % 2 for length in size)
    for choice in (pixels.replace("420", "444"), pixels) if odd else (pixels,):
        if choice in known or not known:
            return choice
    nearest: Any = find_best_pix_fmt_of_list(known, pixels, False)[0]
    return str(nearest.name)


def has_matrix(format: Any) -> bool:
    """Whether samples of PyAV's pixel format are luma, with chroma or without."""
    is_colour = format.is_rgb or format.has_palette
    return not is_colour and not format.name.startswith(("xyz", "mono"))


def _differing_samples(stream: Any, result: Any) -> list[str]:
    source, remarks = stream.codec_context.format, []
    # WebM says that there is alpha, which FFmpeg's own decoders leave out.
    is_stated = any(name.lower() == "alpha_mode" for name in stream.metadata)
    if is_stated or source.has_palette or any(part.is_alpha for part in source.components):
        remarks.append("its transparency is dropped")
    deepest = [max(part.bits for part in each.components) for each in (source, result)]
    if deepest[1] < deepest[0]:
        remarks.append(f"{deepest[0]} bits are written as {deepest[1]}")
    return remarks


def keep_notes(out: Any, container: Any, encoder: Any, frame: Any) -> list[str]:
    """Copies everything but the frames of a video; returns a list of the parts that it drops.

    Args:
      out: container of `write_video`, before its first packet.
      container: of `open_video`.
      encoder: of `add_encoder`.
      frame: the video's first.
    """
    stream = main_stream(container)
    out.metadata.update(_titles(container.metadata))
    out.set_chapters(container.chapters())
    encoder.metadata.update(_titles(stream.metadata))
    encoder.disposition = stream.disposition
    dropped = []
    matrix = display_matrix(frame)
    if matrix is not None:
        if {*out.format.name.split(",")} & {"mp4", "mov", "ipod", "matroska", "webm", "3gp"}:
            encoder.set_display_matrix(matrix)
        else:
            dropped.append(f"the rotation, which {out.format.name} does not hold, is dropped")
    if frame.interlaced_frame:
        dropped.append("interlaced fields are written as whole frames: deinterlace it first")
    kinds = dict.fromkeys(side.type.name for side in frame.side_data)
    dropped += [f"{_FRAME_NOTES[kind]} is dropped" for kind in kinds if kind in _FRAME_NOTES]
    return dropped


def copy_streams(out: Any, container: Any) -> tuple[dict[int, Any], list[str]]:
    """Streams other than the video's, to be copied; and a list of streams dropped or not restored.

    Returns:
      Streams of `out` by the number of the one that each copies.
    """
    copied: dict[int, Any] = {}
    dropped = []
    main, chapters = main_stream(container).index, len(container.chapters())
    for stream in container.streams:
        if stream.index == main or (stream.type == "data" and stream.frames == chapters > 0):
            continue  # chapters of MP4 are a stream as well
        what = f"stream {stream.index} ({stream.type}, {stream.name or 'unknown'})"
        if stream.type == "data":  # containers refuse most of them after the first packet only
            dropped.append(f"{what} is dropped")
            continue
        try:
            copy = out.add_stream_from_template(stream, opaque=True)
        except ValueError as error:
            dropped.append(f"{what} is dropped ({one_line(error)})")
            continue
        if stream.type == "video" and not stream.disposition & _COVER:
            dropped.append(f"{what} is copied and not restored")
        copy.metadata.update(_titles(stream.metadata))
        if stream.type != "attachment":
            copy.disposition = stream.disposition
            copied[stream.index] = copy
    return copied, dropped


def _titles(metadata: Mapping[str, str]) -> dict[str, str]:
    """Tags written by people: names, languages, comments."""
    kept = {n: v for n, v in metadata.items() if not n.upper().startswith(_STATISTICS)}
    if "name" in kept:  # MP4's word for a track's title, which is written under the other one
        kept.setdefault("title", kept.pop("name"))
    return kept
