"""The folder of a training run: which it is, and whether this run may use it.

`config.json` in it is described in `config_file`.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.training.config_file import read_config, to_json
from jaxsr.training.run_lock import LOCK

RUNS = Path("runs")
"""Where runs without `--out` are, each in FAMILY-DATE-TIME."""


def choose_folder(config: Any, family: str, processes: int) -> Path:
    """The folder that a run's options name: a new one, or the newest of the family to resume.

    Raises:
      InputError: there is none to resume, or several processes would each choose their own.
    """
    if config.out is not None:
        return config.out
    if processes > 1:
        raise InputError(
            f"a run of {processes} processes needs --out, a folder that all of them see"
        )
    if config.resume:
        newest = max(RUNS.glob(f"{family}-*"), default=None, key=lambda p: p.name)
        if newest is None:
            raise InputError(f"--resume found no run of {family} in {RUNS}/; name one with --out")
        return newest
    return RUNS / f"{family}-{time.strftime('%Y%m%d-%H%M%S')}"


def claim_folder(out: Path, config: Any, family: str) -> None:
    """Writes the configuration into the run's folder, which this run has locked.

    Raises:
      InputError: the folder holds another run, or no run to resume.
      FileAccessError: it cannot be written.
    """
    saved = out / "config.json"
    content = to_json(family, config)
    if saved.exists():
        before = read_config(saved)
        if before.family != family:
            raise InputError(
                f"{out} holds a run of {before.family}, not of {family}; choose another --out"
            )
        if not config.resume:
            raise InputError(
                f"{out} already holds a run; add --resume to go on with it, or choose another --out"
            )
        changed = _differences(before.options.get("model"), content["model"])
        if changed:
            raise InputError(
                f"{out} was trained with another model ({changed}); use the same options, "
                "or choose another --out"
            )
    elif config.resume and config.out is not None and any(_contents(out)):
        raise InputError(f"--resume found no run in {out}; leave --resume out, or name its folder")
    atomic_write(saved, (json.dumps(content, indent=2) + "\n").encode())


def _contents(out: Path) -> Iterable[Path]:
    return (path for path in out.iterdir() if path.name != LOCK)


def _differences(before: Any, now: Any) -> str:
    before, now = before or {}, now or {}
    names = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
    return ", ".join(f"{n}={before.get(n)} then, {now.get(n)} now" for n in names)
