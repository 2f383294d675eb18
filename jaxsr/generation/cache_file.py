"""A batch under way as a safetensors file: its cache, its tokens, and what model it belongs to.

The file is in no engine's layout, so that a batch begun on one engine or platform goes on on
another. Half-precision caches are stored as float32, which every reader has.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxsr.errors import InputError
from jaxsr.generation.decoder import Snapshot
from jaxsr.interop.weights import export_weights, read_weights

FORMAT = "jaxsr-kv-cache-1"


def save_snapshot(
    path: Path, snapshot: Snapshot, *, fingerprint: str, model: str, prompts: Sequence[str]
) -> None:
    """Writes the snapshot; the file appears complete or not at all.

    Args:
      path: file to write.
      snapshot: the batch.
      fingerprint: of the model, see `jaxsr.models.llama.loading.fingerprint`.
      model: its name, for messages.
      prompts: text of each row's prompt, for reports.
    """
    arrays = {name: getattr(snapshot, name) for name in Snapshot.row_fields()}
    arrays["done"] = snapshot.done.astype(np.uint8)
    for layer, (keys, values) in enumerate(zip(snapshot.keys, snapshot.values, strict=True)):
        arrays[f"layers.{layer}.keys"] = _portable(keys)
        arrays[f"layers.{layer}.values"] = _portable(values)
    notes = {"format": FORMAT, "fingerprint": fingerprint, "model": model, "prompts": [*prompts]}
    export_weights(Path(path), arrays, metadata=notes)


def _portable(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)


def load_snapshot(path: Path, *, fingerprint: str, model: str) -> tuple[Snapshot, list[str]]:
    """The snapshot and its prompts' texts.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is no such file, or belongs to another model.
    """
    arrays, notes = read_weights(Path(path))
    if notes.get("format") != FORMAT:
        raise InputError(f"{path} is not a saved cache; --resume takes what --save-cache wrote")
    if notes["fingerprint"] != fingerprint:
        raise InputError(
            f"{path} belongs to the model {notes['model']!r}, not to {model!r}; its cache means "
            "nothing to another"
        )
    layers = sum(name.endswith(".keys") for name in arrays)
    fields = {name: arrays[name] for name in Snapshot.row_fields()}
    for name in ("filled", "token", "outputs", "requests"):
        fields[name] = fields[name].astype(np.int32)
    fields["done"] = fields["done"].astype(bool)
    snapshot = Snapshot(
        keys=[arrays[f"layers.{i}.keys"] for i in range(layers)],
        values=[arrays[f"layers.{i}.values"] for i in range(layers)],
        **fields,
    )
    return snapshot, list(notes["prompts"])


def merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Several batches' snapshots as one; shorter caches and outputs are padded."""
    from jaxsr.generation.decoder import UNFILLED

    slots = max(s.keys[0].shape[2] for s in snapshots)
    count = max(s.outputs.shape[1] for s in snapshots)

    def joined(layers: list[list[np.ndarray]]) -> list[np.ndarray]:
        grown = (
            [np.pad(t, [(0, 0), (0, 0), (0, slots - t.shape[2]), (0, 0)]) for t in same]
            for same in zip(*layers, strict=True)
        )
        return [np.concatenate(same) for same in grown]

    outputs = [
        np.pad(s.outputs, [(0, 0), (0, count - s.outputs.shape[1])], constant_values=UNFILLED)
        for s in snapshots
    ]
    plain = ("filled", "token", "done", "requests")
    return Snapshot(
        keys=joined([s.keys for s in snapshots]),
        values=joined([s.values for s in snapshots]),
        outputs=np.concatenate(outputs),
        **{name: np.concatenate([getattr(s, name) for s in snapshots]) for name in plain},
    )
