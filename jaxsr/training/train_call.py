"""`jaxsr.train` runs a task from Python; it loads the heavy modules when called."""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxsr.errors import InputError, one_line
from jaxsr.field_values import takes_json

if TYPE_CHECKING:
    from jaxsr.training.finished_run import Run
    from jaxsr.training.task import Task


def train(task: "str | type[Task]", **options: Any) -> "Run":
    """Trains a task, as `python -m jaxsr.train` does.

    Args:
      task: a subclass of `jaxsr.Task`, or its name on the command line: `span`, `mshnet`,
        `my_file:Denoising`.
      **options: those of the command line with underscores: `steps=200`, `mesh=8`, `data="photos"`,
        `preset="quick"`, `resume=True`, `model={"width": 16}`,
        `optimizer_args={"b2": 0.98}`.

    Returns:
      The finished run; its folder has all files.

    Raises:
      UserError: an option cannot be used, or the run cannot start or go on.
    """
    from jaxsr.training.generators import preserved_generators

    with preserved_generators():  # libraries draw as they are imported
        return _train(task, options)


def _train(task: "str | type[Task]", options: Mapping[str, Any]) -> "Run":
    from jaxsr.training.cli_options import parse_command_line
    from jaxsr.training.find_task import check_task
    from jaxsr.training.start import start

    name, kind = task if isinstance(task, str) else "", None
    if not name:
        kind = check_task(task, repr(task))
        name = f"{kind.__module__}:{kind.__qualname__}"
    name, kind, config = parse_command_line([name, *_words(options)], kind)
    if config.aot is not None:
        raise InputError(
            f"aot={config.aot} compiles instead of training; use python -m jaxsr.train {name} --aot"
        )
    return start(name, kind, config)


def _words(options: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """Translates keyword arguments into the words of a command line.

    Raises:
      InputError: the command line cannot express a value.
    """
    if prefix.count(".") > _DEEPEST:
        raise InputError(f"{prefix}… has dictionaries within each other without end; give others")
    words = []
    for name, value in options.items():
        option = prefix + str(name).replace("_", "-")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            words += _words(dataclasses.asdict(value), f"{option}.")
        elif isinstance(value, Mapping) and takes_json(name):
            words.append(f"{option}={_as_json(name, value)}")
        elif isinstance(value, Mapping):
            words += _words(value, f"{option}.")
        elif isinstance(value, bool):
            words.append(option if value else prefix + f"no-{name}".replace("_", "-"))
        elif isinstance(value, tuple | list):
            words += [option, *map(str, value)]
        else:
            words.append(f"{option}={value}")
    return words


_DEEPEST = 9
"""Dictionaries within each other; one may contain itself."""


def _as_json(name: str, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{name} cannot be JSON ({one_line(error)}); give it text, numbers, lists and "
            "dictionaries with keys of text"
        ) from error
