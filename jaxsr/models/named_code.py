"""Code that a file names: whether it may be imported, decided without importing it.

Weights files and run folders come from anybody, and a seal shows damage, not who made it. So code
that they name is imported only if the command names it as well, or if a person agrees and the
module lies outside the folder that came with the file.
"""

import importlib.machinery
import inspect
import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from jaxsr.errors import InputError
from jaxsr.interop.python_code import is_users_file
from jaxsr.models.build import CODE_NAME, LIBRARIES
from jaxsr.models.builder_arguments import check_library_arguments, check_library_entry

_BUILT = ("network", "discriminator", "model")
"""Options of networks that `LIBRARIES` build; others have `NAME_args` beside them."""
_RULES = ("optimizer", "schedule")
"""Endings of options that call optax."""
_OPTAX = ("optax", "optax.contrib")
"""Modules from which `--optimizer` and `--schedule` may call only rules and schedules."""


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


def check_run_names(
    source: Path, family: str, options: Mapping[str, object], words: Iterable[str]
) -> None:
    """Refuses to go on with a run whose code the command does not name.

    Names of libraries that jaxsr knows are left out where jaxsr calls the library: as a task or a
    logger they would be modules of the current folder.

    Args:
      source: the run's folder or configuration.
      family: of the run.
      options: in the configuration, without those that are paths.
      words: of the command line.

    Raises:
      InputError: the configuration names code that no word does.
    """
    words = [word.replace(".py:", ":") for word in words]
    of_command = {*code_names(words)}
    named = [*code_names(family)]
    for option, value in options.items():
        is_built = option in _BUILT or f"{option}_args" in options
        known = _OPTAX if option.endswith(_RULES) else LIBRARIES if is_built else ()
        named += [name for name in code_names(value) if name.partition(":")[0] not in known]
    for name in named:
        if name not in of_command:
            raise InputError(
                f"{source} names the code {name}, and a configuration runs no code of its choice; "
                f"where you trust it, name {name} in the command, as when the run began"
            )


def check_network_arguments(
    source: Path,
    options: Mapping[str, Any],
    *,
    of_command: Container[str] = (),
    way_out: Callable[[str], str],
) -> None:
    """Refuses options by which a library's network would open or fetch something.

    Args:
      source: the file that has them.
      options: `NAME_args` has the arguments of the network that `NAME` names.
      of_command: names of the options that the command itself gives.
      way_out: what a person who trusts the file may do, by the name of the option.

    Raises:
      InputError: one would.
    """
    for name, builder in options.items():
        given = f"{name}_args"
        if given not in options or not isinstance(builder, str) or not _is_of_library(builder):
            continue
        if name not in of_command:
            check_library_entry(source, builder, way_out=way_out(name))
        if given not in of_command:
            arguments = _json(options[given])
            if isinstance(arguments, Mapping):  # others are refused where they are read
                check_library_arguments(source, arguments, way_out=way_out(given))


def _is_of_library(builder: str) -> bool:
    """Whether a library builds this network: jaxsr knows it, or it is installed."""
    if builder.partition(":")[0] in LIBRARIES:
        return ":" in builder
    source = source_path(builder) if CODE_NAME.fullmatch(builder) else None
    return source is not None and not is_users_file(str(source))


def code_names(values: object) -> Iterator[str]:
    """The names of code in values of JSON."""
    return (match[0] for text in _texts(values) for match in CODE_NAME.finditer(text))


def _json(value: object) -> object:
    """The value of a text that is a JSON object, and any other as it is."""
    try:
        return json.loads(value) if isinstance(value, str) and value.strip()[:1] in "{[" else value
    except (ValueError, RecursionError):
        return value


def _texts(value: object) -> Iterator[str]:
    """The texts in values of JSON, names of entries among them."""
    value = _json(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, Iterable):
        for one in value:
            yield from _texts(one)
