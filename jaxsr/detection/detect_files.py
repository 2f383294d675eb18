"""The work behind `python -m jaxsr.detect`: images and videos in, masks, overlays and tables out.

For `FOLDER/NAME.png` the output folder gets `masks/FOLDER/NAME.png` and `overlays/FOLDER/NAME.png`
at the image's own size; for a video `masks/NAME/000000.png`, … (lossless, as a mask must be) and
`overlays/NAME.mp4`, its frames at their own times. `targets.csv` has a row for each target and
`targets.json` an entry for each image or frame, found something or not.
"""

import errno
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from jaxsr.data.decode import (
    FEW_LEVELS,
    decode_rgb,
    few_levels_note,
    has_few_levels,
    levels_of,
    picture_size,
)
from jaxsr.data.picture_file import UnreadablePicture
from jaxsr.data.result_folder import result_folder
from jaxsr.data.sources import Inputs, Source, find_sources
from jaxsr.data.video import (
    UnreadableVideo,
    add_encoder,
    display_matrix,
    main_stream,
    open_video,
    turned,
    write_video,
)
from jaxsr.data.video_colour import frame_of, rgb_of
from jaxsr.detection.config import DetectConfig
from jaxsr.detection.detector import Detector
from jaxsr.detection.evaluation import write_csv
from jaxsr.detection.targets import Findings, Target, find_targets, overlay
from jaxsr.errors import InputError, counted, printable
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.out_of_memory import naming_out_of_memory
from jaxsr.runtime.activity import set_status
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.setup import setup_compute


def run(config: DetectConfig) -> int:
    """Finds targets in all inputs; returns the exit status, 1 if a file was unreadable.

    Raises:
      UserError: no input, no weights, or a folder that cannot be used.
    """
    if not config.inputs:
        raise InputError("no input; name images, folders or videos")
    inputs = find_inputs(config)
    _refuse_double_names(inputs.sources)
    set_status("loading the model")
    setup_compute(config)
    session = _Session(config.detector(), config)
    set_status(f"looking for targets in {counted(len(inputs.sources), 'file')}")
    failed = len(inputs.problems)
    with result_folder(config.out, _results_of(inputs.sources)):
        with naming_out_of_memory(rows=config.batch, advice="cut the images"):
            failed += session.pictures([source for source in inputs.sources if not source.is_video])
            failed += sum(session.video(source) for source in inputs.sources if source.is_video)
        session.finish(inputs.sources)
    files = len({findings.name for findings in session.findings})
    targets = sum(len(findings.targets) for findings in session.findings)
    print(
        f"{counted(targets, 'target')} in {counted(files, 'file')}; results in "
        f"{printable(config.out)}"
    )
    return ExitStatus.FAILED if failed else ExitStatus.OK


def _results_of(sources: Iterable[Source]) -> Iterator[Path | str]:
    yield from ("targets.csv", "targets.json")
    for source in sources:
        mask, overlay = ("", ".mp4") if source.is_video else (".png", ".png")
        yield "masks" / source.relative.with_suffix(mask)
        yield "overlays" / source.relative.with_suffix(overlay)


def find_inputs(config: DetectConfig) -> Inputs:
    """The files that the configuration names; prints those that it leaves out.

    Raises:
      InputError: there are none.
    """
    inputs = find_sources(config.inputs, out=config.out, result_folders=("masks", "overlays"))
    if not inputs.sources:
        raise InputError(f"no images found ({inputs.why_empty()}); name images, folders or videos")
    for name, reason in inputs.problems:
        complain(name, reason)
    for line in inputs.notes():
        print(printable(line))
    return inputs


def measure(sources: Iterable[Source]) -> tuple[list[Source], list[tuple[int, int]]]:
    """The images that can be read, and their heights and widths; names the others."""
    readable: list[Source] = []
    sizes: list[tuple[int, int]] = []
    for source in sources:
        try:
            sizes.append(picture_size(source.path))
            readable.append(source)
        except (OSError, UnreadablePicture) as error:
            complain(str(source.path), str(error))
    return readable, sizes


_NAN = "the network returned NaN for it; --dtype float32 may help, or other weights"


