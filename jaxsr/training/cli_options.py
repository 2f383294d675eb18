"""The options of `python -m jaxsr.train [FAMILY] [--preset NAME | --config FILE]`, in that order.

Family and preset, or the configuration of another run, decide the defaults of all other options.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError
from jaxsr.models.registry import trainable_families
from jaxsr.runtime.cli import parse_options
from jaxsr.training.config_file import read_config
from jaxsr.training.task import load_family


def parse_command_line(arguments: Sequence[str]) -> tuple[str, Any, Any]:
    """The family's name, its module and the run's configuration.

    Raises:
      InputError: there is no such family or preset, or an option cannot be used.
    """
    arguments = list(arguments)
    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments.pop(0) if named else None
    chosen, rest = _take_sources(arguments)
    if chosen.config is not None:
        if chosen.preset is not None:
            raise InputError("--config and --preset both give the defaults; leave one of them out")
        file = read_config(chosen.config)
        if name not in (None, file.family):
            raise InputError(
                f"{chosen.config} configures a run of {file.family}, not of {name}; leave the "
                "family out"
            )
        family = load_family(file.family)
        default = file.run_config(family.CONFIG)
        return file.family, family, _parse(family, file.family, rest, default, chosen.config)
    name = name or trainable_families()[0]
    family = load_family(name)
    has_data = any(_is_option(a, "--data") for a in rest)
    preset = chosen.preset or family.default_preset(has_data=has_data)
    if preset not in family.PRESET_RUNS:
        raise InputError(f"no preset {preset!r}; there are {', '.join(family.PRESET_RUNS)}")
    default = family.PRESET_RUNS[preset]
    return name, family, _parse(family, name, rest, default, f"--preset {preset}")


def _parse(family: Any, name: str, rest: list[str], default: Any, source: object) -> Any:
    """The run's configuration: the default's values, changed by the options."""
    # A length in steps replaces the default's in epochs, and the other way round.
    units = [n for n in ("steps", "epochs") if any(_is_option(a, f"--{n}") for a in rest)]
    if len(units) == 1:
        default = _with_length(default, units[0])
    return parse_options(
        family.CONFIG,
        rest,
        default=default,
        prog=f"python -m jaxsr.train {name}",
        description=(
            f"Trains {name}. Defaults are those of {source}; presets: "
            f"{', '.join(family.PRESET_RUNS)}. --config FILE takes another run's configuration."
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


def _take_sources(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """`--preset` and `--config`, which decide the others' defaults, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset")
    parser.add_argument("--config", type=Path)
    try:
        return parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
