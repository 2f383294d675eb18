"""The work behind `python -m jaxsr.detect`: pictures and videos in, masks, overlays and tables out.

For `FOLDER/NAME.png` the output folder gets `masks/FOLDER/NAME.png` and `overlays/FOLDER/NAME.png`
at the picture's own size; for a video `masks/NAME/000000.png`, … (lossless, as a mask must be) and
`overlays/NAME.mp4`. `targets.csv` has a row for each target and `targets.json` an entry for each
picture or frame, found something or not.
"""

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import cv2
import numpy as np

from jaxsr.data.decode import UnreadablePicture, decode_rgb
from jaxsr.detection.detector import Detector
from jaxsr.detection.findings import Findings, Target, find_targets, overlay
from jaxsr.detection.options import DetectorOptions
from jaxsr.interop.aot_options import AheadOptions
from jaxsr.restoration.files import Source, find_sources


@dataclass(frozen=True, kw_only=True)
class DetectConfig(DetectorOptions, AheadOptions):
    """Options of the command."""

    least_px: int = 1
    """Targets of fewer pixels are left out."""

    def __post_init__(self) -> None:
        DetectorOptions.__post_init__(self)
        AheadOptions.__post_init__(self)
        if self.least_px < 1:
            raise ValueError(f"least_px must be at least 1, got {self.least_px}")


def run(inputs: list[str], config: DetectConfig) -> int:
    """Finds targets in everything named; returns the exit status, 2 if something was unreadable.

    Raises:
      ValueError, FileNotFoundError: no input, no weights, or a folder that cannot be used.
    """
    if not inputs:
        raise ValueError("no input; name pictures, folders or videos")
    found = find_sources(inputs, out=config.out)
    for name, reason in found.problems:
        _complain(name, reason)
    if not found.sources:
        raise ValueError(
            f"nothing to look at in {', '.join(inputs)}; name pictures, folders or videos"
        )
    _refuse_double_names(found.sources)
    detector = config.detector()
    session = _Session(detector, config)
    failed = len(found.problems)
    pictures = [source for source in found.sources if not source.is_video]
    for start in range(0, len(pictures), config.batch):
        failed += session.pictures(pictures[start : start + config.batch])
    for source in found.sources:
        if source.is_video:
            failed += session.video(source)
    session.finish()
    looked = len({findings.name for findings in session.findings})
    targets = sum(len(findings.targets) for findings in session.findings)
    print(f"{targets} target(s) in {looked} file(s); results in {config.out}")
    return 2 if failed else 0


class _Session:
    def __init__(self, detector: Detector, config: DetectConfig) -> None:
        self.detector, self.config = detector, config
        self.findings: list[Findings] = []

    def pictures(self, sources: list[Source]) -> int:
        """A batch of pictures; returns how many could not be read."""
        images: list[np.ndarray] = []
        readable: list[Source] = []
        for source in sources:
            try:
                images.append(decode_rgb(source.path))
                readable.append(source)
            except (OSError, UnreadablePicture) as error:
                _complain(str(source.path), str(error))
        likely = self.detector.probabilities(images)
        for source, image, probability in zip(readable, images, likely, strict=True):
            findings = self._find(source, probability)
            name = source.relative.with_suffix(".png")
            self._write(Path("masks") / name, findings.mask)
            self._write(Path("overlays") / name, overlay(image, findings))
        return len(sources) - len(readable)

    def video(self, source: Source) -> int:
        """A video, a batch of frames at a time; returns 1 if it could not be read."""
        capture = cv2.VideoCapture(str(source.path))
        rate = capture.get(cv2.CAP_PROP_FPS) or 25.0
        name = source.relative.with_suffix("")
        target = self.config.out / "overlays" / source.relative.with_suffix(".mp4")
        writer: cv2.VideoWriter | None = None
        number = 0
        try:
            for frames in _batches(capture, self.config.batch):
                likely = self.detector.probabilities(frames)
                for image, probability in zip(frames, likely, strict=True):
                    findings = self._find(source, probability, frame=number)
                    self._write(Path("masks") / name / f"{number:06}.png", findings.mask)
                    if writer is None:
                        writer = _open_video(target, rate, image.shape[1], image.shape[0])
                    writer.write(overlay(image, findings)[..., ::-1])
                    number += 1
        finally:
            capture.release()
            if writer is not None:
                writer.release()
        if not number:
            _complain(str(source.path), "not a video that OpenCV reads, or without frames")
        return int(number == 0)

    def finish(self) -> None:
        """Writes the tables."""
        from jaxsr.interop.weights import write_whole

        rows = [row for findings in self.findings for row in findings.rows()]
        with_frames = any(findings.frame is not None for findings in self.findings)
        columns = ["file", *(["frame"] if with_frames else []), *(f.name for f in fields(Target))]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        self.config.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.config.out / "targets.csv", text.getvalue().encode())
        described = {
            "weights": str(self.config.weights),
            "threshold": self.config.threshold,
            "pictures": [findings.as_dict() for findings in self.findings],
        }
        write_whole(
            self.config.out / "targets.json", (json.dumps(described, indent=1) + "\n").encode()
        )

    def _find(
        self, source: Source, probability: np.ndarray, *, frame: int | None = None
    ) -> Findings:
        findings = find_targets(
            source.relative.as_posix(),
            probability,
            threshold=self.config.threshold,
            least_px=self.config.least_px,
            frame=frame,
        )
        self.findings.append(findings)
        return findings

    def _write(self, name: Path, pixels: np.ndarray) -> None:
        from jaxsr.interop.weights import write_whole

        path = self.config.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written, data = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)
        assert written
        write_whole(path, data.tobytes())


def _batches(capture: cv2.VideoCapture, size: int) -> Iterator[list[np.ndarray]]:
    frames: list[np.ndarray] = []
    while True:
        there, frame = capture.read()
        if there:
            frames.append(np.ascontiguousarray(frame[..., ::-1]))
        if frames and (not there or len(frames) == size):
            yield frames
            frames = []
        if not there:
            return


def _open_video(path: Path, rate: float, width: int, height: int) -> cv2.VideoWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    fourcc = cv2.VideoWriter.fourcc(*"mp4v")
    writer = cv2.VideoWriter(str(path), fourcc, rate, (width, height))
    if not writer.isOpened():
        raise OSError(f"cannot write the video {path}; choose another --out")
    return writer


def _refuse_double_names(sources: list[Source]) -> None:
    """Two inputs whose results would have one name, such as `a/1.png` and `b/1.jpg`."""
    seen: dict[Path, Source] = {}
    for source in sources:
        other = seen.setdefault(source.relative.with_suffix(""), source)
        if other.path.resolve() != source.path.resolve():
            raise ValueError(
                f"{other.path} and {source.path} would both be written as "
                f"{source.relative.with_suffix('.png')}; give their folders apart, each its --out"
            )


def _complain(name: str, reason: str) -> None:
    print(f"jaxsr: {name}: {' '.join(reason.split())}", file=sys.stderr)
