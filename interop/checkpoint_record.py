"""The record in a checkpoint: shape, dtype and digest of every array, the metrics, the run's notes.

It is one sealed JSON text (`jaxsr.interop.sealed_json`), so that damage to the record itself is
also noticed.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.array_digests import named_leaves, tree_digests
from jaxsr.interop.bounded_read import MOST_BYTES, read_bounded
from jaxsr.interop.errors import CheckpointError, DamagedFileError, FileAccessError, first_line
from jaxsr.interop.fields import whole_number
from jaxsr.interop.sealed_json import seal, unseal

_trees: Any = jax.tree_util  # untyped in JAX
RECORD_ITEM = "record"
"""Item and file of a checkpoint that hold the record."""


_PARTS = {"state", RECORD_ITEM, "metrics", "_CHECKPOINT_METADATA"}
"""Names in a checkpoint's folder, of which damage leaves one at least, or an empty folder."""


def metric_rank(value: float | None, best: Literal["max", "min"]) -> float:
    """Orders values of a validation metric: the better, the higher; NaN comes last.

    Args:
      value: the metric.
      best: whether it is better when higher (`max`) or lower (`min`).
    """
    if value is None or math.isnan(value):
        return -math.inf
    return value if best == "max" else -value


def checked_metrics(
    metrics: Mapping[str, Any] | None, ranking: str | None
) -> dict[str, float] | None:
    """The metrics of a checkpoint as Python numbers.

    Raises:
      CheckpointError: one is not a number, or the one that ranks checkpoints is missing.
    """
    if metrics is None:
        return None
    if ranking is not None and ranking not in metrics:
        raise CheckpointError(
            f"the metrics ({', '.join(map(str, metrics))}) lack {ranking!r}, which ranks the "
            "checkpoints; add it, or let `metric` name another"
        )
    numbers = dict[str, float]()
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the metric {name!r} is not a number: {value!r}") from error
    return numbers


def checkpoint_folder(folder: Path | str) -> Path:
    """The absolute path of a folder for checkpoints.

    Raises:
      CheckpointError: Orbax takes a part of it for a pattern, and would not find its own files.
    """
    path = Path(folder).resolve()
    if found := sorted({*str(path)} & {*"*?[\\"}):
        raise CheckpointError(
            f"{path} has {' and '.join(found)} in it, with which Orbax loses checkpoints; choose a "
            "folder without"
        )
    return path


def steps_of(folder: Path) -> list[int]:
    """Steps whose checkpoints are complete, ascending; empty if the folder does not exist."""
    if not folder.is_dir():
        return []
    numbers = {path.name: whole_number(path.name) for path in folder.iterdir() if path.is_dir()}
    return sorted(step for name, step in numbers.items() if step is not None and name == str(step))


class NoDigestsError(CheckpointError):
    """A checkpoint of jaxsr 0.2.0, or of Orbax alone, which has no record."""


