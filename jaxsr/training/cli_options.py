"""Options of `python -m jaxsr.train [FAMILY] [--preset NAME | --config FILE]`, in that order.

The family and the preset, or the configuration of another run, set the defaults of all other
options. A resumed run keeps its own options, and only some may be changed.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args, get_type_hints

from jaxsr.errors import InputError
from jaxsr.runtime.activity import is_quiet
from jaxsr.runtime.cli import named_options, parse_options
from jaxsr.training.config import RunConfig
from jaxsr.training.config_file import OF_COMMAND, PER_RUN, ConfigFile, read_config
from jaxsr.training.find_task import TASKS, find_options, find_task, presets_of
from jaxsr.training.run_folder import check_changes, newest_run, read_run
from jaxsr.training.task_config import TaskOptions

if TYPE_CHECKING:
    from jaxsr.training.task import Task

_PATHS = {name for name, kind in get_type_hints(RunConfig).items() if Path in get_args(kind)}
"""Options that take files and folders. These may contain a colon, as in `hf:ORG/NAME:FILE`."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Options that set the defaults of all others."""

    preset: str | None = None
    """Named set of defaults. Default: the task's first, or its preset for --data."""
    config: Path | None = None
    """File with default values of the options: a run folder, its config.json, YAML or TOML."""
    schema: bool = False
    """Print a JSON Schema of the task's options, with which editors check such files, and exit."""


def parse_command_line(
    arguments: Sequence[str], kind: "type[Task] | None" = None
) -> "tuple[str, type[Task], RunConfig]":
    """Returns the task's name, its class and the run's configuration.

    Args:
      arguments: words of the command line.
      kind: the task that the first word names. Default: find it by that name.

    Raises:
      InputError: there is no such task or preset, or an option cannot be used.
    """
    name, config = _name_and_config(arguments, kind)
    return name, kind or find_task(name), config  # which loads the frameworks


def _name_and_config(
    arguments: Sequence[str], kind: type[TaskOptions] | None
) -> tuple[str, RunConfig]:
    words = arguments = list(arguments)
    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0].replace(".py:", ":") if named else None
    arguments = arguments[named:]
    sources, rest = _split(arguments)
    if sources.schema:
        _print_schema(name or next(iter(TASKS)), kind)
    other = sources.config or sources.branch_from
    if other is not None and (
        sources.preset is not None
        or (sources.config is not None and sources.branch_from is not None)
    ):
        raise InputError(
            "--preset, --config and --branch-from each give the defaults; leave all but one out"
        )
    if sources.resume:
        out = sources.out or newest_run(name)
        run = read_run(out)
        if run is not None:
            _check_run_names(out, run, words)
            return _resumed(out, run, name, kind, sources, rest)
        if name is None and kind is None and other is None and sources.preset is None:
            raise InputError(
                f"--resume found no run in {out}; name its folder with --out, or, to begin a run, "
                f"the task: `train {next(iter(TASKS))} --resume`"
            )
    if other is not None:
        file = read_config(other) if other == sources.config else read_run(other, sealed=False)
        if file is None:
            raise InputError(f"--branch-from found no run in {other}; give the folder of one")
        _check_run_names(other, file, words)
        _check_family(name, file, other)
        task = kind or find_options(file.family)
        default = file.run_config(task.Config, base=_preset_below(task, file, rest))
        config = _parse(task, file.family, rest, default, other)
        _check_arguments(other, config, rest)
        return file.family, config
    name = name or next(iter(TASKS))
    task = kind or find_options(name)
    return name, _parse_preset(task, name, rest, sources.preset)


def _print_schema(name: str, kind: type[TaskOptions] | None) -> NoReturn:
    from jaxsr.training.config_schema import config_schema

    task = kind or find_options(name)
    schema = config_schema(name, presets_of(task), task.default_presets[False])
    print(json.dumps(schema, indent=2))
    raise SystemExit(0)


def _check_run_names(source: Path, run: ConfigFile, words: list[str]) -> None:
    """Refuses a run whose code the command does not name, before any of that code is imported."""
    from jaxsr.models.named_code import check_run_names

    options = {name: value for name, value in run.options.items() if name not in _PATHS}
    check_run_names(source, run.family, options, words)


def _check_arguments(source: Path, config: RunConfig, rest: list[str]) -> None:
    """Refuses arguments of a library's network that a file gives, and that open or fetch one."""
    from jaxsr.models.named_code import check_network_arguments

    def way_out(name: str) -> str:
        return f"give --{name.replace('_', '-')} in the command as well"

    check_network_arguments(source, vars(config), of_command=named_options(rest), way_out=way_out)


