"""Stores a running batch as a safetensors file: its cache, its tokens and its model's identity.

The file is in no engine's layout, so that a batch begun on one engine or platform goes on on
another. Half-precision caches are stored as float32, which every reader has. The file has a digest
of itself; the fingerprint of the model covers its configuration and every weight as it computes.
"""

import logging
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import jaxsr
from jaxsr.errors import InputError
from jaxsr.generation.decoder import UNFILLED, BatchSnapshot
from jaxsr.interop.weights import export_weights, read_weights
from jaxsr.models.cache_entries import has_slots

FORMAT = "jaxsr-kv-cache-4"
"""Raise it with any change of the numbers' meaning."""

log = logging.getLogger(__name__)


def save_snapshot(
    path: Path,
    snapshot: BatchSnapshot,
    *,
    fingerprint: str,
    model: str,
    prompts: Sequence[str],
    tokenizer: str,
) -> None:
    """Writes the snapshot; the file appears complete or not at all.

    Args:
      path: file to write.
      snapshot: the batch.
      fingerprint: of the model, see `jaxsr.models.llama.loading.fingerprint`.
      model: its name, for messages.
      prompts: text of each row's prompt, for reports.
      tokenizer: digest of the one that writes its tokens as text.
    """
    arrays = {name: getattr(snapshot, name) for name in BatchSnapshot.row_fields()}
    arrays["done"] = snapshot.done.astype(np.uint8)
    arrays |= {name: _portable(array) for name, array in snapshot.cache.items()}
    notes = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "model": model,
        "tokenizer": tokenizer,
        "versions": _versions(),
        "prompts": [*prompts],
    }
    export_weights(Path(path), arrays, metadata=notes)


def _portable(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)


def _versions() -> dict[str, str]:
    packages = ("jax", "jaxlib", "torch")
    return {"jaxsr": jaxsr.__version__, **{name: metadata.version(name) for name in packages}}


def load_snapshot(
    path: Path, *, fingerprint: str, model: str, network: Any, tokenizer: str
) -> tuple[BatchSnapshot, list[str]]:
    """The snapshot and its prompts' texts.

    Args:
      path: file that `save_snapshot` wrote.
      fingerprint: of the model that is to go on with it.
      model: that model's name, for messages.
      network: that model's, whose cache the arrays must fit.
      tokenizer: digest of the one that is to write its tokens as text.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is not such a file, is damaged, of another format, model or tokenizer, or its
        arrays do not fit this model.
    """
    arrays, notes = read_weights(Path(path))
    if notes.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {notes.get('format')!r}, not {FORMAT!r}: not a saved cache of "
            "this version; --resume takes what --save-cache wrote"
        )
    if notes.get("fingerprint") != fingerprint:
        same = notes.get("model") == model
        other = "with other weights, dtype or quantisation" if same else f"not to {model!r}"
        raise InputError(
            f"{path} belongs to the model {notes.get('model')!r}, {other}; resume it with the "
            "model, --dtype and --quantize that wrote it"
        )
    if "tokenizer" not in notes:
        log.warning(
            "%s is of a version that noted no tokenizer: its tokens are read by the one given", path
        )
    elif notes["tokenizer"] != tokenizer:
        raise InputError(
            f"{path} was written with another tokenizer, by which its tokens are other text; "
            "resume it with the tokenizer files that were there then, or --tokenizer"
        )
    if (written := notes.get("versions")) != _versions():
        log.warning(
            "%s was written with %s, this is %s: outputs may differ in the last bits",
            path, _listed(written), _listed(_versions()),
        )  # fmt: skip
    problem = _problem(arrays, notes.get("prompts"), network)
    if problem:
        raise InputError(f"{path} cannot be gone on with: {problem}; write it again")
    fields = {name: arrays[name] for name in BatchSnapshot.row_fields()}
    fields = {name: array.astype(np.int32) for name, array in fields.items()}
    fields["done"] = fields["done"].astype(bool)
    cache = {name: array for name, array in arrays.items() if name not in fields}
    snapshot = BatchSnapshot(cache=cache, **fields)
    return snapshot, list(notes["prompts"])