class SavedArray(NamedTuple):
    """Entry of a record for one array."""

    shape: list[int]
    dtype: str
    digest: str
    """Digests by `jaxsr.interop.array_digests`."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """Record of a checkpoint."""

    step: int
    metrics: dict[str, float] | None
    notes: JsonObject
    """JSON values of the run."""
    arrays: dict[str, SavedArray]
    """By the path of the leaf."""
    absent: list[str] | None = None
    """Paths of entries that are None; None in checkpoints before 0.4."""
    inherited: bool = False
    """Whether the state is another run's, from which this one branches."""

    @classmethod
    def of(
        cls,
        step: int,
        state: PyTree,
        metrics: Mapping[str, float] | None,
        notes: Mapping[str, Any],
        inherited: bool,
    ) -> Self:
        """The record of a state; every process of a job calls it at the same time.

        Raises:
          CheckpointError: a leaf is not an array, or two have one name; or a step failed.
        """
        if failed := int(getattr(state, "failed_step", 0)):
            raise CheckpointError(
                f"step {failed} failed (its loss or a gradient is not finite, or an index is out "
                "of range), and the state is that before it; go on from the last checkpoint with "
                "other data or a lower learning rate, or save state.replace(failed_step=0 * "
                "state.failed_step)"
            )
        leaves = _checked_leaves(state)
        digests = tree_digests(state)
        return cls(
            step=step,
            metrics=None if metrics is None else dict(metrics),
            notes=dict(notes),
            arrays={n: SavedArray(*_form(leaf), digests[n]) for n, leaf in leaves.items()},
            absent=_absent_of(state),
            inherited=inherited,
        )

    def sealed(self) -> str:
        """The record as a text."""
        return seal(vars(self))

    @classmethod
    def unsealed(cls, text: str, *, source: Path) -> Self:
        """The record in a text that `sealed` made.

        Raises:
          DamagedFileError: the text is not as `sealed` made it; the error names `source`.
        """
        entries = unseal(text.encode(), source=source)
        arrays = {name: SavedArray(*saved) for name, saved in entries["arrays"].items()}
        return cls(
            step=entries["step"], metrics=entries["metrics"], notes=entries["notes"], arrays=arrays,
            absent=entries.get("absent"), inherited=entries.get("inherited", False),
        )  # fmt: skip

    def check_fits(self, target: PyTree, path: Path) -> None:
        """Refuses a checkpoint whose leaves have other names, shapes or dtypes than the run's.

        Args:
          target: the run's state: arrays, or their shapes and dtypes.
          path: folder of the checkpoint, for the error.

        Raises:
          CheckpointError: it does not fit.
        """
        saved = {name: (array.shape, array.dtype) for name, array in self.arrays.items()}
        expected = {name: _form(leaf) for name, leaf in named_leaves(target).items()}
        absent = _absent_of(target)
        if saved == expected and self.absent in (None, absent):
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
            (old_shape, old_dtype), (shape, dtype) = saved[name], expected[name]
            reasons.append(
                f"{name} has shape {tuple(old_shape)} and dtype {old_dtype} there, "
                f"{tuple(shape)} and {dtype} in this run"
            )
        for name in sorted({*absent} ^ {*(absent if self.absent is None else self.absent)})[:1]:
            places = ("in this run", "there") if name in absent else ("there", "in this run")
            reasons.append(f"{name} is None {places[0]}, not {places[1]}")
        raise CheckpointError(
            f"the checkpoint at step {path.name} in {path.parent} belongs to another run: "
            f"{', '.join(reasons)}; use that run's network, optimizer and engine, or begin anew"
        )


def _checked_leaves(state: PyTree) -> dict[str, Any]:
    names = dict[str, str]()
    for path, leaf in _trees.tree_flatten_with_path(state)[0]:
        name, stored = (_trees.keystr(path, simple=True, separator=s) for s in "/.")
        if not hasattr(leaf, "dtype"):
            raise CheckpointError(
                f"{name} is {leaf!r}, not an array; save it as one: jnp.asarray({leaf!r})"
            )
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise CheckpointError(f"{name} is a random key; save jax.random.key_data of it")
        if stored in names:
            raise CheckpointError(
                f"{names[stored]} and {name} have one name in the file; rename one of them"
            )
        names[stored] = name
    return named_leaves(state)


def _absent_of(state: PyTree) -> list[str]:
    def is_absent(leaf: Any) -> bool:
        return leaf is None

    pairs = _trees.tree_flatten_with_path(state, is_leaf=is_absent)[0]
    paths = [path for path, leaf in pairs if leaf is None]
    return sorted(_trees.keystr(path, simple=True, separator="/") for path in paths)


def _form(leaf: Any) -> tuple[list[int], str]:
    return [*np.shape(leaf)], str(leaf.dtype)


