"""Weights leave and enter as safetensors under torch names; nothing is ever unpickled.

Only `export_weights` needs JAX, and imports it.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.interop.atomic_write import atomic_write
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
    import jax
    from safetensors.numpy import save

    host = {name: _widened(np.asarray(jax.device_get(array))) for name, array in arrays.items()}
    notes = {name: json.dumps(value) for name, value in (metadata or {}).items()}
    atomic_write(path, save(host, metadata=notes))


@contextmanager
def open_safetensors(path: Path, *, framework: str = "numpy") -> Generator[Any]:
    """Opens a file as `safetensors.safe_open` does: its tensors are read when they are asked for.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is not a whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise MissingFileError(f"no weights file at {path}; check the path")
    try:
        opened: Any = safe_open(path, framework=framework)
        with opened as file:
            yield file
    except SafetensorError as error:
        reason = str(error).strip().partition("\n")[0][:120]
        raise InputError(
            f"{path} is not a whole safetensors file ({reason}); it is damaged or cut short, get "
            "it again"
        ) from error


def read_weights(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays by torch name and the file's metadata; see `open_safetensors` for the errors."""
    with open_safetensors(path) as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return arrays, read_metadata(path)


def read_metadata(path: Path) -> dict[str, Any]:
    """What a safetensors file says of itself: values that are JSON decoded, others as text."""
    with open_safetensors(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
        return {name: _decoded(value) for name, value in metadata.items()}


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _widened(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")  # ascontiguousarray would give a scalar an axis
    return array.astype(np.int64) if array.dtype.name in ("int32", "uint32") else array
