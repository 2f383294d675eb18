"""A run's configuration as JSON, and back: `config.json` of a run folder, `--config FILE`.

    {"digest": …, "family": "span", "model": {…}, "options": {…}, "data": {…},
     "cpu_threads": 8, "kernel_threads": 8}

`options` has every field of the family's `RunConfig`. `data` has the number of files to train and
validate on, and a digest of their names and sizes. `digest` reveals damage; a file written or
edited by hand has no digest.

A file written by hand may be YAML or TOML, with the options next to the family. Options that it
leaves out have the preset's values, as on the command line:

    family: span
    preset: photos
    batch: 32
    lr: 5e-4
    model: {width: 32}
"""

import dataclasses
import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from jaxsr.errors import DamagedFileError, InputError, MissingFileError, one_line, printable
from jaxsr.field_values import checked, from_values
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.bounded_read import CONFIGURATION, read_bounded
from jaxsr.interop.json_text import check_once, parse_json
from jaxsr.interop.sealed_json import short_digest, unseal
from jaxsr.runtime.activity import wrapped
from jaxsr.runtime.options import AotOptions
from jaxsr.training.config import RunConfig

PER_RUN = ("out", "resume")
"""Options that belong to one start of a run."""
OF_COMMAND = ("compile_cache", "scratch", *AotOptions.__annotations__)
"""Options that write outside of the run's folder, or replace the training. The command line alone
gives them: a file may be a stranger's."""
NOT_INHERITED = (*PER_RUN, *OF_COMMAND, "branch_from")
"""Options of one run that are not passed on to a run that starts from its configuration."""
_ENTRIES = {
    "family", "preset", "model", "options", "data", "cpu_threads", "kernel_threads", "computed_by",
}  # fmt: skip
_KINDS = {"family": str, "options": dict, "preset": str | None, "data": dict | None}


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """Content of a configuration file."""

    family: str
    options: Mapping[str, Any]
    preset: str | None = None
    """The preset that a file written by hand changes."""
    data: Mapping[str, Any] | None = None
    """Result of `describe_data`."""
    cpu_threads: int | None = None
    """CPU threads that the run was computed with. Sums on CPUs depend on the number in their last
    bits."""
    kernel_threads: int | None = None
    """Threads of torch that the kernels of torch and oneDNN share. OMP_NUM_THREADS sets the
    number."""
    computed_by: Mapping[str, Any] | None = None
    """Further facts that the results depend on: `code`, digests of the user's modules by name,
    `folders`, those of `--data` and `--val` for a task that lists no files, and environment
    variables."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any], *, source: Path) -> "ConfigFile":
        """Reads a file's content.

        Raises:
          ValueError: an entry is unknown.
        """
        try:
            if unknown := {*content} - _ENTRIES:
                raise KeyError(f"unknown {', '.join(sorted(unknown))}")
            for name, kind in _KINDS.items():
                if name in content and not isinstance(content[name], kind):
                    raise TypeError(f"{name} is {printable(content[name], 80)}")
            return cls(
                family=content["family"],
                options=content["options"],
                preset=content.get("preset"),
                data=content.get("data"),
                cpu_threads=content.get("cpu_threads"),
                kernel_threads=content.get("kernel_threads"),
                computed_by=content.get("computed_by"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _not_a_config(source, error) from error

    def run_config(
        self,
        kind: type[RunConfig],
        *,
        without: tuple[str, ...] = NOT_INHERITED,
        base: RunConfig | None = None,
    ) -> RunConfig:
        """Returns the configuration that the file describes.

        Args:
          kind: configuration class of the file's family.
          without: options that get their defaults.
          base: values of the options that the file leaves out. Default: those of the class.

        Raises:
          ValueError: an option is unknown, or its value has the wrong type or is out of range.
        """
        options = {n: v for n, v in self.options.items() if n not in without}
        if base is not None:
            options = _merged(to_json(self.family, base)["options"], options)
        try:
            return from_values(kind, options)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError) as error:  # raised by a user's class
            raise InputError(
                f"this configuration is not one of {self.family} ({one_line(error)}); correct the "
                "file, or leave the entry out to get its default"
            ) from error


def to_json(family: str, config: RunConfig, **facts: Any) -> JsonObject:
    """Returns the content of `config.json`; `facts` are further fields of `ConfigFile`."""
    options = json.loads(json.dumps(dataclasses.asdict(config), default=_as_json))
    return {"family": family, "model": options.get("model"), "options": options, **facts}


def _as_json(value: Any) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def check_json_options(config: RunConfig, options: Mapping[str, Any]) -> None:
    """Refuses options that could not be read from a run's `config.json`.

    Args:
      config: has them.
      options: as `to_json` returns them.

    Raises:
      InputError: there is one.
    """
    declared = get_type_hints(type(config))
    for name in (field.name for field in dataclasses.fields(config) if field.init):
        try:
            checked(declared[name], options[name], name)
        except InputError as error:
            kind = getattr(declared[name], "__name__", declared[name])
            raise InputError(
                f"{name} is {printable(getattr(config, name), 80)}, which config.json cannot hold "
                f"as {kind}: no resume could read it; declare numbers, texts, bool, Path, an Enum, "
                "Literal or None, or a list, tuple or dict[str, ...] of them"
            ) from error


def describe_data(files: Mapping[str, str]) -> JsonObject:
    """Returns the number of the files of `TaskRun.files`, and their digest."""
    return {"files": len(files), "digest": short_digest(json.dumps(sorted(files.items())).encode())}


def read_config(path: Path, *, sealed: bool = False) -> ConfigFile:
    """Reads a configuration; `path` may be the run folder.

    Args:
      path: a file that `seal(to_json(…))` made, or one written by hand: JSON, .yaml or .toml.
      sealed: refuse a file without a digest.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedFileError: it does not match its digest.
      ValueError: it is not JSON, lacks an entry, or lacks the digest that `sealed` requires.
    """
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise MissingFileError(
            f"no configuration at {path}; give a run folder, its config.json, or YAML or TOML"
        )
    by_hand = _PARSERS.get(path.suffix.lower())
    raw = read_bounded(path, most_bytes=_BY_HAND if by_hand else CONFIGURATION)
    try:
        content = (by_hand or parse_json)(raw.decode())
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}" if content else "it is empty")
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path) if sealed else _not_a_config(path, error) from error
    if by_hand is not None and "options" not in content:
        named = {name: content.pop(name) for name in ("family", "preset") if name in content}
        content = named | {"options": content}
    if "digest" in content:
        try:
            content = unseal(raw, source=path)
        except DamagedFileError as error:
            raise _damaged(path) from error
    elif sealed:
        raise InputError(
            f"{path} has no digest: jaxsr 0.2.0 wrote it, or it was edited; start another run "
            f"with --branch-from {path.parent} --out NEW"
        )
    if not {"digest", "model"} & {*content}:  # which a run writes
        _check_written_by_hand(content.get("options"), path)
    return ConfigFile.from_json(content, source=path)


def _check_written_by_hand(options: Any, path: Path) -> None:
    """Refuses options that no run takes from a file.

    Raises:
      InputError: there is one.
    """
    for name in NOT_INHERITED:
        if isinstance(options, Mapping) and name in options:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"{path} has {name}={printable(options[name], 80)}, which each start names by "
                f"itself: leave it out, and add {option} to the command line"
            )


def _damaged(path: Path) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged, or was edited: it does not match its digest; restore it from a "
        "copy, or delete its entry digest and give it to --config"
    )


def _not_a_config(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} is not the configuration of a run ({type(error).__name__}: {one_line(error)}); "
        "give a config.json that jaxsr.train wrote, or YAML or TOML with family and options"
    )


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> JsonObject:
    """Returns `base` with the values of `changes`; nested dictionaries are merged."""
    merged = dict(base)
    for name, value in changes.items():
        inner = base.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(inner, value)
        else:
            merged[name] = value
    return merged


_YAML_INT = "tag:yaml.org,2002:int"
_YAML_FORMS = {
    _YAML_INT: r"[-+]?\d+(_\d+)*|0x[\da-fA-F]+",
    "tag:yaml.org,2002:float": r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "tag:yaml.org,2002:bool": "true|True|TRUE|false|False|FALSE",
}
"""Forms of numbers and truth values by their tag in YAML 1.2; 1_000 is one as in YAML 1.1."""


_BY_HAND = 2**18
"""Bytes of a YAML or TOML file, which take a hundred times as long to read as those of JSON."""


def _parse_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads numbers and truth values as YAML 1.2 does, and refuses keys that appear twice.

        5e-4 is a number, 010 is ten, and 1:30, yes and off are texts.
        """

        yaml_implicit_resolvers: ClassVar = {
            first: [(tag, form) for tag, form in resolvers if tag not in _YAML_FORMS]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # an alias may contain itself, or a thousand
                # copies
                raise yaml.YAMLError(f"write the value for *{self.peek_event().anchor}")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            check_once(k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode))
            values = super().construct_mapping(node, deep)
            if others := [key for key in values if not isinstance(key, str)]:
                raise ValueError(f"the name {others[0]} is not a text; write it in quotes")
            return values

    for tag, form in _YAML_FORMS.items():
        Loader.add_implicit_resolver(tag, re.compile(f"(?:{form})$"), list("-+.0123456789tTfF"))
    Loader.add_constructor(
        _YAML_INT, lambda _, node: int(node.value, 0 if "x" in node.value else 10)
    )
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except (LookupError, AttributeError) as error:  # PyYAML's own, of !!bool abc for example
        raise ValueError(f"a tag does not suit its value: {error}") from error


