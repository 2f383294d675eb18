"""Lists the files in a folder of inputs: the one walk of every command.

Only regular files are listed. FIFOs, sockets, devices, and links to folders that are searched
anyway are reported instead. Hidden names, which begin with a dot, are left out: .DS_Store, and
macOS's ._photo.jpg, which is not a photo.
"""

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jaxsr.errors import first_of
from jaxsr.interop.sealed_json import short_digest

_SIZED = 100_000
"""Files of a folder whose sizes are read: on a network's file system each takes a while."""

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a FIFO, not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
    (stat.S_ISCHR, "a device, not a file"),
    (stat.S_ISBLK, "a device, not a file"),
)


@dataclass
class Listing:
    """Content of a folder."""

    files: list[Path] = field(default_factory=list)
    """Regular files, sorted by name."""
    passed_over: list[tuple[Path, str]] = field(default_factory=list)
    """(path, reason) of each irregular file, and each folder that is listed under another name."""
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    """(path, reason) of folders that cannot be listed, and of broken links."""

    def notes(self) -> list[str]:
        """A line for each reason why files were passed over."""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for path, reason in self.passed_over:
            by_reason[reason].append(str(path))
        return [f"passed over {first_of(names)}: {reason}" for reason, names in by_reason.items()]


def special_kind(path: Path) -> str | None:
    """Kind of a path that is neither a file nor a folder: reading it could wait for ever.

    Raises:
      OSError: there is nothing at the path, or it cannot be looked at.
    """
    mode = path.stat().st_mode
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), None)


def list_files(folder: Path, *, left_out: Callable[[Path], bool] = lambda path: False) -> Listing:
    """Every regular file below a folder, links followed.

    Args:
      folder: to search, recursively.
      left_out: subfolders not to search, a command's own results for example.
    """
    listing = Listing()
    real_paths: dict[str, Path] = {}
    links: list[Path] = []
    _walk(folder, listing, real_paths, links, left_out)
    # After the folders themselves: a folder is listed under its own name, not under a link's.
    while links:
        _walk(links.pop(0), listing, real_paths, links, left_out)
    listing.files.sort(key=os.fsencode)
    listing.passed_over.sort()
    return listing


def files_digest(path: Path, *, left_out: Callable[[Path], bool] = lambda path: False) -> str:
    """Tells files apart by their names within a folder and their sizes.

    Args:
      path: a folder, or a file. Of a folder of more than `_SIZED` files names alone count.
      left_out: see `list_files`.
    """
    files = list_files(path, left_out=left_out).files if path.is_dir() else [path]
    sizes = [str(file.stat().st_size) for file in files] if len(files) <= _SIZED else []
    names = [os.fsencode(file.relative_to(path)) for file in files]
    return short_digest(b"\0".join([*names, *(size.encode() for size in sizes)]))


def _walk(
    start: Path,
    listing: Listing,
    real_paths: dict[str, Path],
    links: list[Path],
    left_out: Callable[[Path], bool],
) -> None:
    waiting = [start]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(folder)
        if real in real_paths:
            reason = f"the same folder as {real_paths[real]}"
            listing.passed_over.append((folder, reason))
            continue
        real_paths[real] = folder
        try:
            with os.scandir(folder) as entries:
                names = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            listing.unreadable.append((folder, _reason(error)))
            continue
        for entry in names:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            try:
                kind = special_kind(path)
                if kind is not None:
                    listing.passed_over.append((path, kind))
                elif not path.is_dir():
                    listing.files.append(path)
                elif not left_out(path):
                    (links if entry.is_symlink() else waiting).append(path)
            except OSError as error:
                looped = error.errno == errno.ELOOP
                (listing.passed_over if looped else listing.unreadable).append(
                    (path, "a link to itself" if looped else _reason(error))
                )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
