"""Weights leave and enter as safetensors under torch names; nothing is ever unpickled."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsr.interop.errors import InputError, MissingFileError


def export_weights(
    path: Path, arrays: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None
) -> None:
    """Writes arrays as a safetensors file that `load_state_dict` accepts.

    The file appears whole or not at all. Integers are widened to torch's int64, which JAX
    narrowed to int32.

    Args:
      path: file to write.
      arrays: JAX or NumPy arrays by torch name.
      metadata: what the file should say of itself; each value is stored as JSON.
    """
    from safetensors.numpy import save

    host = {name: _widened(np.asarray(jax.device_get(array))) for name, array in arrays.items()}
    notes = {name: json.dumps(value) for name, value in (metadata or {}).items()}
    write_whole(path, save(host, metadata=notes))


def read_weights(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays by torch name and the file's metadata.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is not a whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise MissingFileError(f"no weights file at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            notes = file.metadata() or {}
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file ({error})") from error
    return arrays, {name: json.loads(value) for name, value in notes.items()}


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside its final name and renames it, so that a killed process leaves none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _widened(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")  # ascontiguousarray would give a scalar an axis
    return array.astype(np.int64) if array.dtype in (np.int32, np.uint32) else array
