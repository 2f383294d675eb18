"""Restores videos frame by frame; sound, other streams and time stamps stay as they are.

docs/formats.md lists everything that a video may contain, and how it is handled.

A network of one channel at scale 1 restores luma: of 8-bit YUV frames only the Y plane passes
through it, and U and V reach the encoder untouched. Any other network sees RGB, 16 bits deep where
the video has more than 8. Colour tags and the frames' own times are kept, so a variable frame rate
stays variable.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.data.sources import Source, target_path
from jaxsr.data.video import (
    Reading,
    UnreadableVideo,
    add_encoder,
    copy_streams,
    frame_count,
    keep_notes,
    main_stream,
    open_video,
    write_video,
)
from jaxsr.data.video_colour import fill_plane, frame_of, plane_samples, rgb_of
from jaxsr.errors import one_line
from jaxsr.interop.atomic_write import Note
from jaxsr.restoration.batch import Outcome, is_source, link_reason
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.made_by import MadeBy
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.pictures import PictureError
from jaxsr.restoration.pipeline import Restorer, Work, result_size
from jaxsr.restoration.progress import Progress
from jaxsr.restoration.restore_arrays import ArraySink
from jaxsr.restoration.restorer import make_restorer

_PLANAR_LUMA = ("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p")
# Frames restored in one go: enough to fill batches, few enough to hold.
_FRAME_BYTES = 128 * 2**20


def restore_videos(
    sources: Sequence[Source],
    model: RestorationModel,
    config: RestoreConfig,
    made_by: MadeBy,
    claimed: dict[Path, Path],
) -> Outcome:
    """Restores videos one after another; those that fail are listed and leave no file.

    Args:
      sources: the videos.
      model: the network.
      config: names and options.
      made_by: the record of the folder's results.
      claimed: see `BatchRestorer`.
    """
    outcome = Outcome()
    for source in sources:
        target = target_path(source, config.out, suffix=config.suffix, format=None)
        try:
            if _is_done(source, target, config, made_by, claimed):
                outcome.skipped.append((source.path, target))
                continue
            made_by.begin(source.path.stat(), target)
            remarks = restore_video(source.path, target, model, config, made_by.note(target))
            outcome.restored.append((source.path, target))
            outcome.remarks += [(str(source.path), remark) for remark in remarks]
        except ShortVideo as error:
            made_by.note_lack(target, one_line(error))
            outcome.restored.append((source.path, target))
            outcome.failed.append((str(source.path), one_line(error)))
        except (ValueError, OSError) as error:
            outcome.failed.append((str(source.path), one_line(error)))
    return outcome


def _is_done(
    source: Source,
    target: Path,
    config: RestoreConfig,
    made_by: MadeBy,
    claimed: dict[Path, Path],
) -> bool:
    """Whether an earlier run made the result, whole.

    Raises:
      PictureError: the result may not be written, or the earlier run's is not whole.
      OSError: no file can have the result's name.
    """
    if is_source(source, target):
        raise PictureError(f"the result would replace its source {target}; use --suffix or --out")
    if (first := claimed.setdefault(target, source.path)) != source.path:
        raise PictureError(f"its result would be {target}, as that of {first} is")
    if target.exists() and not config.overwrite and made_by.covers(source, target):
        if lack := made_by.lack(target):
            raise PictureError(lack)
        return True
    if reason := link_reason(target):
        raise PictureError(reason)
    return False


class ShortVideo(PictureError):
    """A video that is damaged or cut short; the frames present were restored."""


def restore_video(
    source: Path,
    target: Path,
    model: RestorationModel,
    config: RestoreConfig,
    note: Note | None = None,
) -> list[str]:
    """Restores one video; the file appears whole or not at all.

    Args:
      source: the video.
      target: the result.
      model: the network.
      config: options.
      note: called with the complete file before it has its name.

    Returns:
      Changes and losses in the video other than its frames.

    Raises:
      ShortVideo: the video is damaged, or ends before its header says, and so does the result.
      PictureError: no video in the file, PyAV is not installed, or a frame could not be restored.
      OSError: the file cannot be read or written.
    """
    try:
        # The first frame has facts that are needed before the first packet is written.
        with open_video(source, max_pixels=config.max_pixels) as reading:
            first = next(reading.frames(), None)
            if first is None:
                raise UnreadableVideo(reading.shortage() or "no frames")
        with (
            open_video(source, max_pixels=config.max_pixels) as reading,
            write_video(target, note) as out,
        ):
            remarks = _transcode(reading, out, first, model, config)
            shortage = reading.shortage()
        if shortage:
            raise ShortVideo(f"{shortage}; the result holds what could be read")
        return remarks
    except UnreadableVideo as error:
        raise PictureError(str(error)) from error


def _transcode(
    reading: Reading,
    out: Any,
    first: Any,
    model: RestorationModel,
    config: RestoreConfig,
) -> list[str]:
    """Writes all frames and the rest of the video; returns a list of changes and losses."""
    container = reading.container
    stream = main_stream(container)
    coded = stream.codec_context
    size = coded.height, coded.width
    outscale = float(config.outscale or model.scale)
    luma = model.channels == 1 and outscale == model.scale == 1 and coded.pix_fmt in _PLANAR_LUMA
    deep = any(part.bits > 8 for part in coded.format.components)
    encoder, remarks = add_encoder(out, stream, first, result_size(size, outscale))
    remarks += keep_notes(out, container, encoder, first)
    copied, dropped = copy_streams(out, container)
    progress = Progress(frame_count(container) * size[0] * size[1])
    restorer, _, _ = make_restorer(model, config, sizes=[size], progress=progress.add)
    per_frame = size[0] * size[1] * (1 if luma else 3) * (2 if deep else 1) * (1 + int(outscale**2))
    at_once = max(1, min(64, _FRAME_BYTES // per_frame))
    waiting: list[Any] = []

    def encode() -> None:
        results = _restored(restorer, waiting, encoder.codec_context, luma, deep)
        for restored, frame in zip(results, waiting, strict=True):
            restored.pts, restored.time_base = frame.pts, frame.time_base
            out.mux(encoder.encode(restored))
        waiting.clear()

    with contextlib.closing(progress):
        for packet in reading.packets():
            if packet.stream.index in copied:
                if packet.size:  # the last of each stream is empty
                    packet.stream = copied[packet.stream.index]
                    out.mux(packet)
                continue
            for frame in reading.decode(packet):
                waiting.append(frame)
                if len(waiting) == at_once:
                    encode()
        encode()
        out.mux(encoder.encode(None))
    return remarks + dropped


def _restored(
    restorer: Restorer, frames: list[Any], coded: Any, luma: bool, deep: bool
) -> Iterator[Any]:
    """Restored frames in order, in the encoder's form."""
    import av

    works = []
    for frame in frames:
        if luma:
            pixels = np.ascontiguousarray(plane_samples(frame.planes[0])[..., None])
        else:
            pixels = rgb_of(frame, deep=deep)
        sink = ArraySink(f"frame at {frame.time} s")
        works.append(Work(pixels=pixels, kind="gray" if luma else "rgb", sink=sink))
    restorer.run(works)
    for frame, work in zip(frames, works, strict=True):
        assert isinstance(work.sink, ArraySink)
        if not luma:
            yield frame_of(work.sink.result, coded)
            continue
        planar = av.VideoFrame(frame.width, frame.height, frame.format.name)
        fill_plane(planar.planes[0], work.sink.result[..., 0])
        for plane, source in zip(planar.planes[1:], frame.planes[1:], strict=True):
            fill_plane(plane, plane_samples(source))
        planar.colorspace, planar.color_range = frame.colorspace, frame.color_range
        yield planar
