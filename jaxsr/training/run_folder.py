"""The folder of a training run: which one it is, and whether this run may use it.

A resumed run has its own configuration. The command line may change how long it runs, where, and
what it reports. Other changes are refused; a branch may make them. `config_file` describes
`config.json`.
"""

import itertools
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsr.errors import (
    FileAccessError,
    InputError,
    MissingFileError,
    check_utf8_path,
    first_of,
    printable,
)
from jaxsr.interop.atomic_write import atomic_write, clear_partials, set_aside
from jaxsr.interop.sealed_json import seal
from jaxsr.training.config import RunConfig
from jaxsr.training.config_file import (
    OF_COMMAND,
    PER_RUN,
    ConfigFile,
    check_json_options,
    describe_data,
    flat_options,
    read_config,
    to_json,
)
from jaxsr.training.run_lock import LOCK

RUNS = Path("runs")
"""Folder of runs without `--out`, each in FAMILY-DATE-TIME, or with a number."""

CHANGEABLE = frozenset(
    {
        *PER_RUN, *OF_COMMAND, "steps", "epochs", "log_every", "validate_every", "save_every",
        "tensorboard", "logger", "profile", "mesh", "platform", "lane_folding", "remat", "cache",
        "cache_gb", "resident_gb", "workers", "data", "val",
    }
)  # fmt: skip
"""Options that a resumed run may change; the changes are recorded. The files of `data` and `val`
are compared instead of their paths, so that a data set may move."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Content of `config.json`, written after all checks."""

    out: Path
    content: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    """Lines for the person at the terminal about what a resumed run changes."""

    def write(self) -> None:
        """Writes `config.json`; a damaged one is renamed first."""
        path, text = self.out / "config.json", seal(self.content, indent=2) + "\n"
        if path.exists() and _is_damaged(path):
            log.warning("%s is damaged; renamed to %s", path, set_aside(path))
        elif path.exists() and path.read_bytes() == text.encode():
            return
        atomic_write(path, text.encode())


def _is_damaged(path: Path) -> bool:
    try:
        read_config(path, sealed=True)
    except InputError:
        return True
    return False


def choose_folder(config: RunConfig, family: str, processes: int) -> Path:
    """Returns the folder that a run's options name, or a new one.

    Raises:
      InputError: several processes would each choose their own, or its path is not UTF-8.
      CheckpointError: Orbax would misread the path.
    """
    from jaxsr.interop.checkpoint_record import checkpoint_folder  # imports JAX

    check_utf8_path(config.out or RUNS)
    checkpoint_folder(config.out or RUNS)
    if config.out is not None:
        return config.out
    if processes > 1:
        raise InputError(
            f"a run of {processes} processes needs --out, a folder that all of them see"
        )
    return RUNS / f"{_folder_name(family)}-{time.strftime('%Y%m%d-%H%M%S')}"