def _listed(versions: Any) -> str:
    return ", ".join(f"{n} {v}" for n, v in dict(versions or {}).items()) or "unknown versions"


def _problem(arrays: Mapping[str, np.ndarray], prompts: Any, network: Any) -> str:
    """The reason why these arrays are not a batch of this model; empty where they are."""
    shapes = network.cache_shapes()
    layers = len({name.split(".")[1] for name in shapes})
    expected = (*BatchSnapshot.row_fields(), *shapes)
    if missing := [name for name in expected if name not in arrays]:
        return f"it lacks {', '.join(missing[:3])}, of a model of {layers} layers"
    if surplus := sorted({*arrays} - {*expected}):
        return f"it has {surplus[0]}, which a model of {layers} layers lacks"
    rows = len(prompts) if isinstance(prompts, list) else -1
    for name in BatchSnapshot.row_fields():
        array, ndim = arrays[name], 2 if name in ("prompt", "outputs") else 1
        if array.ndim != ndim or len(array) != rows or array.dtype.kind not in "iu":
            return (
                f"{name} is {array.dtype} of shape {array.shape}, for {rows} rows of whole numbers"
            )
    filled, windows = arrays["filled"], network.cache_windows()
    unwindowed = [arrays[n] for n in shapes if has_slots(n) and n not in windows]
    slots = (
        unwindowed[0].shape[2]
        if unwindowed and unwindowed[0].ndim == 4
        else int(filled.max(initial=0))
    )
    for name, inner in shapes.items():
        held = min(slots, windows.get(name, slots))
        shape = (rows, inner[0], held, *inner[1:]) if has_slots(name) else (rows, *inner)
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            return f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}, not {shape}"
        if not np.isfinite(arrays[name]).all():
            return f"{name} holds NaN or infinity"
    tokens, outputs, prompt = (arrays[name] for name in ("token", "outputs", "prompt"))
    known = np.concatenate([tokens, *(a[a != UNFILLED] for a in (outputs, prompt))])
    if known.size and not 0 <= known.min() <= known.max() < network.config.vocab_size:
        size = network.config.vocab_size
        return f"it has token ids from {known.min()} to {known.max()}, of {size} known"
    if not (outputs.shape[1] and (outputs[:, 0] != UNFILLED).all()):
        return "a row has no output yet"
    if not (filled >= 1).all() or not (filled <= slots).all():
        return f"rows have {filled.tolist()} filled slots of {slots}"
    return ""


def merged(snapshots: Sequence[BatchSnapshot]) -> BatchSnapshot:
    """Several batches' snapshots as one; shorter caches and outputs are padded."""

    def joined(name: str) -> np.ndarray:
        arrays = [s.cache[name] for s in snapshots]
        if has_slots(name):
            slots = max(t.shape[2] for t in arrays)
            arrays = [np.pad(t, [(0, 0), (0, 0), (0, slots - t.shape[2]), (0, 0)]) for t in arrays]
        return np.concatenate(arrays)

    def padded(name: str, *, left: bool) -> np.ndarray:
        arrays = [getattr(s, name) for s in snapshots]
        longest = max(array.shape[1] for array in arrays)
        gaps = [(longest - a.shape[1], 0) if left else (0, longest - a.shape[1]) for a in arrays]
        pairs = zip(arrays, gaps, strict=True)
        return np.concatenate(
            [np.pad(array, [(0, 0), gap], constant_values=UNFILLED) for array, gap in pairs]
        )

    plain = ("filled", "token", "done", "requests", "seeds")
    return BatchSnapshot(
        cache={name: joined(name) for name in snapshots[0].cache},
        prompt=padded("prompt", left=True),
        outputs=padded("outputs", left=False),
        **{name: np.concatenate([getattr(s, name) for s in snapshots]) for name in plain},
    )
