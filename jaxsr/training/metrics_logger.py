"""A run's records: `metrics.jsonl`, `log.txt` and loggers, and lines and a bar for a person."""

import importlib.util
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from jaxsr.errors import DamagedFileError, InputError, one_line
from jaxsr.interop.atomic_write import atomic_write, separate, set_aside
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.runtime.activity import fitted, is_quiet, redraw_bar, set_status
from jaxsr.training.loggers import Logger

_MOST_BYTES = 2**31
"""Bytes of `metrics.jsonl`, of some ten million steps; a sparse file could have any number."""
log = logging.getLogger(__name__)
_NOT_FINITE = {str(value): value for value in (math.nan, math.inf, -math.inf)}
"""By their names in `metrics.jsonl`: JSON lacks them, but a failed step must also be readable."""


class Records:
    """Writes figures as they arrive; a killed run loses at most the line being written.

    Lines for a person go to standard output and `log.txt`, a progress bar to standard error.

    Each line of `metrics.jsonl` has a digest of itself. A resumed run leaves lines out that are
    damaged, or of an earlier step than one before, and renames the original file to
    `metrics.jsonl.damaged`.

    Args:
      folder: run folder.
      start_step: step at which the run starts or resumes. Records of later steps, left by a run
        that was killed after its last checkpoint, are dropped because those steps will run again.
      total_steps: length of the run.
      batch: samples per step, for the rate.
      sample_name: name of the samples in the rate, in the plural.
      loggers: others that receive the figures.
      options: the run's options, for the loggers.
      branched: the run began at another run's checkpoint, whose steps have no lines here.
    """

    def __init__(
        self,
        folder: Path,
        *,
        start_step: int,
        total_steps: int,
        batch: int,
        loggers: Sequence[Logger] = (),
        options: Mapping[str, Any] | None = None,
        sample_name: str = "images",
        branched: bool = False,
    ) -> None:
        self._path = folder / "metrics.jsonl"
        self._drop_after(start_step, branched=branched)
        separate(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        self._loggers = list(loggers)
        for logger in loggers:
            try:
                logger.start(folder, options or {}, start_step)
            except (Exception, SystemExit) as error:  # exit() is a fault of the logger
                raise InputError(
                    f"the logger {type(logger).__name__} cannot start ({type(error).__name__}: "
                    f"{one_line(error)}); correct that, or leave it out"
                ) from error
        self._total, self._batch, self._samples = total_steps, batch, sample_name
        self._began = (time.perf_counter(), start_step)
        separate(folder / "log.txt")
        self._log = (folder / "log.txt").open("a", encoding="utf-8")
        notebook = "ipykernel" in sys.modules
        self._bar = None
        if (sys.stderr.isatty() or notebook) and not is_quiet():
            self._bar = _make_bar(total_steps, start_step)
            redraw_bar(self._bar.refresh)
        # A bar that stays in place shows the figures of the step lines.
        self._prints_steps = self._bar is None or not (sys.stdout.isatty() or notebook)

    def _drop_after(self, step: int, *, branched: bool) -> None:
        if not self._path.exists():
            if step > 0 and not branched:
                log.warning("%s is gone: it has no line of the steps up to %s", self._path, step)
            return
        content = read_bounded(
            self._path,
            most_bytes=_MOST_BYTES,
            way_out="move it away; the run goes on without the lines of its earlier steps",
        )
        lines = content.splitlines(keepends=True)
        steps = _steps_of(lines)
        unfinished = bool(lines) and not lines[-1].endswith(b"\n")
        damaged = [n for n, s in enumerate(steps, 1) if s is None]
        if damaged and damaged != [len(lines)] * unfinished:
            numbers = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
            log.warning(
                "%s: %s damaged lines (%s) are left out; the file as it was is renamed to %s",
                self._path, len(damaged), numbers, set_aside(self._path),
            )  # fmt: skip
        earlier = [
            line for line, s in zip(lines, steps, strict=True) if s is not None and s <= step
        ]
        # The line of a validation has no phase: it does not replace the line of its step.
        recorded = {
            s for line, s in zip(lines, steps, strict=True) if s is not None and b'"phase"' in line
        }
        first = min(recorded, default=step + 1) if branched else 1
        missing = [s for s in range(first, step + 1) if s not in recorded]
        if missing:
            log.warning("%s has no lines of steps %s", self._path, _ranges(missing))
        if earlier != lines:
            atomic_write(self._path, b"".join(earlier))

    def compiled(self, done: int) -> None:
        """Excludes the time until now, in which a step was compiled, from the rate."""
        set_status(None)
        self._began = (time.perf_counter(), done - 1)
        if self._bar is not None:
            self._bar.unpause()

    def steps(
        self,
        done: int,
        phase: str,
        records: Mapping[int, Mapping[str, float]],
        *,
        line: bool = True,
    ) -> None:
        """Records the metrics of several steps.

        Args:
          done: the last of these steps.
          phase: its phase.
          records: metrics by step.
          line: print the metrics of the last step on a line.
        """
        elapsed = time.perf_counter() - self._began[0]
        rate = (done - self._began[1]) * self._batch / max(elapsed, 1e-9)
        rate_name = f"{self._samples}_per_s"
        for step, metrics in records.items():
            self._write(step, {"phase": phase, rate_name: round(rate, 2), **metrics})
        figures = list(records.values())[-1]
        self._began = (time.perf_counter(), done)
        first, *others = [f"{name} {value:.4g}" for name, value in _loss_first(figures).items()]
        speed = f"{rate:.1f} {self._samples}/s"
        if self._bar is not None:
            self._bar.set_postfix_str(f"{first}  {speed}", refresh=False)
            self._bar.update(done - self._bar.n)
        if line:
            left = (self._total - done) * self._batch / max(rate, 1e-9)
            words = [f"step {done}/{self._total}", first, *others[:1], speed, f"ETA {_clock(left)}"]
            self._line("  ".join([*words, phase, *others[1:]]), printed=self._prints_steps)

    def validation(
        self, step: int, metrics: Mapping[str, float], picture: np.ndarray | None
    ) -> None:
        """Records the figures of a validation; its time does not count in the rate."""
        self._write(step, {f"validation/{name}": value for name, value in metrics.items()})
        if picture is not None:
            self._event("image", step, "validation", picture)
        text = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.say(f"validation at step {step}:  {text}")
        self._began = (time.perf_counter(), step)

    def _write(self, step: int, figures: Mapping[str, Any]) -> None:
        plain = {name: _plain_figure(value) for name, value in figures.items()}
        self._file.write(seal({"step": step, "time": round(time.time(), 3), **plain}) + "\n")
        self._file.flush()
        self._event(
            "figures", step, {n: v for n, v in figures.items() if isinstance(v, int | float)}
        )

    def _event(self, method: str, *arguments: Any) -> None:
        """Calls every logger; one that fails is closed, and the run goes on."""
        for logger in tuple(self._loggers):
            try:
                getattr(logger, method)(*arguments)
            except (Exception, SystemExit) as error:  # exit() is a fault of the logger
                self._loggers.remove(logger)
                cause = getattr(error, "strerror", None) or one_line(error)
                self.warn(f"the records of {type(logger).__name__} end here: {cause}")

    def say(self, line: str) -> None:
        """Writes a line for a person to standard output and `log.txt`."""
        self._line(line)

    def warn(self, line: str) -> None:
        """Writes a line to standard error, with `--quiet` as well, and to `log.txt`."""
        self._line(line, sys.stderr)

    def _line(self, line: str, stream: TextIO | None = None, *, printed: bool = True) -> None:
        self._log.write(line + "\n")
        self._log.flush()
        if not printed or (stream is None and is_quiet()):
            return
        target: TextIO = sys.stdout if stream is None else stream
        line = fitted(line, target)
        if self._bar is not None:
            self._bar.write(line, file=target)
        else:
            print(line, file=target, flush=True)

    def close(self) -> None:
        self._event("close")
        self._file.close()
        self._log.close()
        redraw_bar(None)
        if self._bar is not None:
            self._bar.close()


def _plain_figure(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_figure(value: Any) -> Any:
    """A value of a line of `metrics.jsonl`, as it was recorded."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _make_bar(total: int, start: int) -> Any:
    """Makes a bar that keeps its place next to the loss and the rate, even at 80 columns."""
    if "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm

        bar = "{bar}"  # of any width: tqdm replaces it by the widget
    else:
        from tqdm import tqdm

        bar = "{bar:20}"
    shape = "{n_fmt}/{total_fmt} " + bar + " {elapsed}<{remaining}{postfix}"
    return tqdm(total=total, initial=start, bar_format=shape, dynamic_ncols=True)


def _loss_first(figures: Mapping[str, float]) -> dict[str, float]:
    """Orders the figures of a line: losses, learning rates, the rest.

    If all are of one network, its name is left out.
    """
    order = {"loss": 0, "lr": 1}
    names = sorted(figures, key=lambda name: order.get(name.rpartition("/")[2], 2))
    networks = {name.partition("/")[0] for name in names if "/" in name}
    short = len(networks) == 1 and all("/" in name for name in names)
    return {name.partition("/")[2] if short else name: figures[name] for name in names}


class NoRecords:
    """Replaces `Records` on every host but the first: its methods do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


_LONGEST_LINE = 2**20


def _step_of(line: bytes) -> int | None:
    """Returns the step of a line, or None if it is damaged or was cut short by a kill."""
    if len(line) > _LONGEST_LINE:
        return None
    try:
        step = unseal(line, source="a line").get("step")
    except DamagedFileError:
        return None
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _steps_of(lines: Iterable[bytes]) -> list[int | None]:
    """The step of each line; None where it is damaged, or not behind those of earlier steps.

    A step's line comes before that of its validation, which has no phase.
    """
    steps: list[int | None] = []
    last = (0, True)
    for line in lines:
        step = _step_of(line)
        place = (step or 0, b'"phase"' not in line)
        steps.append(step if place > last else None)
        last = max(last, place)
    return steps


def _ranges(steps: list[int], most: int = 5) -> str:
    """Writes ascending steps as `3, 7 to 12`; the first few ranges."""
    starts = [s for n, s in enumerate(steps) if n == 0 or steps[n - 1] != s - 1]
    ends = [s for n, s in enumerate(steps, 1) if n == len(steps) or steps[n] != s + 1]
    words = [str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(words[:most]) + (", …" if len(words) > most else "")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
