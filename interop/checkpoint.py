"""Checkpoints of a training state: Orbax, saved asynchronously, the latest and the best.

A checkpoint appears whole or not at all: Orbax writes beside its final name and renames. A run
killed while writing leaves the previous checkpoint as the newest. Restoring places every leaf
where the new mesh wants it, so a state saved on 8 devices restores onto 4.
"""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxsr.interop.errors import UserError

log = logging.getLogger(__name__)


class CheckpointError(UserError, RuntimeError):
    """A checkpoint could not be written, read or used for this run."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: where they live; created if absent.
      metric: name of the validation metric that ranks checkpoints; the best one is kept
        whatever its age. None keeps only the latest.
      best: whether the metric is better when higher (`max`) or lower (`min`).
      keep: how many of the latest to keep.

    Raises:
      CheckpointError: the folder cannot be created or written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        metric: str | None = None,
        best: Literal["max", "min"] = "max",
        keep: int = 2,
    ) -> None:
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import preservation_policy as preservation

        self.folder = folder.resolve()
        policies: list[Any] = [preservation.LatestN(keep)]
        if metric is not None:
            sign = 1.0 if best == "max" else -1.0
            # Without the last argument every checkpoint saved between validations is kept for ever.
            policies.append(
                preservation.BestN(
                    get_metric_fn=lambda metrics: sign * metrics[metric],
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(
                self.folder,
                # Named so that a manager that has saved nothing yet can describe old ones.
                item_handlers={"state": ocp.StandardCheckpointHandler()},
                options=ocp.CheckpointManagerOptions(
                    best_fn=(lambda m: m[metric]) if metric else None,
                    best_mode=best,
                    preservation_policy=preservation.AnyPreservationPolicy(policies),
                    enable_async_checkpointing=True,
                    # Left behind by a killed run; they are never complete.
                    cleanup_tmp_directories=True,
                ),
            )
        except OSError as error:
            raise CheckpointError(
                f"cannot write checkpoints to {folder}: {error.strerror or error}; "
                "choose another --out"
            ) from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    @property
    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    @property
    def best_step(self) -> int | None:
        """Step of the checkpoint with the best metric."""
        return self._manager.best_step()

    def save(self, step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        """Copies the state off the devices and returns; writing goes on asynchronously.

        Raises:
          CheckpointError: this or the previous save failed, on a full disk for example.
        """
        import orbax.checkpoint as ocp

        if step in self._manager.all_steps():
            return
        with _write_errors(self.folder), _without_metric_warnings():
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(state)),
                metrics=None if metrics is None else dict(metrics),
            )

    def wait(self) -> None:
        """Returns once everything is on disk.

        Raises:
          CheckpointError: writing failed.
        """
        with _write_errors(self.folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Waits and releases the writer's threads."""
        self.wait()
        self._manager.close()

    def restore(self, like: Any, *, step: int | None = None) -> tuple[int, Any] | None:
        """Reads the newest checkpoint that can be read, or that of `step`.

        A newest checkpoint that is damaged is passed over with a warning.

        Args:
          like: the state to restore into: arrays, or shapes and dtypes, with shardings.
          step: the one to read, and no other.

        Returns:
          The step and the state, or None where there is no checkpoint.

        Raises:
          CheckpointError: checkpoints exist, but none can be read or none fits `like`.
        """
        import orbax.checkpoint as ocp

        candidates = self.steps[::-1] if step is None else [step]
        target = jax.tree.map(_abstract, like)
        failures: list[str] = []
        for candidate in candidates:
            self._check_fits(candidate, target)
            try:
                restored = self._manager.restore(
                    candidate, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
                )
            except Exception as error:
                # Orbax and TensorStore raise many types for a damaged file; each is reported.
                failures.append(f"step {candidate}: {_first_line(error)}")
                log.warning("checkpoint %s is damaged and passed over: %s", candidate, failures[-1])
                continue
            return candidate, restored["state"]
        if failures:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be read ({'; '.join(failures)}); "
                "start anew with another --out, or restore the folder from a copy"
            )
        return None

    def _check_fits(self, step: int, target: Any) -> None:
        """Refuses a checkpoint whose leaves have other names or shapes than the run's."""
        try:
            saved = _shapes(self._manager.item_metadata(step)["state"])
        except Exception as error:
            # A damaged checkpoint may have no readable description; reading it will say so.
            log.warning("checkpoint %s has no readable description: %s", step, _first_line(error))
            return
        expected = _shapes(target)
        if saved == expected:
            return
        missing, extra = sorted({*expected} - {*saved}), sorted({*saved} - {*expected})
        differing = sorted(n for n in {*saved} & {*expected} if saved[n] != expected[n])
        reasons: list[str] = []
        if missing:
            reasons.append(f"lacks {len(missing)} entries such as {missing[0]}")
        if extra:
            reasons.append(f"has {len(extra)} others such as {extra[0]}")
        if differing:
            name = differing[0]
            reasons.append(f"{name} has shape {saved[name]} there and {expected[name]} in this run")
        raise CheckpointError(
            f"the checkpoint at step {step} in {self.folder} belongs to another run: "
            f"{', '.join(reasons)}; use the options it was trained with, or another --out"
        )


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return leaf


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shape of every leaf by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: getattr(node, "shape", None) is not None
    )
    return {
        "/".join(_key_name(key) for key in path): tuple(np.shape(leaf) or leaf.shape)
        for path, leaf in leaves
        if getattr(leaf, "shape", None) is not None
    }


def _key_name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def _without_metric_warnings() -> Generator[None]:
    """Saves between validations have no metric, on purpose: Orbax need not warn of each."""

    def without(record: logging.LogRecord) -> bool:
        return "tracked_metric" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(without)
    try:
        yield
    finally:
        logger.removeFilter(without)


@contextmanager
def _write_errors(folder: Path) -> Generator[None]:
    """Turns what a failed write raises into one line about the folder."""
    try:
        yield
    except Exception as error:
        # From which checkpoint a resumed run would start.
        steps = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
        newest = f"the one of step {max(steps)} is whole" if steps else "none is complete yet"
        full = ("No space left", "RESOURCE_EXHAUSTED", "Disk quota")
        if any(words in str(error) for words in full):
            raise CheckpointError(
                f"no space left to write a checkpoint to {folder}; {newest}: "
                "make room and run again with --resume"
            ) from error
        raise CheckpointError(
            f"writing a checkpoint to {folder} failed ({_first_line(error)}); {newest}"
        ) from error
