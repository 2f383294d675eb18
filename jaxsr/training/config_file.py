"""A run's configuration as JSON, and back: `config.json` of a run folder, `--config FILE`.

    {"family": "span", "model": {…}, "options": {…}}

`options` holds every field of the family's `RunConfig`.
"""

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, MissingFileError
from jaxsr.training.config import RunConfig

NOT_INHERITED = ("out", "resume")
"""Options of one run, which another that starts from its configuration does not take over."""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """What a configuration file holds."""

    family: str
    options: Mapping[str, Any]

    def run_config(self, kind: type[RunConfig]) -> RunConfig:
        """The configuration that the file describes, without `NOT_INHERITED`.

        Args:
          kind: configuration class of the file's family.

        Raises:
          ValueError: an option is unknown, or its value is of another type or out of range.
        """
        import dacite

        options = {n: v for n, v in self.options.items() if n not in NOT_INHERITED}
        rules = dacite.Config(cast=[Path, tuple], strict=True)
        try:
            return dacite.from_dict(kind, options, rules)
        except dacite.DaciteError as error:
            raise InputError(
                f"this configuration is not one of {self.family} ({error}); correct the file, or "
                "leave the entry out to get its default"
            ) from error


def to_json(family: str, config: RunConfig) -> dict[str, Any]:
    """The content of `config.json`."""
    options = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return {"family": family, "model": options.get("model"), "options": options}


def read_config(path: Path) -> ConfigFile:
    """Reads what `to_json` wrote; `path` may be the run folder.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not JSON, or lacks an entry.
    """
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise MissingFileError(f"no configuration at {path}; give a run folder or its config.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return ConfigFile(family=str(content["family"]), options=dict(content["options"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is not the config.json of a run ({type(error).__name__}: {error}); give one "
            "that jaxsr.train wrote"
        ) from error


def summarize(config: RunConfig) -> str:
    """Every option and its value, as indented lines of at most 100 characters."""
    pairs = " ".join(f"{name}={value}" for name, value in flat_options(config).items())
    wrapped = textwrap.fill(pairs, 98, break_long_words=False, break_on_hyphens=False)
    return "configuration:\n" + textwrap.indent(wrapped, "  ")


def flat_options(config: RunConfig) -> dict[str, str]:
    """Every option as text, those of the model under `model.NAME`."""
    return dict(_flat("", dataclasses.asdict(config)))


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(f"{prefix}{name}.", value)
        else:
            pairs.append((prefix + name, str(value).replace(" ", "")))
    return pairs
