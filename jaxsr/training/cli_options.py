"""The options of `python -m jaxsr.train [FAMILY] [--preset NAME]`, read in that order.

Family and preset decide the defaults of all other options.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxsr.errors import InputError
from jaxsr.models.registry import trainable_families
from jaxsr.runtime.cli import parse_options
from jaxsr.training.task import load_family


def parse_command_line(arguments: Sequence[str]) -> tuple[str, Any, Any]:
    """The family's name, its module and the run's configuration.

    Raises:
      InputError: there is no such family or preset, or an option cannot be used.
    """
    arguments = list(arguments)
    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments.pop(0) if named else trainable_families()[0]
    family = load_family(name)
    return name, family, parse_run(family, name, arguments)


def parse_run(family: Any, name: str, arguments: Sequence[str]) -> Any:
    """The run's configuration: the preset's values, changed by the options given."""
    preset, rest = _take_preset(arguments)
    if preset is None:
        has_data = any(_is_option(a, "--data") for a in rest)
        preset = family.default_preset(has_data=has_data)
    if preset not in family.PRESET_RUNS:
        raise InputError(f"no preset {preset!r}; there are {', '.join(family.PRESET_RUNS)}")
    default = family.PRESET_RUNS[preset]
    # A length in steps replaces the preset's in epochs, and the other way round.
    units = [n for n in ("steps", "epochs") if any(_is_option(a, f"--{n}") for a in rest)]
    if len(units) == 1:
        default = _with_length(default, units[0])
    return parse_options(
        family.CONFIG,
        rest,
        default=default,
        prog=f"python -m jaxsr.train {name}",
        description=(
            f"Trains {name}. Defaults are those of --preset {preset}; "
            f"presets: {', '.join(family.PRESET_RUNS)}."
        ),
    )


def _is_option(argument: str, name: str) -> bool:
    return argument == name or argument.startswith(name + "=")


def _with_length(default: Any, kind: str) -> Any:
    """The default run with its length in this unit; the option replaces the number."""
    if getattr(default, kind) is not None:
        return default
    other = "epochs" if kind == "steps" else "steps"
    placeholder = default.steps or default.epochs
    return dataclasses.replace(default, **{kind: placeholder, other: None})


def _take_preset(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of `--preset`, which decides the others' defaults, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset")
    try:
        known, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    return known.preset, rest
