"""Code that a file names: whether it may be imported, decided without importing it.

Weights files and run folders come from anybody, and a seal shows damage, not who made it. So code
that they name is imported only if the command names it as well, or if a person agrees and the
module lies outside the folder that came with the file.
"""

import importlib.machinery
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from jaxsr.errors import InputError
from jaxsr.models.build import LIBRARIES

_OPTAX = ("optax", "optax.contrib")
"""Modules from which `--optimizer` and `--schedule` may call only rules and schedules."""
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_ENTRY = re.compile(r"[\w.-]+")
_SWITCHES = {"pretrained", "download"}
"""Words in names of arguments by which libraries open files or fetch them when merely true."""
_WEIGHTS = {"weights"}
"""Those that do so for true, torchvision's default, and for False, smp's."""
_LOADING = {
    *_SWITCHES, *_WEIGHTS, "checkpoint", "checkpoints", "ckpt", "url", "urls", "uri", "hub", "repo",
    "file", "files", "filename", "filenames", "filepath", "path", "paths", "dir", "directory",
    "folder", "root",
}  # fmt: skip
"""Those that do so for a text."""


def source_path(name: str) -> Path | None:
    """The file of `package.module:attribute`'s module; neither it nor its packages are imported."""
    path: Any = None
    spec = None
    here = [] if {"", str(Path.cwd())} & {*sys.path} else [str(Path.cwd())]
    for part in name.partition(":")[0].split("."):
        if spec is not None:
            path = spec.submodule_search_locations
            if path is None:
                return None
        else:
            path = [*here, *sys.path]
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve()


def lies_in(name: str, folder: Path) -> bool:
    """Whether the module of `package.module:attribute` lies in that folder."""
    source = source_path(name)
    return source is not None and source.is_relative_to(folder.resolve())


def check_network_code(attribute: Any, what: str) -> None:
    """Rejects code that a file names if it is neither a network nor the user's own.

    Raises:
      InputError: it is neither a subclass of `torch.nn.Module` nor defined below the current
        folder. Objects may be called, and have no file of their own.
    """
    if inspect.isclass(attribute) and issubclass(attribute, nn.Module):
        return
    has_source = inspect.isfunction(attribute) or inspect.isclass(attribute)
    try:
        source = inspect.getsourcefile(attribute) if has_source else None
    except (TypeError, OSError):  # a class of C
        source = None
    if source is None or not Path(source).resolve().is_relative_to(Path.cwd()):
        raise InputError(
            f"{what}, which is neither a torch.nn.Module nor defined below the current folder"
        )


def check_run_names(source: Path, named: Iterable[object], words: Iterable[str]) -> None:
    """Refuses to go on with a run whose code the command does not name.

    Args:
      source: the run's folder or configuration.
      named: names in the configuration.
      words: of the command line.

    Raises:
      InputError: the configuration names code that no word does.
    """
    words = [word.replace(".py:", ":") for word in words]
    of_command = {match[0] for word in words for match in _NAME.finditer(word)}
    for text in _texts(named):
        names = _NAME.finditer(text) if text[:1] != "{" else ()
        for name in (match[0] for match in names):
            library = name.partition(":")[0]
            if library in (*LIBRARIES, *_OPTAX) or name in of_command:
                continue
            raise InputError(
                f"{source} names the code {name}, and a configuration runs no code of its choice; "
                f"where you trust it, name {name} in the command, as when the run began"
            )


def _texts(value: object) -> Iterator[str]:
    """The texts in values of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(value.values())
    elif isinstance(value, Iterable):
        for one in value:
            yield from _texts(one)


def check_library_builder(path: Path, builder: str, arguments: Mapping[str, Any]) -> None:
    """Refuses a library's builder that would open or fetch something.

    Args:
      path: the file that names it.
      builder: `library:NAME`.
      arguments: of the builder.

    Raises:
      InputError: the entry or an argument is more than data.
    """
    if not _ENTRY.fullmatch(builder.partition(":")[2]):
        raise InputError(
            f"{path} names the builder {builder!r:.200}, which is more than a network's name; "
            "export the weights again"
        )
    for name, value in arguments.items():
        _check_argument(path, name, value)


def _check_argument(path: Path, name: str, value: Any) -> None:
    words = _words(name)
    by_name = bool(words & _LOADING)
    switched = bool(value) and bool(words & _SWITCHES)
    if isinstance(value, list) and not switched:
        for part in value:
            _check_argument(path, name, part)
        return
    if isinstance(value, dict) and not by_name:
        for inner, part in value.items():
            _check_argument(path, inner, part)
        return
    if isinstance(value, str):
        refused = value != "" and (by_name or _is_path(value))
    else:
        for_weights = isinstance(value, bool) and bool(words & _WEIGHTS)
        refused = switched or for_weights or isinstance(value, dict)
    if refused:
        raise InputError(
            f"{path} builds its network with {name}={value!r:.100}, which may open a file or fetch "
            "one; where you trust it, name the network yourself: --model library:NAME "
            f"--model-options JSON --weights {path}"
        )


def _words(name: str) -> frozenset[str]:
    """The words of a name, be it snake_case, kebab-case or camelCase, and two words as one."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return frozenset((*parts, *map("".join, itertools.pairwise(parts))))


def _is_path(text: str) -> bool:
    return bool(set(text) & set("/\\:~\0")) or (len(text) < 256 and Path(text).is_file())