def _resumed(
    out: Path,
    run: ConfigFile,
    name: str | None,
    kind: type[TaskOptions] | None,
    sources: argparse.Namespace,
    rest: list[str],
) -> tuple[str, RunConfig]:
    """Returns the configuration of the run to resume, with the changed options applied."""
    _check_family(name, run, out)
    task = kind or find_options(run.family)
    default = run.run_config(task.Config, without=(*PER_RUN, *OF_COMMAND))
    config = _parse(task, run.family, rest, default, out)
    _check_arguments(out, config, rest)
    if sources.preset is not None:
        check_changes(out, run, _parse_preset(task, run.family, rest, sources.preset))
    elif sources.config is not None:
        file = read_config(sources.config)
        _check_run_names(sources.config, file, [run.family, *rest])
        _check_family(run.family, file, sources.config)
        default = file.run_config(task.Config, base=_preset_below(task, file, rest))
        check_changes(out, run, _parse(task, run.family, rest, default, sources.config))
    config = dataclasses.replace(config, out=out)
    check_changes(out, run, config)
    return run.family, config


def _check_family(name: str | None, file: ConfigFile, source: Path) -> None:
    if name not in (None, file.family):
        raise InputError(
            f"{source} configures a run of {file.family}, not of {name}; leave the family out"
        )


def _parse_preset(
    task: type[TaskOptions], name: str, rest: list[str], preset: str | None
) -> RunConfig:
    has_data = _has_data(rest)
    plain, chosen = task.default_presets[False], task.default_presets[has_data]
    default = _preset(task, preset or chosen)
    config = _parse(task, name, rest, default, f"--preset {preset or chosen}")
    if preset is None and chosen != plain and not is_quiet():
        print(f"preset {chosen}, because of --data; --preset {plain} overrides it", flush=True)
    return config


def _preset(task: type[TaskOptions], name: str) -> RunConfig:
    presets = presets_of(task)
    if name not in presets:
        raise InputError(f"no preset {name!r}; there are {', '.join(presets)}")
    return presets[name]


def _preset_below(task: type[TaskOptions], file: ConfigFile, rest: list[str]) -> RunConfig:
    """Finds the preset that supplies the values which a configuration file leaves out."""
    has_data = "data" in file.options or _has_data(rest)
    preset = _preset(task, file.preset or task.default_presets[has_data])
    units = [name for name in ("steps", "epochs") if file.options.get(name) is not None]
    return _with_length(preset, units[0]) if len(units) == 1 else preset


def _parse(
    task: type[TaskOptions], name: str, rest: list[str], default: RunConfig, source: object
) -> RunConfig:
    """Returns the run's configuration: the default's values, changed by the options."""
    # A length in steps replaces a default in epochs, and the other way round.
    units = [n for n in ("steps", "epochs") if any(_is_option(a, f"--{n}") for a in rest)]
    if len(units) == 1:
        default = _with_length(default, units[0])
    return parse_options(
        task.Config,
        rest,
        default=default,
        prog=f"python -m jaxsr.train {name}",
        first=Preset,
        elsewhere=_tasks_with,
        description=(
            f"Trains {name}{_presets(task, source)}.\n\n"
            "The word after train is one of fast-srgan (the default), span and mshnet; "
            "super-resolution or detection, which train a network of yours (--network "
            "package.module:Class); or a task of yours, module:Class. Each has options of its "
            "own: python -m jaxsr.train TASK --help."
        ),
    )


def _presets(task: type[TaskOptions], source: object) -> str:
    """Says where the defaults are from, and names the presets if there are several."""
    names = list(presets_of(task))
    if len(names) == 1 and source == f"--preset {names[0]}":
        return ""
    return f", with the defaults of {source}; its presets are {', '.join(names)}"


def _tasks_with(option: str) -> str:
    """Ends an error about an option that belongs to another of jaxsr's tasks."""
    field = option.removeprefix("--").replace("-", "_")
    names = [n for n in TASKS if field in find_options(n).Config.__dataclass_fields__]
    return f"; it belongs to train {' and train '.join(names)}" if names else ""


def _is_option(argument: str, name: str) -> bool:
    return argument == name or argument.startswith(name + "=")


def _has_data(arguments: Sequence[str]) -> bool:
    """Whether --data has a value; None is its default, as `jaxsr.train(data=None)` says."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", nargs="*", default=["None"])
    return parser.parse_known_args(arguments)[0].data != ["None"]


def _with_length(default: RunConfig, kind: str) -> RunConfig:
    """Returns the default run with its length in this unit; the option replaces the number."""
    if getattr(default, kind) is not None:
        return default
    if kind == "epochs":
        return dataclasses.replace(default, steps=None, epochs=1.0)
    return dataclasses.replace(default, steps=2**31 - 1, epochs=None)  # beyond any --profile


def _split(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Separates the options that choose the default configuration from the other arguments.

    `--preset` and `--config` are not options of a run, so the other arguments omit them.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset", type=partial(_unless_none, str))
    parser.add_argument("--config", type=partial(_unless_none, Path))
    parser.add_argument("--schema", action="store_true")
    try:
        sources, rest = parser.parse_known_args(arguments)
        parser.add_argument("--out", type=partial(_unless_none, Path))
        parser.add_argument("--branch-from", "--branch_from", type=partial(_unless_none, Path))
        parser.add_argument("--resume", action=argparse.BooleanOptionalAction)
        return parser.parse_known_args(rest, sources)[0], rest
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error


def _unless_none(kind: type[str] | type[Path], text: str) -> str | Path | None:
    return None if text == "None" else kind(text)
