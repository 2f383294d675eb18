"""Arguments that a file gives a library's network: data, and nothing that is opened or fetched.

Libraries unpickle the checkpoints that arguments such as timm's `checkpoint_path` name, and fetch
others.
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError

_ENTRY = re.compile(r"[\w.-]+")
_SWITCHES = {"pretrained", "download"}
"""Words in names of arguments by which libraries open files or fetch them when merely true."""
_WEIGHTS = {"weights"}
"""Those that do so for true, torchvision's default, and for False and 0, smp's."""
_LOADING = {
    *_SWITCHES, *_WEIGHTS, "checkpoint", "checkpoints", "ckpt", "url", "urls", "uri", "hub", "repo",
    "file", "files", "filename", "filenames", "filepath", "path", "paths", "dir", "directory",
    "folder", "root", "vocab", "merges", "spm", "initinputs",
}  # fmt: skip
"""Those that do so for a text."""


def check_library_entry(path: Path, builder: str, *, way_out: str) -> None:
    """Refuses the name of a library's network by which the library would fetch one.

    Args:
      path: the file that names it.
      builder: `library:NAME`.
      way_out: what a person who trusts the file may do.

    Raises:
      InputError: the entry is more than a name.
    """
    if not _ENTRY.fullmatch(builder.partition(":")[2]):
        raise InputError(
            f"{path} names the builder {builder!r:.200}, which is more than a network's name; "
            f"where you trust it, {way_out}"
        )


def check_library_arguments(
    path: Path, arguments: Mapping[str, Any], *, way_out: str, builds: str = "network"
) -> None:
    """Refuses arguments by which a library would open or fetch something.

    Args:
      path: the file that gives them.
      arguments: of a library's network.
      way_out: what a person who trusts the file may do.
      builds: what the library builds.

    Raises:
      InputError: one is more than data.
    """
    if name := next((n for n, v in arguments.items() if _is_opened(n, v)), None):
        raise InputError(
            f"{path} builds its {builds} with {name}={arguments[name]!r:.100}, which may open a "
            f"file or fetch one; where you trust it, {way_out}"
        )


def _is_opened(name: str, value: Any) -> bool:
    words = _words(name)
    if words & _WEIGHTS and value is not None:
        return True
    by_name = bool(words & _LOADING)
    switched = bool(value) and bool(words & _SWITCHES)
    if isinstance(value, list | tuple) and not switched:
        return any(_is_opened(name, part) for part in value)
    if isinstance(value, dict) and not by_name:
        return any(_is_opened(inner, part) for inner, part in value.items())
    if isinstance(value, str):
        return value != "" and (by_name or _is_path(value))
    return switched or isinstance(value, dict)


def _words(name: str) -> frozenset[str]:
    """The words of a name, be it snake_case, kebab-case or camelCase, and two words as one."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return frozenset((*parts, *map("".join, itertools.pairwise(parts))))


def _is_path(text: str) -> bool:
    return bool(set(text) & set("/\\:~\0")) or (len(text) < 256 and Path(text).is_file())
