"""Weights leave and enter as safetensors under torch names; nothing is ever unpickled.

A file written by jaxsr has a digest of all of it in its metadata, made while that digest's own
digits were zeros. It is compared whenever the file is opened; files from other programs lack it.
Only `export_weights` needs JAX, and imports it.
"""

import hashlib
import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.errors import DamagedFileError, InputError, MissingFileError, check_utf8_path
from jaxsr.interop.sealed_json import DIGITS

DIGEST = "jaxsr_digest"
"""The digest's name among a file's metadata."""

LFS_POINTER = b"version https://git-lfs"
"""Beginning of the file that Git leaves in place of a large one that it has not fetched."""

_WRITER = ("written_by", "jaxsr")
_ZEROS = "0" * DIGITS
_LONGEST_HEADER = 100 * 2**20  # bytes; safetensors' own limit


def export_weights(
    path: Path | str,
    arrays: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes arrays as a safetensors file that `load_state_dict` accepts.

    The file appears whole or not at all. Integers are widened to torch's int64, which JAX
    narrowed to int32.

    Args:
      path: file to write.
      arrays: JAX or NumPy arrays by torch name.
      metadata: facts to store about the file; each value is stored as JSON.
    """
    import jax
    from safetensors.numpy import save

    host = {name: _widened(np.asarray(jax.device_get(array))) for name, array in arrays.items()}
    notes = {name: json.dumps(value) for name, value in (metadata or {}).items()}
    notes |= dict([_WRITER], **{DIGEST: _ZEROS})
    atomic_write(Path(path), *with_digest(save(host, metadata=notes)))


def with_digest(content: bytes) -> tuple[bytes | memoryview, ...]:
    """A safetensors file whose metadata have a `DIGEST` of zeros, in parts, with the digest."""
    place = content.index(f'"{DIGEST}":"{_ZEROS}"'.encode()) + len(f'"{DIGEST}":"')
    digest = hashlib.sha256(content).hexdigest()[:DIGITS].encode()
    view = memoryview(content)
    return view[:place], digest, view[place + DIGITS :]


def check_digest(path: Path) -> None:
    """Compares a safetensors file with the digest in it, if it has one.

    Raises:
      DamagedFileError: they disagree.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= _LONGEST_HEADER else b""
        # Either entry is enough: damage to both of their names is next to impossible.
        entries = (f'"{DIGEST}"', '"{}":"{}"'.format(*_WRITER))
        if not any(entry.encode() in header for entry in entries):
            return
        # A sparse file of terabytes would be read for hours.
        ends = map(int, re.findall(rb'"data_offsets":\[\d+,(\d{1,18})\]', header))
        is_whole = os.fstat(file.fileno()).st_size == 8 + length + max(ends, default=0)
        match = re.search(rf'"{DIGEST}":"([^"]{{{DIGITS}}})"'.encode(), header)
        begin, end = match.span(1) if match else (0, 0)
        digest = hashlib.sha256(length.to_bytes(8, "little"))
        digest.update(header[:begin] + _ZEROS.encode() + header[end:])
        while is_whole and (part := file.read(2**20)):
            digest.update(part)
    if not is_whole or digest.hexdigest()[:DIGITS].encode() != header[begin:end]:
        raise DamagedFileError(
            f"{path} is damaged: its content does not agree with the digest in it; restore it from "
            "a copy, or write it again"
        )


def has_digest(path: Path) -> bool:
    """Whether a file is one of `export_weights`, which may be damaged."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return length <= _LONGEST_HEADER and f'"{DIGEST}"'.encode() in file.read(length)


@contextmanager
def open_safetensors(path: Path | str, *, framework: str = "numpy") -> Generator[Any]:
    """Opens a file as `safetensors.safe_open` does: its tensors are read when they are asked for.

    Raises:
      FileNotFoundError: no such file.
      DamagedFileError: it does not agree with the digest in it.
      ValueError: it is not a complete safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"no weights file at {path}; check the path")
    check_utf8_path(path)
    check_digest(path)
    try:
        opened: Any = safe_open(path, framework=framework)
        with opened as file:
            yield file
    except SafetensorError as error:
        reason = str(error).strip().partition("\n")[0][:120]
        hint = what_it_is(path) or "it is damaged or cut short, get it again"
        raise InputError(f"{path} is not a complete safetensors file ({reason}); {hint}") from error


def what_it_is(path: Path) -> str | None:
    """The kind of file in a weights file's place, if people often get it instead."""
    with path.open("rb") as content:
        head = content.read(512)
    if head.startswith(LFS_POINTER):
        return "it is Git LFS's pointer to the file: run git lfs pull"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page: download the file itself, not the page about it"
    return None


def read_weights(path: Path | str) -> tuple[dict[str, np.ndarray], JsonObject]:
    """Arrays by torch name and the file's metadata; see `open_safetensors` for the errors."""
    from jaxsr.interop.host_arrays import to_numpy

    with open_safetensors(path, framework="pt") as file:  # NumPy has no float8 to read into
        # Copies: torch's tensors lie in the mapped file.
        arrays = {n: to_numpy(file.get_tensor(n)).copy() for n in file.keys()}  # noqa: SIM118
    return arrays, read_metadata(path)


def read_metadata(path: Path | str) -> JsonObject:
    """A safetensors file's metadata: values that are JSON decoded, others as text."""
    with open_safetensors(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
        return {
            name: _decoded(value)
            for name, value in metadata.items()
            if name not in (DIGEST, _WRITER[0])
        }


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _widened(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")  # ascontiguousarray would give a scalar an axis
    return array.astype(np.int64) if array.dtype.name in ("int32", "uint32") else array