_LONG_KEY = re.compile(r"""(?:(?:"[^"\n]*+"|'[^'\n]*+'|(?<![\w-])[\w-]++)[ \t]*+\.[ \t]*+){50}""")


def _parse_toml(text: str) -> Any:
    if long := _LONG_KEY.search(text):  # tomllib takes the square of its parts, in bytes too
        raise ValueError(f"a key of more than 50 parts: {long[0]:.20}…")
    return tomllib.loads(text)


_PARSERS = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}
"""Formats of files written by hand, in addition to JSON."""


def summarize(config: RunConfig, presets: Mapping[str, RunConfig]) -> str:
    """Names the preset nearest to a run, and the options that differ, in lines of 100 characters.

    Args:
      config: the run's; its `config.json` has every option.
      presets: those of the task, by name.
    """
    options, changes = flat_options(config), {}
    for name, preset in presets.items():
        plain = flat_options(preset)
        changes[name] = {n: v for n, v in options.items() if plain.get(n) != v and n not in PER_RUN}
    nearest = min(changes, key=lambda name: len(changes[name]))
    words = [f"preset {nearest}"] if len(presets) > 1 else []
    words += [f"{n}={printable(v)}" for n, v in changes[nearest].items()]
    return wrapped(f"options: {'  '.join(words) or 'the defaults'}; config.json lists all", 100)


def flat_options(config: RunConfig) -> dict[str, str]:
    """Returns every option as text, those of the model under `model.NAME`."""
    return dict(_flat("", dataclasses.asdict(config)))


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(f"{prefix}{name}.", value)
        else:
            pairs.append((f"{prefix}{name}", _as_text(value)))
    return pairs


def _as_text(value: Any) -> str:
    """An option's value, other for each value; text is in quotes where it has spaces."""
    if isinstance(value, str):
        # `"None"` is not None.
        return repr(value) if value in ("None", "True", "False") else shlex.quote(value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(_as_text, value))})"
    return str(value)
