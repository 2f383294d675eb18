# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Checkpoints of a training state: Orbax, saved asynchronously, the latest and the best.

A checkpoint appears complete or not at all: Orbax writes next to its final name and renames. A run
killed while writing leaves the previous checkpoint as the newest. Restoring places every leaf
where the new mesh wants it, so a state saved on 8 devices restores onto 4.

Each checkpoint holds a sealed record of itself: shape, dtype and digest of every array, and the
metrics. The restored state is compared with it. A checkpoint that disagrees, whichever of its files
is damaged, is renamed to `STEP.damaged`, and the newest sound one is used.
"""

import logging
import math
import operator
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.array_digests import tree_digests
from jaxsr.interop.atomic_write import set_aside
from jaxsr.interop.checkpoint_index import check_index
from jaxsr.interop.checkpoint_record import (
    RECORD_ITEM,
    CheckpointRecord,
    NoDigestsError,
    SavedArray,
    checked_metrics,
    checkpoint_folder,
    metric_rank,
    read_record,
    steps_of,
)
from jaxsr.interop.errors import CheckpointError, DamagedFileError, FileAccessError, first_line
from jaxsr.interop.lost_process import lost_process_error
from jaxsr.interop.orbax_loops import lenient_loops, without_late_tracebacks, without_save_warnings

_OUTDATED = ".outdated"
"""Folder of discarded checkpoints, until they are deleted."""
_failed = threading.Event()
_handled = threading.local()
"""The error for which a thread saves the state, which says nothing of that save."""
log = logging.getLogger(__name__)


def leaves_threads() -> bool:
    """Whether a save failed: Orbax's other threads of it may wait minutes, and Python for them."""
    return _failed.is_set()


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: where they live; created if absent.
      metric: name of the validation metric that ranks checkpoints; the best one is kept
        whatever its age. None keeps only the latest.
      best: whether the metric is better when higher (`max`) or lower (`min`).
      keep: how many of the latest to keep.
      notes: JSON values that every checkpoint's record repeats, see `read_notes`.

    Checkpoints whose record or metrics are damaged are set aside at once.

    Raises:
      CheckpointError: the folder cannot be created or written, or has a name that Orbax misreads.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        metric: str | None = None,
        best: Literal["max", "min"] = "max",
        keep: int = 2,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import preservation_policy as preservation

        self.folder, self._metric = checkpoint_folder(folder), metric
        self._notes = dict(notes or {})
        policies: list[Any] = [preservation.LatestN(keep)]
        if metric is not None:
            # Without the last argument every checkpoint saved between validations is kept for ever.
            policies.append(
                preservation.BestN(
                    get_metric_fn=lambda metrics: metric_rank(metrics.get(metric), best),
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_outdated()
            _set_aside_unreadable(self.folder)
            self._manager = ocp.CheckpointManager(
                self.folder,
                # Named so that a manager that has saved nothing yet can describe old ones.
                item_handlers={
                    "state": ocp.StandardCheckpointHandler(),
                    RECORD_ITEM: ocp.JsonCheckpointHandler(filename=RECORD_ITEM),
                },
                options=ocp.CheckpointManagerOptions(
                    best_fn=(lambda m: metric_rank(m.get(metric), best)) if metric else None,
                    preservation_policy=preservation.AnyPreservationPolicy(policies),
                    enable_async_checkpointing=True,
                    async_options=ocp.AsyncOptions(barrier_sync_fn=_wait_unless_failed),
                    # Left behind by a killed run; they are never complete.
                    cleanup_tmp_directories=True,
                    # Renamed in one go: one that is half deleted when a run is killed would look
                    # damaged.
                    todelete_subdir=_OUTDATED,
                ),
            )
        except FileAccessError:
            raise
        except OSError as error:
            raise CheckpointError(
                f"cannot write checkpoints to {folder}: {error.strerror or error}; "
                "choose another --out"
            ) from error

    def __enter__(self) -> "Checkpoints":
        self._loops = lenient_loops()  # those of Orbax's writers
        self._loops.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
            elif jax.process_count() == 1:  # others may have ended
                with suppress(CheckpointError):
                    self.wait()  # what was saved stays
        finally:
            self._loops.__exit__(None, None, None)

    @property
    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return steps_of(self.folder)

    @property
    def best_step(self) -> int | None:
        """Step of the checkpoint with the best metric."""
        return self._manager.best_step()

    def save(
        self,
        step: SupportsIndex,
        state: PyTree,
        metrics: Mapping[str, Any] | None = None,
        *,
        inherited: bool = False,
    ) -> None:
        """Copies the state off the devices and returns; writing goes on asynchronously.

        Args:
          step: its number.
          state: a tree of arrays.
          metrics: results of the step's validation.
          inherited: the state is another run's, from which this one branches.

        Raises:
          CheckpointError: this or the previous save failed, on a full disk for example; a leaf is
            not an array; the metrics are not numbers, or lack the one that ranks checkpoints; the
            folder has this step with another state or other metrics, or a later one; or a step
            before failed, see `TrainState.failed_step`.
        """
        import orbax.checkpoint as ocp

        self.wait()  # as Orbax would: its thread may still be moving an outdated one
        step, metrics = operator.index(step), checked_metrics(metrics, self._metric)
        record = CheckpointRecord.of(step, state, metrics, self._notes, inherited)
        if step in self._manager.all_steps():
            saved = read_record(self.folder / str(step))
            if saved.arrays == record.arrays and metrics in (None, saved.metrics):
                return
            other = "other metrics" if saved.arrays == record.arrays else "another state"
            raise CheckpointError(
                f"{self.folder} has a checkpoint of step {step} with {other}; save each step once, "
                "restore it first, or use another folder"
            )
        if (latest := self._manager.latest_step()) is not None and step < latest:
            raise CheckpointError(
                f"{self.folder} has a checkpoint of step {latest}, which comes after {step}; "
                "restore it first, or use another folder"
            )
        with _write_errors(self.folder), without_save_warnings():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(_without_empty(state)),
                    **{RECORD_ITEM: ocp.args.JsonSave({"sealed": record.sealed()})},
                ),
                metrics=metrics,
            )

    def wait(self) -> None:
        """Returns once everything is on disk.

        Raises:
          CheckpointError: writing failed.
        """
        with _write_errors(self.folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        self._remove_outdated()

    def _remove_outdated(self) -> None:
        if jax.process_index() == 0:
            shutil.rmtree(self.folder / _OUTDATED, ignore_errors=True)

    def close(self) -> None:
        """Waits and releases the writer's threads."""
        self.wait()
        self._manager.close()

    def restore(self, like: PyTree) -> tuple[int, PyTree] | None:
        """Reads the newest sound checkpoint.

        A damaged one is renamed to `STEP.damaged`, with a warning.

        Args:
          like: the state to restore into: arrays, or shapes and dtypes, with shardings.

        Returns:
          The step and the state, or None where there is no checkpoint.

        Raises:
          CheckpointError: there are checkpoints, but all are damaged, lack digests or do not fit
            `like`.
        """

        self.wait()

        def rename(damaged_step: int, reason: Exception) -> None:
            if jax.process_index() == 0:
                _rename_damaged(self.folder, damaged_step, reason)
            _wait_for_all(f"checkpoint {damaged_step} renamed")
            self._manager.reload()

        return _restore_newest(self.folder, like, rename)

    def metrics(self, step: int) -> dict[str, float] | None:
        """The metrics that this step was saved with, if any; damage of its record raises."""
        return read_record(self.folder / str(step)).metrics

    def is_inherited(self, step: int) -> bool:
        """Whether the state of this step is another run's; damage of its record raises."""
        return read_record(self.folder / str(step)).inherited


def restore_newest(folder: Path, like: PyTree) -> tuple[int, PyTree] | None:
    """`Checkpoints.restore` for another run's folder, which stays unchanged.

    Checkpoints of jaxsr 0.2.0, which have no digests, are read with a warning.

    Raises:
      CheckpointError: there are checkpoints, but all are damaged or do not fit `like`.
    """

    def warn(step: int, reason: Exception) -> None:
        log.warning("the checkpoint of step %s in %s is damaged: %s", step, folder, reason)

    try:
        return _restore_newest(folder, like, warn)
    except NoDigestsError:
        step = steps_of(folder)[-1]
        log.warning("%s was saved without digests: damage cannot be noticed", folder / str(step))
        return step, _read_state(folder / str(step), jax.tree.map(_abstract, like))


def _restore_newest(
    folder: Path, like: PyTree, on_damage: Callable[[int, Exception], None]
) -> tuple[int, PyTree] | None:
    tried, damaged = set[int](), list[str]()
    while (step := _newest_but(tried, folder)) is not None:
        try:
            return step, restore_step(folder, step, like)
        except DamagedFileError as error:
            tried.add(step)
            if (folder / str(step)).is_dir():
                on_damage(step, error)
                damaged.append(f"step {step}")
            # Otherwise a run that goes on removed it meanwhile, after it had saved another.
    damaged = sorted(path.name for path in folder.glob("*.damaged*")) or damaged
    if damaged:
        raise CheckpointError(
            f"no checkpoint in {folder} is sound (damaged: {', '.join(damaged)}); copy the folder "
            "from a backup, start anew with another --out, or delete the damaged ones to start "
            "this run from step 0"
        )
    return None


def _newest_but(tried: Collection[int], folder: Path) -> int | None:
    """The newest step that was not tried, in every process the one that the first one sees."""
    step = max((step for step in steps_of(folder) if step not in tried), default=-1)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
    return None if step < 0 else step


def _set_aside_unreadable(folder: Path) -> None:
    """Renames checkpoints that Orbax would fail on, or rank by wrong metrics."""
    if jax.process_index() == 0:
        for step in steps_of(folder):
            try:
                read_record(folder / str(step))
            except DamagedFileError as error:
                _rename_damaged(folder, step, error)
    _wait_for_all("records of checkpoints")


def _rename_damaged(folder: Path, step: int, reason: Exception) -> None:
    path = set_aside(folder / str(step))
    log.warning("the checkpoint of step %s is damaged: %s; renamed to %s", step, reason, path)


def read_notes(folder: Path) -> JsonObject | None:
    """The notes of the newest checkpoint in a folder whose record is sound; None without one."""
    return next(iter(all_notes(folder).values()), None)


def all_notes(folder: Path) -> dict[int, JsonObject]:
    """The notes of the checkpoints in a folder whose records are sound, by step, newest first."""
    notes: dict[int, JsonObject] = {}
    for step in reversed(steps_of(folder)):
        with suppress(DamagedFileError, CheckpointError):
            notes[step] = read_record(folder / str(step)).notes
    return notes


def restore_step(folder: Path, step: int, like: PyTree) -> PyTree:
    """The state of one checkpoint, compared with its digests; the folder stays unchanged.

    Every process of a job calls it; it succeeds in all of them or fails in all.

    Args:
      folder: of the run's checkpoints.
      step: which one.
      like: as for `Checkpoints.restore`.

    Raises:
      DamagedFileError: the checkpoint is damaged; the message names the damage.
      FileAccessError: see `read_record`.
      CheckpointError: it does not fit `like`.
    """
    path, target = folder.resolve() / str(step), jax.tree.map(_abstract, like)
    saved: dict[str, SavedArray] = {}
    state, failure = None, None
    try:
        record = read_record(path)
        record.check_fits(target, path)
        state, saved = _read_state(path, target), record.arrays
    except (DamagedFileError, FileAccessError) as error:
        failure = error
    for kind in (FileAccessError, DamagedFileError):
        if not _all_processes(not isinstance(failure, kind)):
            other = kind(f"another process of this job cannot read {path}")
            raise failure if isinstance(failure, kind) else other
    digests = tree_digests(state)
    changed = [name for name, array in saved.items() if digests[name] != array.digest]
    if changed:
        raise DamagedFileError(
            f"{len(changed)} of {len(digests)} arrays are not as they were saved, {changed[0]} "
            "among them"
        )
    return state


def _read_state(path: Path, target: PyTree) -> PyTree:
    """The state of a checkpoint, as it is on the disk.

    Raises:
      DamagedFileError: Orbax cannot read it, or it would take more memory than its arrays have.
    """
    import orbax.checkpoint as ocp

    sizes = (math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(target))
    check_index(path / "state", sum(sizes))
    with without_late_tracebacks():
        reader: Any = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        with reader:
            args = ocp.args.StandardRestore(_without_empty(target))
            state = reader.restore(path / "state", args=args)

    def completed(form: Any, leaf: Any) -> Any:
        return _empty(form) if leaf is None else leaf

    return jax.tree.map(completed, target, state)


def _without_empty(state: PyTree) -> PyTree:
    """The state with None for arrays of no element, which Orbax refuses."""

    def unless_empty(leaf: Any) -> Any:
        return leaf if math.prod(np.shape(leaf)) else None

    return jax.tree.map(unless_empty, state)


def _empty(form: Any) -> Any:
    if isinstance(form, jax.ShapeDtypeStruct):
        return jnp.zeros(form.shape, form.dtype, device=form.sharding)
    return form


def _wait_for_all(name: str) -> None:
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def _wait_unless_failed(*, key: str, timeout_ms: int) -> None:
    """Orbax's barrier, but for a process whose write failed.

    Orbax calls it in a `finally`, so that the error of that process would wait for the others, and
    they for its part of the checkpoint.
    """
    from orbax.checkpoint import multihost

    error = sys.exception()
    if error is not None and error is not getattr(_handled, "error", None):
        raise error
    multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def _all_processes(succeeded: bool) -> bool:
    """Whether every process of the job succeeded."""
    if jax.process_count() == 1:
        return succeeded
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(succeeded))))


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return leaf


@contextmanager
def _write_errors(folder: Path) -> Generator[None]:
    """Turns the error of a failed write into one line about the folder."""
    _handled.error = sys.exception()
    try:
        yield
    except Exception as error:
        _failed.set()
        lost = lost_process_error(error)
        if lost is not None:
            raise lost from error
        if not _is_about_files(error, folder):
            raise
        # From which checkpoint a resumed run would start.
        steps = steps_of(folder)
        newest = f"the one of step {steps[-1]} is complete" if steps else "none is complete yet"
        full = ("No space left", "RESOURCE_EXHAUSTED", "Disk quota")
        if any(words in str(error) for words in full):
            raise CheckpointError(
                f"no space left to write a checkpoint to {folder}; {newest}: "
                "make room and run again with --resume"
            ) from error
        raise CheckpointError(
            f"writing a checkpoint to {folder} failed ({first_line(error)}); {newest}"
        ) from error
    finally:
        _handled.error = None


def _is_about_files(error: BaseException, folder: Path) -> bool:
    """Whether the operating system refused something, or TensorStore names one of the files."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) or str(folder) in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
