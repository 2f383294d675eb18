"""`eval "$(jaxsr --completion)"`: commands, tasks, options and their values in bash and zsh."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxsr.runtime.help_page import is_positional

OPTIONS = {
    "restore": "restoration.config:RestoreConfig",
    "detect": "detection.config:DetectConfig",
    "evaluate": "detection.config:EvaluateConfig",
    "generate": "generation.config:GenerateConfig",
    "check": "comparison.check_options:CheckConfig",
    "export": "comparison.export_options:ExportConfig",
    "compare ops": "comparison.ops_options:OpsOptions",
    "compare trace": "comparison.commands:TraceOptions",
    "compare traces": "comparison.commands:TracesOptions",
    "compare engines": "comparison.commands:EnginesOptions",
    "doctor": "doctor:DoctorConfig",
}
"""Options of every command but `train`, whose tasks have their own."""

_SCRIPT = """\
[ -n "$ZSH_VERSION" ] && {
  whence compdef > /dev/null || { autoload -Uz compinit; compinit; }
  autoload -Uz bashcompinit; bashcompinit
}
_jaxsr() {
  local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words
  case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
%(options)s
  esac
  case "$COMP_CWORD ${COMP_WORDS[1]} $word" in
    *\\ -*) words="--help --quiet --version $words" ;;
    1\\ *) words="%(commands)s" ;;
    2\\ train\\ *) words="%(tasks)s" ;;
    2\\ compare\\ *) words="ops trace traces engines" ;;
    *) words="" ;;
  esac
  case "${COMP_WORDS[1]} ${COMP_WORDS[2]} $previous" in
%(values)s
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$word") )
}
complete -o default -F _jaxsr jaxsr
"""


def load_options(command: str) -> type:
    """Returns the dataclass of the options of a command in `OPTIONS`."""
    module, _, name = OPTIONS[command].partition(":")
    return getattr(import_module(f"jaxsr.{module}"), name)


def completion_script(commands: Iterable[str], tasks: Mapping[str, type]) -> str:
    """Returns a script that both shells evaluate; zsh takes bash's completions.

    Args:
      commands: commands of `jaxsr`.
      tasks: options of each task of `train`, the default task first.
    """
    named = {command: load_options(command) for command in OPTIONS}
    named |= {f"train {task}": options for task, options in tasks.items()}
    lines: list[str] = []
    values: list[tuple[str, str, list[str]]] = []
    for command in sorted(named, key=len, reverse=True):  # `compare traces` before `compare trace`
        choices = dict(_options("--", named[command]))
        words = [*choices, *(["--preset", "--config"] if command.startswith("train") else [])]
        lines.append(f'    "{command}"*) words="{" ".join(words)}" ;;')
        values += [(option, command, listed) for option, listed in choices.items()]
    (default,) = (line for line in lines if f'"train {next(iter(tasks))}"' in line)
    lines.append(default.replace(next(iter(tasks)), "", 1))  # without a task, the first one
    return _SCRIPT % {
        "options": "\n".join(lines),
        "commands": " ".join(commands),
        "tasks": " ".join(tasks),
        "values": "\n".join(_values(values, next(iter(tasks)))),
    }


def _values(values: list[tuple[str, str, list[str]]], default_task: str) -> Iterator[str]:
    """Returns a line for each option's values, or a line for each command where these differ."""
    for option in dict.fromkeys(option for option, _, _ in values):
        by_command = {command: listed for name, command, listed in values if name == option}
        by_command |= {"train ": by_command.get(f"train {default_task}", [])}
        lists = [listed for command, listed in by_command.items() if command != "train "]
        if lists.count(lists[0]) == len(lists):
            by_command = {"": lists[0]}
        for command, listed in by_command.items():
            if listed:
                yield f'    "{command}"*\\ {option}) words="{" ".join(listed)}" ;;'


def _options(prefix: str, kind: Any) -> Iterator[tuple[str, list[str]]]:
    """Returns the names of a dataclass's options, each with its values if these are listed."""
    types = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, declared = prefix + field.name.replace("_", "-"), types[field.name]
        if is_positional(kind, field.name):
            continue
        if dataclasses.is_dataclass(declared):
            yield from _options(f"{name}.", declared)
        else:
            literals = [k for k in (declared, *get_args(declared)) if get_origin(k) is Literal]
            names = field.metadata.get("names", ())
            yield name, [*names, *(str(value) for kind in literals for value in get_args(kind))]
