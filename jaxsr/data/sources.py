"""Finds the pictures and videos that a command line names, and where their results go."""

import glob
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jaxsr.data.picture_file import ENDINGS, READ_ONLY_ENDINGS
from jaxsr.errors import FileAccessError

SEARCHED_ENDINGS = frozenset((*READ_ONLY_ENDINGS, *(e for each in ENDINGS.values() for e in each)))
"""Endings of files that are taken for pictures in a folder."""
VIDEO_ENDINGS = frozenset((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mpg", ".mpeg"))


@dataclass(frozen=True)
class Source:
    """A picture or video file."""

    path: Path
    """Where it is."""
    relative: Path
    """Its name under the folder that was searched; the result's name under the output folder."""

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_ENDINGS


@dataclass
class Inputs:
    """The files that a command line names."""

    sources: list[Source] = field(default_factory=list)
    """In the order of the inputs, each folder sorted."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(input, reason) of what could not be read."""
    ignored: int = 0
    """Files in folders whose names are not those of pictures or videos."""


def find_sources(names: Iterable[str], *, out: Path) -> Inputs:
    """Looks up files, folders and globs; results of an earlier run in `out` are left alone."""
    inputs = Inputs()
    for text in names:
        path = Path(text)
        if path.is_dir():
            _search(path, out.resolve(), inputs)
        elif path.exists():
            inputs.sources.append(Source(path, Path(path.name)))
        else:
            matches = sorted(glob.glob(text, recursive=True)) if glob.has_magic(text) else []
            files = [Path(match) for match in matches if Path(match).is_file()]
            inputs.sources += [Source(match, Path(match.name)) for match in files]
            if not files:
                reason = "no file matches" if glob.has_magic(text) else "no such file or folder"
                inputs.problems.append((text, reason))
    return inputs


def _search(folder: Path, out: Path, inputs: Inputs) -> None:
    def unreadable(error: OSError) -> None:
        inputs.problems.append((str(error.filename), error.strerror or str(error)))

    for here, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(f for f in folders if (Path(here) / f).resolve() != out)
        for name in sorted(names):
            path = Path(here) / name
            if path.suffix.lower() in SEARCHED_ENDINGS | VIDEO_ENDINGS:
                inputs.sources.append(Source(path, path.relative_to(folder)))
            else:
                inputs.ignored += 1


def target_path(source: Source, out: Path, *, suffix: str, format: str | None) -> Path:
    """Where the result goes; the ending stays as it is written where it fits the format."""
    relative = source.relative
    ending = relative.suffix
    if format is not None and ending.lower() not in ENDINGS[format]:
        ending = ENDINGS[format][0]
    return out / relative.parent / f"{relative.stem}{suffix}{ending}"


def check_folder(out: Path) -> None:
    """Makes the folder of a command's results, and refuses it before hours of work go into it.

    Raises:
      FileAccessError: it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise FileAccessError(
            f"cannot write to {out}: {error.strerror or error}; choose another --out"
        ) from error
