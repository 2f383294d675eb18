"""The training loop, one for all families and both engines.

It feeds batches in the order of their step numbers, copies scalars to the host every few steps,
validates and saves. It stops cleanly at the end, on a signal, or on a number that is not finite.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import jax

from jaxsr.data.prefetch import generators_may_move
from jaxsr.errors import DamagedFileError, FileAccessError, InputError, UserError, counted, one_line
from jaxsr.interop.agreement import ending_with_others
from jaxsr.interop.atomic_write import atomic_write, set_aside
from jaxsr.interop.checkpoint import Checkpoints, restore_newest, steps_of
from jaxsr.interop.checkpoint_record import checked_metrics, metric_rank, read_record
from jaxsr.interop.errors import CheckpointError, IndexOutsideError, RefusedValueError
from jaxsr.interop.train.objective import decides_failure, index_rule
from jaxsr.interop.train.torch_step import NonFiniteError
from jaxsr.interop.weights import export_weights, read_metadata
from jaxsr.runtime.activity import set_status
from jaxsr.training.config import RunConfig
from jaxsr.training.config_file import summarize
from jaxsr.training.engines import TrainingEngine, make_engine
from jaxsr.training.find_task import presets_of
from jaxsr.training.loggers import TensorBoard, make_logger
from jaxsr.training.metrics_logger import NoRecords, Records
from jaxsr.training.phases import phase_at
from jaxsr.training.run_folder import RunRecord
from jaxsr.training.run_lock import check_held
from jaxsr.training.stop_signals import StopRequest
from jaxsr.training.task_run import TaskRun

log = logging.getLogger(__name__)

_VALIDATION_S = 20.0
"""Seconds that a validation has after a signal: job managers kill a process after 30."""


class TrainingError(UserError, RuntimeError):
    """The run cannot go on; the message says which state is saved and how to continue."""


def train(
    task: TaskRun, out: Path, record: RunRecord | None = None, *, stopping: StopRequest
) -> bool:
    """Trains a task from its start or, with `resume`, from the newest checkpoint in `out`.

    Args:
      task: the task to train; its configuration has the options.
      out: run folder, which exists.
      record: the run's configuration, repeated in every checkpoint; for the first host.
      stopping: asks for the end; listens when the loop begins.

    Returns:
      Whether the run reached its last step; if not, a signal stopped it.

    Raises:
      TrainingError: a loss or gradient is not finite.
      jaxsr.interop.errors.CheckpointError: a checkpoint cannot be written or read.
    """
    config = task.config
    total = sum(steps for _, steps in task.phases)
    first_host = jax.process_index() == 0
    engine = make_engine(task)
    with ending_with_others(), ExitStack() as stack:
        checkpoints = stack.enter_context(
            Checkpoints(
                out / "checkpoints",
                metric=task.metric,
                best=task.best,
                notes=record.content if record else None,
            )
        )
        origin = _restore(engine, checkpoints, config, total)
        start = engine.step
        records = NoRecords()
        if first_host:
            check_held(out)
        if origin.startswith("branched"):
            # The other run may be deleted from now on.
            checkpoints.save(start, engine.state(), inherited=True)
        if first_host:
            if record is not None:
                record.write()
            loggers = [*map(make_logger, config.logger), *[TensorBoard()] * config.tensorboard]
            records = Records(
                out,
                start_step=start,
                total_steps=total,
                batch=config.batch,
                loggers=loggers,
                options=record.content["options"] if record else {},
                sample_name=task.sample_name,
                branched=config.branch_from is not None,
            )
        stack.callback(records.close)
        for line in task.summary():
            records.say(line)
        records.say(summarize(config, presets_of(type(task.task))))
        for line in record.remarks if record else ():
            records.warn(line)
        if origin:
            records.say(f"{origin} at step {start} of {total}")
        stopping.listen()
        batches = stack.enter_context(
            task.batches(start, host=jax.process_index(), hosts=jax.process_count())
        )
        run = _Run(task, engine, checkpoints, records, out)
        if origin == "resumed" and run.validates(start, total):
            run.finish(start, stopping)
        devices = config.mesh_shape.devices
        set_status(f"tracing and compiling the step for {counted(devices, 'device')}")
        run.steps(batches, total, stopping)
        with stopping.limited("all is saved, and the data are still read ahead"):
            batches.close()
        records.say(f"run folder: {out}")
    return engine.step >= total


def _restore(
    engine: TrainingEngine, checkpoints: Checkpoints, config: RunConfig, total: int
) -> str:
    """Loads the newest checkpoint of the run, or of the run it branches from, if there is one.

    Returns:
      What it did, in words; empty if the run begins with its own weights.
    """
    origin, checkpoint = "resumed", None
    if config.resume:
        checkpoint = checkpoints.restore(engine.state())
        is_branch = checkpoint is not None and checkpoints.is_inherited(checkpoint[0])
        if is_branch:
            origin = "resumed the branch"  # none of its own steps is saved
        if checkpoint is not None and checkpoint[0] + is_branch > total:
            raise TrainingError(
                f"the run is at step {checkpoint[0]} already; give more than steps={total} with "
                "--steps, or start another with --branch-from"
            )
    if checkpoint is None and config.branch_from is not None:
        origin = f"branched from {config.branch_from}"
        folder = config.branch_from / "checkpoints"
        checkpoint = restore_newest(folder, engine.like_checkpoint(_saved_names(folder)))
        if checkpoint is None:
            raise TrainingError(f"{config.branch_from} has no checkpoint to branch from yet")
        checkpoint = checkpoint[0], engine.adopted(checkpoint[1])
        if checkpoint[0] >= total:
            raise TrainingError(
                f"{config.branch_from} is at step {checkpoint[0]} already; give the branch more "
                f"than steps={total} with --steps, which counts from the first run's start"
            )
    if checkpoint is None:
        return ""
    engine.load(checkpoint[1])
    return origin


def _saved_names(folder: Path) -> set[str]:
    """The names of the arrays in the newest checkpoint of a folder whose record is sound."""
    for step in reversed(steps_of(folder)):
        with suppress(DamagedFileError, CheckpointError):
            return {*read_record(folder / str(step)).arrays}
    return set()


class _Run:
    """One pass of the loop: metrics stay on the devices until the step that reports them."""

    def __init__(
        self,
        task: TaskRun,
        engine: TrainingEngine,
        checkpoints: Checkpoints,
        records: Records | NoRecords,
        out: Path,
    ) -> None:
        self.task, self.engine, self.checkpoints = task, engine, checkpoints
        self.records, self.out = records, out
        self.waiting: dict[int, Mapping[str, Any]] = {}
        self.figures: dict[str, float] = {}
        self.phase: str | None = None
        """Phase of the last step; the first step of each phase is compiled."""

    def validates(self, step: int, total: int) -> bool:
        """Whether a validation follows a step."""
        every = self.task.config.validate_every or max(total // 10, 1)
        return step == total or (step > 0 and step % every == 0)

    def steps(self, batches: Iterator[Any], total: int, stopping: StopRequest) -> None:
        config, engine = self.task.config, self.engine
        profiler = _Profiler(config.profile_window, self.out / "profile")
        with profiler:
            while engine.step < total:
                phase = phase_at(self.task.phases, engine.step)
                profiler.before(engine)
                with ExitStack() as stack:
                    try:
                        with stopping.limited(f"the data of step {engine.step + 1} do not come"):
                            batch = next(batches)
                            stack.enter_context(generators_may_move())
                    except Exception:  # whatever code of the user's raises
                        self._keep_steps(engine.step, phase)
                        raise
                    try:
                        metrics = engine.train_step(phase, batch)
                    except (NonFiniteError, RefusedValueError) as error:
                        if self.waiting:
                            self._report(engine.step, phase)
                        self._fail(engine.step + 1, error)
                done = engine.step
                self.waiting[done] = metrics
                if phase != self.phase:
                    self.phase = phase
                    self.records.compiled(done)
                last = done == total
                validating = self.validates(done, total)
                saving = config.save_every is not None and done % config.save_every == 0
                stop = stopping.is_due(done)
                line = done % config.log_every == 0 or last or stop
                if line or validating or saving:
                    self._report(done, phase, line=line)
                if validating:
                    self.validate(done, phase, stopping)
                if validating or saving or stop:
                    metrics = self.figures if validating and self.figures else None
                    self._save(done, engine.state(), metrics)
                if validating or (stop and not last):
                    self.export(done, phase, self.figures if validating else {})
                if stop and not last:
                    self.checkpoints.wait()
                    self.records.say(
                        f"stopped by {stopping.signal_name} after step {done}; "
                        f"go on with --resume --out {self.out}"
                    )
                    break
        self.checkpoints.wait()

    def _check_folder(self) -> None:
        """Raises if the folder is another one now: it may be another run's."""
        if jax.process_index() == 0:
            check_held(self.out)

    def _save(self, step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        self._check_folder()
        is_first = not self.checkpoints.steps
        self.checkpoints.save(step, state, metrics)
        if is_first:  # whoever finds weights, but no checkpoint, knows that they were removed
            self.checkpoints.wait()

    def _keep_steps(self, done: int, phase: str) -> None:
        """Saves before an error ends the run, if this process can do so alone."""
        if self.waiting:
            self._report(done, phase)
        if done and done not in self.checkpoints.steps and jax.process_count() == 1:
            self._save(done, self.engine.state())
            self.checkpoints.wait()
            self.records.warn(f"the state of step {done} is saved")

    def _report(self, done: int, phase: str, *, line: bool = True) -> None:
        """Copies the pending metrics to the host and stops at the first one that is not finite."""
        self._check_folder()
        steps = list(self.waiting)
        fetched = dict(zip(steps, self.engine.fetch(list(self.waiting.values())), strict=True))
        self.waiting.clear()
        bad = _first_failure(fetched)
        # The index describes the data, not the training: it is not a metric.
        shown = {
            step: {name: value for name, value in metrics.items() if index_rule(name) is None}
            for step, metrics in fetched.items()
        }
        if bad is None:
            self.records.steps(done, phase, shown, line=line)
            return
        step, name, value = bad
        self.records.steps(step, phase, {s: m for s, m in shown.items() if s <= step})
        if (rule := index_rule(name)) is not None:
            self._fail(step, RefusedValueError.of(rule, int(value)))
        self._fail(step, NonFiniteError(f"{name} is {value} at step {step}"))

    def _fail(self, step: int, error: NonFiniteError | RefusedValueError) -> NoReturn:
        """Saves the state before the failing step, which both engines keep as it was; raises."""
        saved, again = "nothing to save before step 1", "start again"
        if step > 1:
            self._save(step - 1, self.engine.sound_state())
            self.checkpoints.wait()
            saved = f"the state of step {step - 1} is saved"
            again = f"go on with --branch-from {self.out} --out NEW"
        mend, cause = "Lower --lr, set --clip-norm, or train in float32", str(error)
        if step == 1:  # the first weights: the learning rate had no part in it
            mend = "Look for NaN or a division by zero in the data, the loss and the network"
        if isinstance(error, RefusedValueError):
            cause = f"{error} at step {step}"
            mend = "Mend the data, or the network that reads them"
            if isinstance(error, IndexOutsideError):
                mend = "Mend the labels, or the number of classes"
        raise TrainingError(f"{cause}; {saved}. {mend}, and {again}")

    def validate(self, done: int, phase: str, stopping: StopRequest) -> None:
        """Validates after a step, and writes the figures and a picture."""
        # Every host checks for itself: all have the figures, because Orbax ranks checkpoints by
        # them, so no host has to wait for another.
        what = f"the validation of step {done} goes on"
        try:
            with (
                stopping.limited(what, seconds=_VALIDATION_S, is_of_data=False),
                generators_may_move(),
            ):
                validation = self.task.validate(self.engine.network(phase))
                figures = checked_metrics(validation.metrics or None, self.task.metric)
        except RefusedValueError as error:
            self._keep_steps(done, phase)
            raise type(error)(f"{error} in the validation of step {done}") from error
        except Exception:  # whatever code of the user's raises
            self._keep_steps(done, phase)
            raise
        self.figures = figures or {}
        self._check_folder()
        if jax.process_index() == 0:
            if self.figures:
                self.records.validation(done, self.figures, validation.picture)
            if validation.picture is not None:
                _write_picture(self.out / "validation" / f"step-{done:07d}.png", validation.picture)

    def finish(self, done: int, stopping: StopRequest) -> None:
        """Does after a resume what an error or a kill kept from a step that is saved."""
        figures, phase = self.checkpoints.metrics(done), phase_at(self.task.phases, done - 1)
        if figures is not None:
            self.figures = figures
        elif self.task.is_validated:
            self.validate(done, phase, stopping)
        self.export(done, phase, self.figures, again=True)

    def export(
        self, done: int, phase: str, figures: Mapping[str, float], *, again: bool = False
    ) -> None:
        """Writes the weights of this step, and keeps a copy of the best validation's.

        With `again`, a file that has the weights of this step stays as it is.
        """
        weights = self.engine.weights()  # a collective operation where parameters are split over
        # hosts
        if jax.process_index():
            return
        notes = {**self.task.describe(), "step": done, "phase": phase}
        notes["validation"] = dict(figures)
        newest = self.out / f"{self.task.exported}.safetensors"
        if not (again and _is_of_step(newest, done)):
            export_weights(newest, weights, metadata=notes)
        if not figures:
            return
        best = newest.with_suffix(".best.safetensors")
        if math.isnan(self.figures.get(self.task.metric or "", 0.0)):
            self.records.warn(
                f"{self.task.metric!r} is NaN in the validation of step {done}; that ranks below "
                "every number"
            )
        if self.task.metric is not None and (not best.exists() or self._better_than(best, phase)):
            export_weights(best, weights, metadata=notes)

    def _better_than(self, path: Path, phase: str) -> bool:
        """Whether the last validation beats the one recorded in an exported file.

        A damaged file is renamed, and counts as beaten, as does one of an earlier phase in which
        other results of the network were judged.
        """
        metric = self.task.metric
        assert metric is not None
        try:
            notes, inputs = read_metadata(path), self.task.task.inputs
            figures, earlier = notes["validation"], str(notes.get("phase", phase))
            if metric not in figures:  # the task ranked by another
                return True
            best = float(figures[metric])
        except (InputError, KeyError, TypeError) as error:
            self.records.warn(
                f"{path} is damaged ({one_line(error)}); renamed to {set_aside(path)}, and the "
                "weights of this validation take its place"
            )
            return True
        # By text: a task of the torch engine may have tensors, which have no one truth value.
        if earlier != phase and repr(inputs(earlier)) != repr(inputs(phase)):
            return True
        this_rank, best_rank = (
            metric_rank(value, self.task.best) for value in (self.figures[metric], best)
        )
        return this_rank > best_rank


def _is_of_step(path: Path, step: int) -> bool:
    """Whether the file has the weights of this step, whole."""
    try:
        return path.exists() and read_metadata(path).get("step") == step
    except InputError:
        return False


def _first_failure(
    fetched: Mapping[int, Mapping[str, float]],
) -> tuple[int, str, float] | None:
    """Finds the first step whose index is out of range or whose metric is not finite."""
    for step, metrics in fetched.items():
        # The index comes first: it may be the cause of a loss that is not finite.
        for name, value in sorted(metrics.items(), key=lambda item: index_rule(item[0]) is None):
            sound = math.isfinite(value) if index_rule(name) is None else value == 0
            if decides_failure(name) and not sound:
                return step, name, value
    return None


def _write_picture(path: Path, picture: Any) -> None:
    import cv2

    path.parent.mkdir(exist_ok=True)
    done, encoded = cv2.imencode(".png", picture[..., ::-1])
    if not done:
        raise FileAccessError(f"cannot encode {path}")
    atomic_write(path, encoded.tobytes())


class _Profiler:
    """Records the steps of a window with JAX's profiler, whole steps and no others."""

    def __init__(self, window: tuple[int, int] | None, folder: Path) -> None:
        self.window, self.folder, self.running = window, folder, False

    def __enter__(self) -> Self:
        return self

    def before(self, engine: TrainingEngine) -> None:
        """Starts or ends the recording if the next step is at an edge of the window."""
        if self.window is None:
            return
        start, stop = self.window
        if self.running == (start <= engine.step < stop):
            return
        # Steps run asynchronously: the last one before an edge must have ended.
        jax.block_until_ready(engine.state())
        if self.running:
            self._stop()
        else:
            jax.profiler.start_trace(str(self.folder))
            self.running = True

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.running:
            jax.profiler.stop_trace()
            self.running = False
