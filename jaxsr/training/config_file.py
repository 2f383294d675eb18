"""A run's configuration as JSON, and back: `config.json` of a run folder, `--config FILE`.

    {"digest": …, "family": "span", "model": {…}, "options": {…}, "data": {…},
     "cpu_threads": 8, "kernel_threads": 8}

`options` holds every field of the family's `RunConfig`, `data` the number of files trained and
validated on and a digest of their names and sizes. `digest` makes damage noticed; a file that was
written or edited by hand goes without.
"""

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsr.errors import DamagedFileError, InputError, MissingFileError, one_line
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.interop.sealed_json import short_digest, unseal
from jaxsr.training.config import RunConfig

PER_RUN = ("out", "resume")
"""Options that belong to one start of one run."""
NOT_INHERITED = (*PER_RUN, "branch_from")
"""Options of one run, which another that starts from its configuration does not take over."""
_ENTRIES = {"family", "model", "options", "data", "cpu_threads", "kernel_threads", "computed_by"}


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """Content of a configuration file."""

    family: str
    options: Mapping[str, Any]
    data: Mapping[str, Any] | None = None
    """As `describe_data` gives it."""
    cpu_threads: int | None = None
    """CPU threads that the run was computed with; sums on CPUs depend on it in the last bits."""
    kernel_threads: int | None = None
    """Torch's, which kernels of torch and oneDNN share out: OMP_NUM_THREADS sets them."""
    computed_by: Mapping[str, Any] | None = None
    """Further facts that the results depend on: `code`, digests of the user's modules by name, and
    environment variables."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any], *, source: Path) -> "ConfigFile":
        """The file with this content.

        Raises:
          ValueError: it has other entries.
        """
        try:
            if unknown := {*content} - _ENTRIES:
                raise KeyError(f"unknown {', '.join(sorted(unknown))}")
            return cls(
                family=str(content["family"]),
                options=dict(content["options"]),
                data=content.get("data"),
                cpu_threads=content.get("cpu_threads"),
                kernel_threads=content.get("kernel_threads"),
                computed_by=content.get("computed_by"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _not_a_config(source, error) from error

    def run_config(
        self, kind: type[RunConfig], *, without: tuple[str, ...] = NOT_INHERITED
    ) -> RunConfig:
        """The configuration that the file describes.

        Args:
          kind: configuration class of the file's family.
          without: options that get their defaults.

        Raises:
          ValueError: an option is unknown, or its value is of another type or out of range.
        """
        import dacite

        options = {n: v for n, v in self.options.items() if n not in without}
        rules = dacite.Config(cast=[Path, tuple], strict=True)
        try:
            return dacite.from_dict(kind, options, rules)
        except InputError:
            raise
        except (dacite.DaciteError, TypeError, ValueError, AttributeError) as error:
            # The last three come from casts to paths and tuples.
            raise InputError(
                f"this configuration is not one of {self.family} ({one_line(error)}); correct the "
                "file, or leave the entry out to get its default"
            ) from error


def to_json(family: str, config: RunConfig, **facts: Any) -> JsonObject:
    """The content of `config.json`; `facts` are further fields of `ConfigFile`."""
    options = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return {"family": family, "model": options.get("model"), "options": options, **facts}


def describe_data(files: Mapping[str, str]) -> JsonObject:
    """Number and digest of what `TaskRun.files` lists."""
    return {"files": len(files), "digest": short_digest(json.dumps(sorted(files.items())).encode())}


def read_config(path: Path, *, sealed: bool = False) -> ConfigFile:
    """Reads a configuration; `path` may be the run folder.

    Args:
      path: a file that `seal(to_json(…))` made, or one written by hand.
      sealed: refuse a file without digest.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedFileError: it does not agree with its digest.
      ValueError: it is not JSON, lacks an entry, or its digest with `sealed`.
    """
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise MissingFileError(f"no configuration at {path}; give a run folder or its config.json")
    raw = read_bounded(path)
    try:
        content = json.loads(raw)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path) if sealed else _not_a_config(path, error) from error
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
    return ConfigFile.from_json(content, source=path)


def _damaged(path: Path) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged, or was edited: it does not agree with its digest; restore it from a "
        "copy, or delete its entry digest and give it to --config"
    )


def _not_a_config(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} is not the config.json of a run ({type(error).__name__}: {error}); give one that "
        "jaxsr.train wrote"
    )


def summarize(config: RunConfig, presets: Mapping[str, RunConfig]) -> str:
    """The preset that a run is nearest to, and its options that differ, in lines of 100 characters.

    Args:
      config: of the run; its `config.json` has every option.
      presets: of its task, by name.
    """
    options, changes = flat_options(config), {}
    for name, preset in presets.items():
        plain = flat_options(preset)
        changes[name] = {n: v for n, v in options.items() if plain.get(n) != v and n not in PER_RUN}
    nearest = min(changes, key=lambda name: len(changes[name]))
    words = [f"preset {nearest}", *(f"{n}={v}" for n, v in changes[nearest].items())]
    text = f"options: {'  '.join(words)}; config.json has all"
    return textwrap.fill(
        text, 100, break_long_words=False, break_on_hyphens=False, subsequent_indent="  "
    )


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
