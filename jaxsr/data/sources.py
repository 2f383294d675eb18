"""Finds the images and videos that a command line names, and where their results go."""

import functools
import glob
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jaxsr.data.archives import COMPRESSED_ENDINGS
from jaxsr.data.input_files import list_files, special_kind
from jaxsr.data.picture_file import ENDINGS, READ_ONLY_ENDINGS
from jaxsr.errors import FileAccessError, counted, first_of

SEARCHED_ENDINGS = frozenset((*READ_ONLY_ENDINGS, *(e for each in ENDINGS.values() for e in each)))
"""Endings of files that are taken for images in a folder."""
_VIDEO_ENDINGS = "mp4 m4v mov mkv webm avi ts mts m2ts mpg mpeg vob flv 3gp ogv"
VIDEO_ENDINGS = frozenset(f".{ending}" for ending in _VIDEO_ENDINGS.split())


def unread_kind(path: Path) -> str | None:
    """Kind of a file that has images and is not read for training, and how to get at them."""
    ending = path.suffix.lower()
    if ending in COMPRESSED_ENDINGS:
        return "compressed: unpack it, or make a plain .tar of its files"
    if ending in VIDEO_ENDINGS:
        return "a video: write its frames into a folder with ffmpeg -i VIDEO FOLDER/%06d.png"
    return None


@dataclass(frozen=True)
class Source:
    """An image or video file."""

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
    """(input, reason) for each input that could not be read."""
    ignored: int = 0
    """Files in folders whose names are not those of images or videos."""
    passed_over: list[str] = field(default_factory=list)
    """Inputs that were not opened, and why: FIFOs, links to folders that are searched anyway,
    results."""

    def why_empty(self) -> str:
        """Reason that no file was found, for an error."""
        problems = [f"{name}: {reason}" for name, reason in self.problems]
        return "; ".join(problems + self.notes()) or "the folders are empty"

    def notes(self) -> list[str]:
        """Lines about the inputs that were left out, for a person."""
        lines = [f"passed over: {line}" for line in self.passed_over]
        if self.ignored:
            files = counted(self.ignored, "file")
            lines.append(f"passed over: {files} in folders, not images or videos by name")
        return lines


def find_sources(
    names: Iterable[str], *, out: Path, suffix: str = "", result_folders: Iterable[str] = ()
) -> Inputs:
    """Looks up files, folders and globs; results of an earlier run are left alone.

    Args:
      names: of files and folders, and globs.
      out: the folder of the results.
      suffix: of the results' names: where `a.png` is an input, `a` + suffix is its result.
      result_folders: subfolders of `out` that hold results, where `out` is itself an input.
    """
    inputs = Inputs()
    results = {out.resolve(), *(out.resolve() / name for name in result_folders)}
    for text in names:
        path = Path(text)
        if not text:  # of a variable that is not set; a path would be the current folder
            inputs.problems.append(("''", "an empty name"))
            continue
        try:
            kind = special_kind(path)
        except OSError:
            matches = [*map(Path, sorted(glob.glob(text, recursive=True)))]
            files = [path for path in matches if path.is_file()]
            inputs.sources += [Source(path, Path(path.name)) for path in files]
            # `**` matches the files of its folders, too.
            folders = [p for p in matches if p.is_dir() and "**" not in text]
            for folder in folders:
                if folder.resolve() not in results:
                    _search(folder, results, inputs)
            if not files and not folders:
                reason = "no file matches" if glob.has_magic(text) else "no such file or folder"
                inputs.problems.append((text, reason))
            continue
        if kind is not None:
            inputs.problems.append((text, kind))
        elif path.is_dir():
            _search(path, results, inputs)
        else:
            inputs.sources.append(Source(path, Path(path.name)))
    _leave_repeated_out(inputs)
    _leave_results_out(inputs, out, suffix)
    return inputs


def _search(folder: Path, results: set[Path], inputs: Inputs) -> None:
    listing = list_files(folder, left_out=lambda path: path.resolve() in results)
    inputs.problems += [(str(path), reason) for path, reason in listing.unreadable]
    inputs.passed_over += [f"{path}: {reason}" for path, reason in listing.passed_over]
    for path in listing.files:
        if path.suffix.lower() in SEARCHED_ENDINGS | VIDEO_ENDINGS:
            inputs.sources.append(Source(path, path.relative_to(folder)))
        else:
            inputs.ignored += 1


def _leave_repeated_out(inputs: Inputs) -> None:
    """Removes files that an earlier input named: folders, files and globs may overlap.

    A link of another name stays, and has a result of its own.
    """
    resolved = functools.cache(Path.resolve)
    seen: set[Path | tuple[Path, Path]] = set()
    named_first, repeated = [], []
    for source in inputs.sources:
        place = resolved(source.path.parent) / source.path.name
        identities = {place, (place.resolve(), source.relative)}
        (named_first if seen.isdisjoint(identities) else repeated).append(source)
        seen |= identities
    if repeated:
        names = first_of(str(source.path) for source in repeated)
        files = counted(len(repeated), "file")
        inputs.passed_over.append(f"{files} that an earlier input names: {names}")
    inputs.sources = named_first


def _leave_results_out(inputs: Inputs, out: Path, suffix: str) -> None:
    """Removes results that an earlier run wrote next to its sources."""
    if not suffix:
        return
    stems = {
        target_path(source, out, suffix=suffix, format=None).with_suffix("").resolve()
        for source in inputs.sources
    }
    results = [s for s in inputs.sources if s.path.with_suffix("").resolve() in stems]
    if results:
        paths = {source.path for source in results}
        inputs.sources = [source for source in inputs.sources if source.path not in paths]
        names = first_of(str(source.path) for source in results)
        inputs.passed_over.append(f"{counted(len(results), 'result')} of an earlier run: {names}")


def target_path(source: Source, out: Path, *, suffix: str, format: str | None) -> Path:
    """Where the result goes; the ending stays as it is written where it fits the format."""
    relative = source.relative
    ending = relative.suffix
    if format is not None and ending.lower() not in ENDINGS[format]:
        ending = ENDINGS[format][0]
    return out / relative.parent / f"{relative.stem}{suffix}{ending}"


def check_folder(out: Path, option: str = "--out") -> None:
    """Makes the folder that an option names, and refuses it before hours of work go into it.

    Raises:
      FileAccessError: it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        is_file = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "it is not a folder" if is_file else error.strerror or error
        raise FileAccessError(
            f"cannot write to {out}: {reason}; choose another {option}"
        ) from error
