"""Reads GGUF files: the header, and tensors dequantised to float32.

The header is parsed here, because the `gguf` package's reader takes seconds over a vocabulary and
does not notice a file cut short; its dequantisation is used as it is.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.errors import InputError, MissingFileError, one_line
from jaxsr.models.claims import check_claims
from jaxsr.models.gguf_names import part_names

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64}

# More than any model has, too few to take gigabytes. The largest vocabularies have 300,000 tokens,
# chat templates some kilobytes, and a 405B model 1,200 tensors.
_MOST_ENTRIES = 2**22
_LONGEST_STRING = 2**24
_MOST_FIELDS = _MOST_TENSORS = 2**16
_MOST_AXES = 8


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor's place in the file; `shape` is torch's order, the reverse of the file's."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    size: int
    data: np.ndarray
    """Bytes of its file, mapped into memory."""


@dataclass(frozen=True)
class GGUFFile:
    """The header of a GGUF file, and where its tensors lie: in it, or in one of its parts."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    size: int
    """Bytes of all parts."""

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields by which the file recommends how tokens are chosen."""
        return {n: v for n, v in self.fields.items() if n.startswith("general.sampling.")}

    def need(self, name: str) -> Any:
        """A field of the header.

        Raises:
          ValueError: the file lacks it.
        """
        if name not in self.fields:
            raise InputError(f"{self.path} has no field {name!r}; it cannot be loaded without")
        return self.fields[name]

    def number(self, name: str, default: float | None = None) -> Any:
        """A positive number of the header.

        Args:
          name: of the field.
          default: where the file lacks it. Default: it must be there.

        Raises:
          ValueError: the file lacks it, or it is something else.
        """
        value = self.fields.get(name, default) if default is not None else self.need(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise InputError(f"{self.path} has {name} {value!r:.60}, expected a positive number")
        return value

    def read(self, name: str) -> np.ndarray:
        """One tensor, dequantised to float32.

        Raises:
          InputError: its quantisation is one that the `gguf` package cannot undo.
        """
        import gguf

        tensor = self.tensors[name]
        kind = gguf.GGMLQuantizationType(tensor.kind)
        rows = self.rows(name)
        if kind.name in _PLAIN:
            return rows.view(_PLAIN[kind.name]).astype(np.float32, copy=False).reshape(tensor.shape)
        try:
            with np.errstate(invalid="ignore", over="ignore"):
                return gguf.quants.dequantize(rows, kind).reshape(tensor.shape)
        except (NotImplementedError, KeyError, ValueError) as error:
            raise InputError(
                f"{self.path}: tensor {name} is {kind.name}, which cannot be read; "
                "convert the file to Q8_0 or F16"
            ) from error

    def rows(self, name: str) -> np.ndarray:
        """The bytes of one tensor; quantised along its last axis, they are rows of blocks."""
        tensor = self.tensors[name]
        raw = tensor.data[tensor.start : tensor.start + tensor.size]
        return raw.reshape(*tensor.shape[:-1], -1) if tensor.size else raw


def open_gguf(path: Path) -> GGUFFile:
    """Reads the header and maps the tensors, checking that every one lies within its file.

    Args:
      path: of the file, or of any part of one that is split.

    Raises:
      FileNotFoundError: no such file, or a part is missing.
      ValueError: not a GGUF file, an unknown version, a file cut short, or one whose header claims
        more than it holds.
    """
    path = Path(path)
    file = _open(path)
    parts = file.fields.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        file = _joined(path, parts)
    check_claims(file.fields, tensors=len(file.tensors), size=file.size, source=path)
    return file


def _joined(path: Path, parts: int) -> GGUFFile:
    paths = [path.with_name(name) for name in part_names(path.name)]
    if len(paths) != parts:
        raise InputError(
            f"{path} says that it is one of {parts} parts, which are named NAME-00001-of-"
            f"{parts:05}.gguf and so on; give the files their names again"
        )
    if absent := [p.name for p in paths if not p.is_file()]:
        raise MissingFileError(
            f"{path.parent} lacks {len(absent)} of {parts} parts: {', '.join(absent[:3])}; fetch "
            "them from where the others came from"
        )
    files = [_open(p) for p in paths]
    tensors: dict[str, GGUFTensor] = {}
    for number, part in enumerate(files):
        if (part.fields.get("split.no"), part.fields.get("split.count")) != (number, parts):
            raise InputError(f"{part.path} is not part {number + 1} of {parts}; fetch it again")
        common = [n for n in part.fields if n in files[0].fields and not n.startswith("split.")]
        if other := [n for n in common if part.fields[n] != files[0].fields[n]]:
            raise InputError(
                f"{part.path} has another {other[0]:.60} than {paths[0].name}: it is a part of "
                "another model; fetch it again"
            )
        if twice := tensors.keys() & part.tensors.keys():
            raise InputError(
                f"{part.path}: tensor {min(twice):.60} is in two parts; fetch it again"
            )
        tensors |= part.tensors
    total = files[0].fields.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise InputError(
            f"{path}: the parts hold {len(tensors)} of {total} tensors; fetch them again"
        )
    return GGUFFile(files[0].path, files[0].fields, tensors, sum(part.size for part in files))


def _open(path: Path) -> GGUFFile:
    if not path.is_file():
        raise MissingFileError(f"no GGUF file at {path}")
    size = path.stat().st_size
    if size < 24:
        raise InputError(f"{path} has {size} bytes: not a GGUF file, or one cut short")
    data = np.memmap(path, mode="r", dtype=np.uint8)
    try:
        return _parse(path, data, size)
    except (struct.error, IndexError) as error:
        reason = one_line(error)
        raise InputError(
            f"{path} ends or breaks off within its header ({reason}); fetch it again"
        ) from error


class _Cursor:
    """Reads little-endian values from a buffer in order."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer, self.at = buffer, 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.buffer, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > _LONGEST_STRING or self.at + length > len(self.buffer):
            raise IndexError(f"a string of {length} bytes")
        raw = bytes(self.buffer[self.at : self.at + length])
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def count(self, code: str, most: int, what: str) -> int:
        """A count that a loop or an allocation follows."""
        value = self.scalar(code)
        if value > most:
            raise IndexError(f"{value} {what}, more than {most}")
        return value

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.count("Q", _MOST_ENTRIES, "entries of a list")
            if item == _ARRAY:
                raise IndexError("a list of lists")
            if item in _SCALARS:
                layout = struct.Struct(f"<{count}{_SCALARS[item]}")
                values = list(layout.unpack_from(self.buffer, self.at))
                self.at += layout.size
                return values
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise IndexError(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])