class _Session:
    def __init__(self, detector: Detector, config: DetectConfig) -> None:
        self.detector, self.config = detector, config
        self.findings: list[Findings] = []

    def pictures(self, sources: list[Source]) -> int:
        """All images, those of like sizes together; returns how many could not be read."""
        readable, sizes = measure(sources)
        broken: set[int] = set()

        def read(number: int) -> np.ndarray:
            try:
                image = decode_rgb(readable[number].path)
                if image.shape[:2] != sizes[number]:
                    raise UnreadablePicture("of another size than its header says")
                if has_few_levels(readable[number].path, image):
                    _note_few_levels(readable[number], levels_of([image]))
                return image
            except (OSError, UnreadablePicture) as error:
                # The header was whole. Its place in the batch goes to a black image.
                complain(str(readable[number].path), str(error))
                broken.add(number)
                return np.zeros((*sizes[number], 3), np.uint8)

        for together, images, logits in self.detector.run(self.detector.plan(sizes), read):
            for number, image, scores in zip(together.numbers, images, logits, strict=True):
                if number not in broken:
                    source = readable[number]
                    if np.isnan(scores).any():
                        complain(str(source.path), _NAN)
                        broken.add(number)
                        continue
                    probability = self.detector.form.probability(image, scores)
                    findings, mask = self._find(source, probability)
                    name = source.relative.with_suffix(".png")
                    try:
                        self._write(Path("masks") / name, mask)
                        self._write(Path("overlays") / name, overlay(image, findings, mask))
                    except OSError as error:
                        if error.errno != errno.ENAMETOOLONG:
                            raise
                        complain(str(source.path), f"its results' names are too long ({error})")
                        broken.add(number)
        return len(sources) - len(readable) + len(broken)

    def video(self, source: Source) -> int:
        """A video, a batch of frames at a time; returns 1 if it could not be read to its end."""
        target = self.config.out / "overlays" / source.relative.with_suffix(".mp4")
        masks = self.config.out / "masks" / source.relative.with_suffix("")
        decoded, levels = 0, 0
        try:
            with open_video(source.path) as reading:
                frames = reading.frames()
                batches = iter(lambda: list(itertools.islice(frames, self.config.batch)), [])
                first = next(batches, None)
                if first is None:
                    raise UnreadableVideo(reading.shortage() or "no frames")
                stream = main_stream(reading.container)
                size = first[0].height, first[0].width
                matrix = display_matrix(first[0])
                with write_video(target) as out:
                    upright = turned(np.empty((*size, 0)), matrix).shape[:2]
                    encoder, _ = add_encoder(
                        out,
                        stream,
                        first[0],
                        upright,
                        codec="libx264",
                        quarter_turn=turned(np.empty((1, 2, 0)), matrix).shape[0] == 2,
                    )
                    for batch in itertools.chain([first], batches):
                        images = [
                            np.ascontiguousarray(turned(rgb_of(frame, size=size), matrix))
                            for frame in batch
                        ]
                        levels = max(levels, levels_of(images))
                        for shown in self._frames(source, batch, images, decoded, encoder):
                            out.mux(encoder.encode(shown))
                        decoded += len(batch)
                    out.mux(encoder.encode(None))
                bits = max(part.bits for part in first[0].format.components)
                if bits > 8 and levels < FEW_LEVELS:
                    _note_few_levels(source, levels)
                if shortage := reading.shortage():
                    raise UnreadableVideo(shortage)
        except (UnreadableVideo, OSError) as error:
            after = f" (after {decoded} frames)" if decoded else ""
            complain(str(source.path), f"{error}{after}")
            return 1
        finally:
            # Of a longer video, by this name before; one that cannot be opened replaces nothing.
            for mask in masks.glob("[0-9]" * 6 + ".png") if decoded else ():
                if int(mask.stem) >= decoded:
                    mask.unlink()
        return 0

    def _frames(
        self, source: Source, frames: list, images: list[np.ndarray], first: int, encoder: Any
    ) -> Iterator:
        """Overlays of some frames' upright images, number `first` and on, at their times."""
        name = Path("masks") / source.relative.with_suffix("")
        probabilities = self.detector.probabilities(images)
        batch = zip(frames, images, probabilities, strict=True)
        for number, (frame, image, probability) in enumerate(batch, first):
            if np.isnan(probability).any():
                raise UnreadableVideo(_NAN)
            findings, mask = self._find(source, probability, frame=number)
            self._write(name / f"{number:06}.png", mask)
            shown = frame_of(overlay(image, findings, mask), encoder.codec_context)
            shown.time_base, shown.pts = frame.time_base, frame.pts
            yield shown

    def finish(self, sources: list[Source]) -> None:
        """Writes the tables, in the order of the sources."""
        place = {source.relative.as_posix(): number for number, source in enumerate(sources)}
        self.findings.sort(key=lambda each: (place[each.name], each.frame or 0))
        with_frames = any(findings.frame is not None for findings in self.findings)
        columns = ["file", *(["frame"] if with_frames else []), *(f.name for f in fields(Target))]
        rows = (row for findings in self.findings for row in findings.rows())
        write_csv(self.config.out / "targets.csv", columns, rows)
        content = {
            "model": self.config.model,
            "weights": None if self.config.weights is None else str(self.config.weights),
            "threshold": self.config.threshold,
            "pictures": [findings.as_dict() for findings in self.findings],
        }
        text = json.dumps(content, indent=1) + "\n"
        atomic_write(self.config.out / "targets.json", text.encode())

    def _find(
        self, source: Source, probability: np.ndarray, *, frame: int | None = None
    ) -> tuple[Findings, np.ndarray]:
        findings, mask = find_targets(
            source.relative.as_posix(),
            probability,
            threshold=self.config.threshold,
            least_px=self.config.least_px,
            frame=frame,
        )
        self.findings.append(findings)
        return findings, mask

    def _write(self, name: Path, pixels: np.ndarray) -> None:
        path = self.config.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written, data = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)
        assert written
        atomic_write(path, data.tobytes())


def _note_few_levels(source: Source, levels: int) -> None:
    print("note: " + few_levels_note(printable(str(source.path)), levels=levels))


def _refuse_double_names(sources: list[Source]) -> None:
    """Two inputs whose results would have one name, such as `a/1.png` and `b/1.jpg`.

    A video's masks are in a folder of its name, where those of the images in such a folder are.
    """
    by_name: dict[Path, Source] = {}
    for source in sources:
        by_name.setdefault(source.relative.with_suffix(""), source)
    videos = {name for name, source in by_name.items() if source.is_video}
    for source in sources:
        name = source.relative.with_suffix("")
        place = next((folder for folder in name.parents if folder in videos), name)
        other = by_name[place]
        if other.path.resolve() != source.path.resolve():
            raise InputError(
                f"{other.path} and {source.path} would both be written as "
                f"{'masks' / place if place != name else source.relative.with_suffix('.png')}; "
                "give their folders apart, each its --out"
            )


def complain(name: str, reason: str) -> None:
    print(f"jaxsr: {printable(name)}: {printable(reason)}", file=sys.stderr)