def read_record(path: Path) -> CheckpointRecord:
    """The record of a checkpoint, see `CheckpointRecord`.

    Args:
      path: folder of one checkpoint.

    Raises:
      DamagedFileError: the record is missing or damaged, or disagrees with the metrics' file.
      FileAccessError: the file system fails, or this user may not read a file.
      NoDigestsError: the checkpoint was saved without a record.
      CheckpointError: the folder holds something else.
    """
    file = path / RECORD_ITEM / RECORD_ITEM
    parts = {entry.name for entry in path.iterdir()} if path.is_dir() else set[str]()
    if parts and not parts & _PARTS:
        raise CheckpointError(
            f"{path} is not a checkpoint, though its name is a number: choose another folder for "
            "checkpoints, or move it"
        )
    files = _regular_files(path)
    try:
        record = CheckpointRecord.unsealed(json.loads(read_bounded(file))["sealed"], source=file)
    except FileNotFoundError:
        if _names_no_record(path):
            _check_sizes(files, path)
            is_of_run = path.parent.name == "checkpoints"
            way_out = f"start another run from it with --branch-from {path.parent.parent} --out NEW"
            raise NoDigestsError(
                f"{path} was saved without digests, by jaxsr 0.2.0 or by Orbax alone; "
                + (way_out if is_of_run else "read it with Orbax, and choose another folder")
            ) from None
        raise DamagedFileError(f"it has no {RECORD_ITEM}") from None
    except _MALFORMED as error:
        raise _unusable(f"its {RECORD_ITEM}", error) from error
    _check_sizes(files, path, len(record.arrays))
    try:
        json.loads(read_bounded(path / "_CHECKPOINT_METADATA"))
    except _MALFORMED as error:
        raise _unusable("its metadata", error) from error
    metrics = path / "metrics" / "metrics"
    try:
        stated = json.loads(read_bounded(metrics)) if metrics.parent.exists() else None
    except _MALFORMED as error:
        raise _unusable("its metrics", error) from error
    # NaN is a metric like any other here, and equals nothing.
    if record.step != int(path.name) or repr(record.metrics) != repr(stated):
        raise DamagedFileError("its metrics or its name are not those that were saved")
    return record


def _unusable(what: str, error: Exception) -> Exception:
    """The error of a part that cannot be read: damage, unless the file system fails or refuses."""
    absent = FileNotFoundError | NotADirectoryError | IsADirectoryError
    if isinstance(error, OSError) and not isinstance(error, absent):
        return FileAccessError(
            f"{first_line(error)}: cannot read this file of a checkpoint, which may be sound; "
            "try again, or give this user the right to read it"
        )
    return DamagedFileError(f"{what} cannot be read ({first_line(error)})")


_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _regular_files(path: Path) -> list[Path]:
    """The files of a checkpoint.

    Raises:
      DamagedFileError: one is a pipe or a device, which never end where Orbax opens them, or
        describes an array outside of the index that `checkpoint_index` reads.
    """
    files = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    for entry in files:
        if not entry.is_file():
            raise DamagedFileError(f"{entry.relative_to(path)} is not a regular file")
        if entry.name in (".zarray", "zarr.json"):
            raise DamagedFileError(f"{entry.relative_to(path)} is not of a checkpoint")
    return files


_ENTRY_BYTES = 2**20
"""More than Orbax writes about an array, whose devices it lists."""


def _check_sizes(files: Iterable[Path], path: Path, arrays: int = 0) -> None:
    """Refuses large files of metadata, sparse ones perhaps, which are read in full.

    `checkpoint_index` checks those of data.

    Args:
      files: those of the checkpoint.
      path: its folder.
      arrays: number of its arrays.

    Raises:
      DamagedFileError: there is one.
    """
    for file in files:
        is_data = file.parent.name == "d"
        size = file.stat().st_size
        if not is_data and size > MOST_BYTES + _ENTRY_BYTES * arrays:
            raise DamagedFileError(
                f"{file.relative_to(path)} has {size:,} bytes, more than such a checkpoint writes"
            )


def _names_no_record(path: Path) -> bool:
    """Whether a checkpoint's list of its items is sound, and has no record in it."""
    try:
        return (
            RECORD_ITEM
            not in json.loads(read_bounded(path / "_CHECKPOINT_METADATA"))["item_handlers"]
        )
    except _MALFORMED:
        return False
