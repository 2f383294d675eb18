"""Video files, read and written with PyAV: complete or not at all, encoded as their source was."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxsr.data.picture_limits import MAX_PIXELS, too_large
from jaxsr.errors import InputError
from jaxsr.interop.atomic_write import atomic_path

# Encoders for what people's videos are coded in; a video of another codec comes out as H.264.
_ENCODERS = {"h264": "libx264", "hevc": "libx265", "vp9": "libvpx-vp9", "ffv1": "ffv1"}
# Near-transparent for H.264 and H.265 by their authors' scales.
_RATE_FACTOR = {"libx264": "16", "libx265": "18", "libvpx-vp9": "20"}


# Playlists and scripts, which FFmpeg knows by their content, would open other files and addresses.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,m4v,ogg,flv"
)


class UnreadableVideo(InputError):
    """A file that is no video, or that cannot be decoded or encoded; the message is the reason."""


@contextlib.contextmanager
def open_video(path: Path, *, max_pixels: int = MAX_PIXELS) -> Iterator[Any]:
    """A PyAV container to read from; what FFmpeg finds wrong inside the block is `UnreadableVideo`.

    Raises:
      UnreadableVideo: no video in the file, frames of more than `max_pixels`, or PyAV is not
        installed.
      OSError: the file cannot be read.
    """
    try:
        import av
    except ImportError as error:
        raise UnreadableVideo("videos need PyAV: pip install av") from error
    logging.getLogger("libav").setLevel(logging.ERROR)
    # Titles that are no UTF-8 are no fault of the video; from PyAV 19 on they never are.
    is_strict = int(av.__version__.partition(".")[0]) < 19
    options: dict[str, Any] = {"metadata_errors": "replace"} if is_strict else {}
    try:
        with av.open(str(path), options={"format_whitelist": _CONTAINERS}, **options) as container:
            if not container.streams.video:
                raise UnreadableVideo("no video stream")
            stream = container.streams.video[0]
            coded = stream.codec_context
            if coded is None or coded.pix_fmt is None:
                raise UnreadableVideo("no decoder for its video stream")
            if reason := too_large((coded.height, coded.width), max_pixels=max_pixels):
                raise UnreadableVideo(reason)
            coded.options = {"max_pixels": str(max_pixels)}  # for frames of another size
            stream.thread_type = "AUTO"
            yield container
    except av.FFmpegError as error:
        raise UnreadableVideo(error.strerror or " ".join(str(error).split())) from error


@contextlib.contextmanager
def write_video(target: Path) -> Iterator[Any]:
    """A PyAV container to write to; the file appears once the block has ended well.

    Raises:
      OSError: the file cannot be written.
    """
    import av

    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as partial, av.open(str(partial), "w") as out:
        yield out


def add_encoder(out: Any, stream: Any, size: tuple[int, int], *, codec: str | None = None) -> Any:
    """A video stream like `stream`, of another size.

    Args:
      out: container of `write_video`.
      stream: of the source; codec, pixel format, colour tags, rate and time base are taken over.
      size: height and width in pixels.
      codec: an encoder for colour pictures instead of the source's codec and pixel format.
    """
    coded = stream.codec_context
    name = codec or _ENCODERS.get(coded.name, "libx264")
    options = {"crf": _RATE_FACTOR[name]} if name in _RATE_FACTOR else {}
    encoder = out.add_stream(name, rate=stream.average_rate or 25, options=options)
    encoder.height, encoder.width = size
    # Chroma of 4:2:0 covers two by two pixels: an odd size keeps its last row in 4:4:4.
    odd = any(length % 2 for length in size)
    pixels = "yuv420p" if codec else coded.pix_fmt
    encoder.pix_fmt = pixels.replace("420", "444") if odd else pixels
    encoder.time_base = encoder.codec_context.time_base = stream.time_base
    if not codec:
        for field in ("color_range", "color_primaries", "color_trc", "colorspace"):
            setattr(encoder.codec_context, field, getattr(coded, field))
    if stream.sample_aspect_ratio:
        encoder.codec_context.sample_aspect_ratio = stream.sample_aspect_ratio
    return encoder