def make_folder(out: Path) -> Path:
    """Makes the folder of a run without `--out`, or the next of its name, and returns it.

    Another run may have begun in the same second: `NAME-2` is the second of a name.
    """
    for number in itertools.count(1):
        path = out if number == 1 else out.with_name(f"{out.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            break
        return path
    return out  # `check_folder` says why it cannot be made


def _folder_name(family: str) -> str:
    """Name of a family, or of the class of a user's task."""
    return family.rpartition(":")[2]


def check_out_apart(out: Path, **searched: Path | None) -> None:
    """Refuses a run folder among the photos: those of its validations would be trained on.

    Args:
      out: the run's folder, or that of all runs.
      **searched: folders whose photos are used, at any depth, by option.

    Raises:
      InputError: the run's folder lies in one of them.
    """
    for name, folder in searched.items():
        if folder is None or not out.resolve().is_relative_to(folder.resolve()):
            continue
        parts = out.resolve().relative_to(folder.resolve()).parts
        if not any(part.startswith(".") for part in parts):  # hidden folders are not searched
            raise InputError(
                f"out={out} lies in {name}={folder}, whose photos are searched at any depth: the "
                "pictures of validations would become data; choose another --out"
            )


def newest_run(family: str | None) -> Path:
    """Returns the newest run in `RUNS`, of one family or of any, among those that jaxsr named.

    Raises:
      InputError: there is no run.
    """
    named = re.escape(_folder_name(family)) if family else ".+"
    pattern = re.compile(rf"{named}-(\d{{8}}-\d{{6}})(?:-(\d+))?")
    runs = {
        path: (match[1], int(match[2] or 1))
        for path in (RUNS.iterdir() if RUNS.is_dir() else ())
        if (match := pattern.fullmatch(path.name))
        and any((path / part).exists() for part in ("config.json", "checkpoints"))
    }
    newest = max(runs, default=None, key=runs.__getitem__)
    if newest is None:
        of_family = f" of {family}" if family else ""
        raise InputError(f"--resume found no run{of_family} in {RUNS}/; name one with --out")
    return newest


def read_run(out: Path, *, sealed: bool = True) -> ConfigFile | None:
    """Reads the configuration of the run in a folder; None if there is no run.

    If `config.json` is damaged or missing, the copy in the newest checkpoint replaces it.

    Args:
      out: run folder.
      sealed: refuse a file without a digest, as jaxsr 0.2.0 wrote it.

    Raises:
      InputError: the file cannot be used, and no checkpoint has a copy.
    """
    try:
        return read_config(out / "config.json", sealed=sealed)
    except (InputError, MissingFileError) as error:
        from jaxsr.interop.checkpoint import read_notes

        notes = read_notes(out / "checkpoints")
        if notes:
            log.warning("%s; the copy in the newest checkpoint is used", _reason(error))
            return ConfigFile.from_json(notes, source=out / "checkpoints")
        if isinstance(error, MissingFileError):
            return None
        raise


def _reason(error: Exception) -> str:
    return str(error).partition(";")[0]


def check_changes(out: Path, run: ConfigFile, config: RunConfig) -> None:
    """Refuses options that differ from those of the run in the folder, except `CHANGEABLE` ones.

    Raises:
      InputError: an option differs; the message has both values.
    """
    if changed := _fixed_changes(run, config):
        raise InputError(
            f"the run in {out} has {changed}; leave such options out to go on with it, or start "
            f"another from its weights with --branch-from {out} --out NEW"
        )


def _fixed_changes(run: ConfigFile, config: RunConfig) -> str:
    """Returns options that a resume cannot change and that differ, with both values."""
    return ", ".join(
        f"{name}={before}, not {now}"
        for name, (before, now) in _differences(run, config).items()
        if name.partition(".")[0] not in CHANGEABLE
    )


def _check_checkpoints(out: Path, run: ConfigFile, config: RunConfig, exported: str) -> None:
    """Refuses checkpoints of another run, which came into the folder by a copy, and their absence.

    Raises:
      InputError: there is one, and the message has what differs; or there is none, though the run
        has exported weights, which it does after its first checkpoint.
    """
    from jaxsr.interop.checkpoint import all_notes, steps_of

    folder = out / "checkpoints"
    weights = [out / name for name in _weights_of(exported) if (out / name).exists()]
    if weights and not (steps_of(folder) or any(folder.glob("*.damaged*"))):
        raise InputError(
            f"{folder} has no checkpoint to resume, though {weights[0].name} was "
            f"written after one; put it back, start another run with --init {out} --out NEW, or "
            f"move {weights[0]} away to begin this run again"
        )
    for step, notes in all_notes(folder).items():
        path = folder / str(step)
        saved = ConfigFile.from_json(notes, source=path)
        changed = f"family={saved.family}, not {run.family}" if saved.family != run.family else ""
        changed = changed or _fixed_changes(saved, config)
        if not changed and saved.data != run.data:
            changed = "other data than config.json has"
        if changed:
            raise InputError(
                f"{path} is of another run: it has {changed}; put back the checkpoints or the "
                "config.json of this run, or move that checkpoint away"
            )


def _differences(run: ConfigFile, config: RunConfig) -> dict[str, tuple[str, str]]:
    """Returns the old and the new value of each changed option, by name."""
    before = flat_options(run.run_config(type(config), without=PER_RUN))
    now = flat_options(config)
    names = [n for n in dict.fromkeys((*before, *now)) if n not in PER_RUN]
    pairs = {name: (before.get(name, "absent"), now.get(name, "absent")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _entries(exported: str) -> tuple[Sequence[str], Sequence[str]]:
    """Names of the folders and of the files that a run writes in its folder."""
    from jaxsr.training import loggers  # imports NumPy, which --help does not need

    files = ("config.json", "metrics.jsonl", "log.txt", *_weights_of(exported))
    return ("checkpoints", "validation", "profile", *loggers.FOLDERS), (*files, *loggers.FILES)


def clear_leftovers(out: Path) -> None:
    """Removes the half-written files that killed runs left in a run's folder."""
    for folder in (out, out / "validation"):
        clear_partials(folder, is_locked=True)


def check_entries(out: Path, exported: str) -> None:
    """Checks that what a run writes in its folder is not there as something else.

    Args:
      out: the run's folder.
      exported: stem of the exported weights.

    Raises:
      FileAccessError: a file stands for a folder or a folder for a file, or a link leads nowhere
        or out of the folder: a run may be a stranger's, and its links lead where he wants.
    """
    folders, files = _entries(exported)
    for path in _links_out(out, (*folders, *files)):
        raise FileAccessError(
            f"{path} is a link out of the run's folder, where the run would write; put what it "
            "leads to in its place, or choose another --out"
        )
    for names, kind in ((folders, "a folder"), (files, "a regular file")):
        for path in (out / name for name in names):
            fits = path.is_dir() if kind == "a folder" else path.is_file()
            if not fits and os.path.lexists(path):
                is_lost = path.is_symlink() and not path.exists()
                what = "is a link to nothing" if is_lost else f"is not {kind}"
                raise FileAccessError(
                    f"{path} {what}; the run keeps {kind} there: remove or rename it, or choose "
                    "another --out"
                )


def _links_out(out: Path, names: Iterable[str]) -> Iterator[Path]:
    """Links to places outside the folder among its entries of these names, and at any depth."""
    for name in names:
        for path in (out / name, *(out / name).rglob("*")):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(out.resolve()):
                yield path


def _weights_of(exported: str) -> tuple[str, str]:
    return f"{exported}.safetensors", f"{exported}.best.safetensors"


def _check_no_results(out: Path, exported: str, *, is_new: bool) -> None:
    """Refuses weights, `--init` perhaps, and other things that no run here made.

    Args:
      out: the run's folder.
      exported: stem of the exported weights.
      is_new: no run began here; one that made no step may have left its own figures' files.

    Raises:
      InputError: there are some, which a new run would replace, rename or delete.
    """
    from jaxsr.training.loggers import FILES  # imports NumPy, which --help does not need

    begun = (out / name for name in ("metrics.jsonl", "log.txt", *FILES) if is_new)
    named = (*(out / name for name in _weights_of(exported)), *begun)
    for path in (*named, *out.glob("validation/step-*.png"), *out.glob("checkpoints/*")):
        if path.exists():
            raise InputError(
                f"{path} is of no run in {out}, and a new one would replace it or add to it; "
                "choose another --out, or move it"
            )


def claim_folder(
    out: Path,
    config: RunConfig,
    family: str,
    *,
    files: Mapping[str, str],
    cpu_threads: int,
    kernel_threads: int,
    exported: str,
    computed_by: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Checks that this run may use the locked folder; a new run writes its record.

    A run that did nothing, because an option was refused, is replaced.

    Args:
      out: run folder.
      config: the run's configuration.
      family: name of its family.
      files: the list of `TaskRun.files`.
      cpu_threads: threads that the run computes with.
      kernel_threads: threads of torch.
      exported: stem of the exported weights.
      computed_by: see `ConfigFile`.

    Returns:
      The record, which a resumed run writes once its checkpoint is restored.

    Raises:
      InputError: the folder has another run, no run to resume, or a run on other data.
      FileAccessError: the folder cannot be written.
    """
    data = describe_data(files)
    threads = {"cpu_threads": cpu_threads, "kernel_threads": kernel_threads}
    content = to_json(family, config, data=data, **threads, computed_by=computed_by)
    run = read_run(out)
    if run is None or (not config.resume and _is_unused(out)):
        if config.resume and any(_contents(out)):
            raise InputError(
                f"--resume found no run in {out}; leave --resume out, or name its folder"
            )
        _check_no_results(out, exported, is_new=run is None)
        check_json_options(config, content["options"])
        record = RunRecord(out=out, content=content, remarks=_begins(out) if config.resume else ())
        record.write()
        return record
    if run.family != family:
        raise InputError(
            f"{out} holds a run of {run.family}, not of {family}; choose another --out"
        )
    if not config.resume:
        raise InputError(
            f"{out} already holds a run; add --resume to go on with it, or choose another --out"
        )
    check_changes(out, run, config)
    _check_checkpoints(out, run, config, exported)
    from jaxsr.interop.checkpoint import steps_of  # imports JAX, which --help does not need
    from jaxsr.interop.weights import has_digest

    for path in (out / name for name in _weights_of(exported)):
        if path.is_file() and not has_digest(path):
            raise InputError(
                f"{path} is not a file that the run wrote, and the run would replace it; move it"
            )
    if run.data is not None and run.data != data:
        raise InputError(
            f"the run in {out} was trained on other data: {_counted(run.data)} then, "
            f"{_counted(data)} now (names and sizes); give the same with --data and --val, or "
            f"start another from its weights with --branch-from {out} --out NEW"
        )
    remarks = [
        f"resumed with {name}={now}, before {name}={before}"
        for name, (before, now) in _differences(run, config).items()
    ]
    for name, now in threads.items() if config.platform in ("auto", "cpu") else ():
        if (before := getattr(run, name)) not in (None, now):
            kind = name.replace("cpu", "CPU").replace("_", " ")
            remarks.append(
                f"computed with {before} {kind} so far, now with {now}: on a CPU the results "
                "differ in the last bits from those of an uninterrupted run"
            )
    if config.branch_from is None and not steps_of(out / "checkpoints"):
        remarks.append(f"the run in {out} has no checkpoint yet: it begins again at step 0")
    remarks += _other_computation(run.computed_by or {}, computed_by or {})
    return RunRecord(out=out, content=content, remarks=tuple(map(printable, remarks)))


def _is_unused(out: Path) -> bool:
    """Whether the run in a folder neither reported nor saved a step: its start was refused."""
    metrics, checkpoints = out / "metrics.jsonl", out / "checkpoints"
    return not any(checkpoints.glob("*")) and not (metrics.is_file() and metrics.stat().st_size)


def _begins(out: Path) -> tuple[str, ...]:
    """Reports that there is nothing to resume: the folder's name may be mistyped."""
    others = sorted(p.parent.name for p in out.parent.glob("*/config.json") if p.parent != out)
    listed = f"; {out.parent} has the runs {first_of(others)}" if others else ""
    return (f"--resume found no run in {out}: a new one begins at step 0{listed}",)


def _other_computation(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns lines about code, data and variables that have changed since the run began."""
    remarks = []
    codes = [each.get("code") or {} for each in (before, now)]
    # A module that only one start has imported says nothing of the other's code.
    if names := {n for n in {*codes[0]} & {*codes[1]} if codes[0][n] != codes[1][n]}:
        remarks.append(
            f"resumed with other code in {first_of(sorted(names))}: the run goes on as the code is "
            "now, so its result differs from that of an uninterrupted run"
        )
    folders = [each.get("folders") or {} for each in (before, now)]
    for name in folders[0]:
        if folders[1].get(name, folders[0][name]) != folders[0][name]:
            remarks.append(
                f"resumed with other files in --{name} (names and sizes): the result differs from "
                "that of an uninterrupted run if the task reads them"
            )
    variables = sorted({*before, *now} - {"code", "folders"})
    for name in variables if before else ():
        values = before.get(name, ""), now.get(name, "")
        if values[0] != values[1]:
            remarks.append(
                f"resumed with {name}={values[1]!r}, before {values[0]!r}: the results may differ"
            )
    return remarks


def _counted(data: Mapping[str, Any]) -> str:
    return f"{data['files']} files or parts (digest {data['digest']})"


def _contents(out: Path) -> Iterable[Path]:
    return (path for path in out.iterdir() if path.name != LOCK)