def _parse(path: Path, data: np.ndarray, size: int) -> GGUFFile:
    import gguf

    cursor = _Cursor(memoryview(data))  # pyright: ignore[reportArgumentType]
    if cursor.scalar("4s") != b"GGUF":
        raise InputError(f"{path} is not a GGUF file; give one, or a Hugging Face folder")
    if (version := cursor.scalar("I")) not in (2, 3):
        raise InputError(f"{path} is GGUF version {version}; versions 2 and 3 are read")
    tensor_count = cursor.count("Q", _MOST_TENSORS, "tensors")
    field_count = cursor.count("Q", _MOST_FIELDS, "fields")
    fields = {}
    for _ in range(field_count):
        name = cursor.string()
        fields[name] = cursor.value(cursor.scalar("I"))
    entries = []
    for _ in range(tensor_count):
        name = cursor.string()
        axes = cursor.count("I", _MOST_AXES, f"axes of {name[:60]}")
        shape = tuple(cursor.scalar("Q") for _ in range(axes))[::-1]
        entries.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = fields.get("general.alignment", 32)
    if alignment not in [2**power for power in range(3, 21)]:
        raise InputError(f"{path} has general.alignment {alignment!r:.60}, no power of two from 8")
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in entries:
        try:
            block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        except (ValueError, KeyError) as error:
            raise InputError(f"{path}: tensor {name} has the unknown type {kind}") from error
        if name in tensors or (shape and shape[-1] % block):
            raise InputError(
                f"{path}: tensor {name} is there twice, or its rows of {shape[-1]} are not whole "
                f"blocks of {block}; fetch the file again"
            )
        length = math.prod(shape) // block * block_bytes
        if base + offset + length > size:
            raise InputError(
                f"{path} is cut short: {size} bytes, but tensor {name} ends at byte "
                f"{base + offset + length}; fetch the file again"
            )
        tensors[name] = GGUFTensor(name, shape, kind, base + offset, length, data)
    _refuse_overlaps(path, tensors.values())
    return GGUFFile(path, fields, tensors, size)


def _refuse_overlaps(path: Path, tensors: Iterable[GGUFTensor]) -> None:
    filled = sorted((t for t in tensors if t.size), key=lambda tensor: tensor.start)
    for tensor, following in pairwise(filled):
        if tensor.start + tensor.size > following.start:
            raise InputError(
                f"{path}: tensors {tensor.name:.60} and {following.name:.60} overlap; fetch the "
                "file again"
            )
