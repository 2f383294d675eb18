"""Traces on disk: a folder with `trace.json` and `tensors.safetensors`, portable.

The JSON holds the header, every operation and its statistics. The safetensors file holds the
samples, the results of each step and the stored tensors. The JSON has a digest of itself and the
other file's, so a damaged, exchanged or truncated file is noticed.
"""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.calls import Call
from jaxsr.comparison.op_recorder import Record
from jaxsr.comparison.recorded_trace import FORMAT, RecordedTrace, Weight
from jaxsr.comparison.statistics import Figures
from jaxsr.errors import DamagedFileError, InputError, MissingFileError, first_line
from jaxsr.field_values import checked
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.sealed_json import seal, unseal

JSON, TENSORS = "trace.json", "tensors.safetensors"


def save_trace(trace: RecordedTrace, folder: Path) -> None:
    """Writes the trace; a folder that holds one already is overwritten."""
    from safetensors.numpy import save

    from jaxsr.interop.atomic_write import atomic_write

    samples: list[np.ndarray] = []
    ends = itertools.accumulate((len(sample) for sample in samples), initial=0)

    def described(figures: Figures) -> JsonObject:
        """All samples are in one tensor: a name for each would take more space than the sample."""
        samples.append(figures.sample)
        return figures.as_row() | {"sample": [next(ends), len(figures.sample)]}

    stored: dict[str, np.ndarray] = {}
    operations = []
    for number, record in enumerate(trace.records):
        row = record.call.as_row()
        row["figures"] = [described(figures) for figures in record.figures]
        row["whole"] = [*record.tensors]
        stored |= {f"whole/{number}/{name}": plain(v) for name, v in record.tensors.items()}
        operations.append(row)
    content = {
        "header": trace.header,
        "tokens": trace.tokens,
        "outputs": len(trace.outputs),
        "further": None if trace.further is None else [*trace.further],
        "weights": {
            name: {"digest": one.digest, "dtype": one.dtype, **described(one.figures)}
            for name, one in trace.weights.items()
        },
        "operations": operations,
    }
    outputs = {f"output/{k}": plain(v) for k, v in enumerate(trace.outputs)}
    outputs |= {f"further/{k}": plain(v) for k, v in enumerate((trace.further or {}).values())}
    tensors = save({"samples": np.concatenate([np.zeros(0), *samples]), **outputs, **stored})
    content["tensors_sha256"] = hashlib.sha256(tensors).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / TENSORS, tensors)
    atomic_write(folder / JSON, seal(content).encode())


def load_trace(folder: Path) -> RecordedTrace:
    """Reads a trace.

    Raises:
      FileNotFoundError: the folder, or one of its two files, is not there.
      ValueError: a file is cut off, damaged, of another trace or of another version.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    for path in (folder / JSON, folder / TENSORS):
        if not path.is_file():
            raise MissingFileError(
                f"no trace at {folder}: it lacks {path.name}; give a folder that "
                "`jaxsr.compare trace --out` wrote"
            )
    try:
        content = unseal((folder / JSON).read_bytes(), source=folder / JSON)
        digest, format_ = content["tensors_sha256"], content["header"]["format"]
    except DamagedFileError as error:
        raise InputError(
            f"{folder / JSON} is cut off, damaged or no trace: it does not agree with its digest; "
            "copy the folder again, or record it again"
        ) from error
    except (KeyError, TypeError) as error:
        reason = f"({type(error).__name__}: {error}); record it again"
        raise InputError(f"{folder / JSON} is not a trace {reason}") from error
    if format_ != FORMAT:
        raise InputError(
            f"{folder / JSON} has format {format_!r}, this jaxsr reads {FORMAT}; record it again"
        )
    data = (folder / TENSORS).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(
            f"{folder / TENSORS} is damaged, or of another trace than {JSON} ({len(data)} bytes "
            "with another digest); copy the folder again, or record it again"
        )
    try:
        return _read(content, load(data))
    except (
        *(SafetensorError, ValueError, KeyError, TypeError, IndexError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:  # whatever a forged one leads to
        reason = f"({first_line(error)}); record it again"
        raise InputError(f"{folder / JSON} does not describe a trace {reason}") from error


_LONGEST_NAME = 2000
_HEADER = {
    "subject.family": str,
    "subject.model": str,
    "subject.inputs": str,
    "subject.steps": int,
    "identity.family": str,
    "identity.parameters": str,
    "identity.inputs": str,
    "side": str,
    "side_short": str,
    "device": str,
    "computed": str,
    "matmul_precision": str | None,
    "granularity": str,
    "sample": int,
    "versions": dict[str, str],
    "words": dict[str, str],
    "recorder": str,
    "recorder_difference": float | None,
}
"""Types of the header's entries that comparisons read."""


def _check_header(header: JsonObject) -> None:
    for name, kind in _HEADER.items():
        value: Any = header
        for part in name.split("."):
            value = value[part]
        checked(kind, value, name)
    BackendSpec.parse(header["side"])


def _read(content: JsonObject, tensors: dict[str, np.ndarray]) -> RecordedTrace:
    json.dumps(content, ensure_ascii=False).encode()  # a text may hold half a character
    _check_header(content["header"])
    outputs, tokens = content["outputs"], checked(list[int], content["tokens"], "tokens")
    if outputs != content["header"]["subject"]["steps"] or len(tokens) not in (0, outputs):
        raise InputError(f"{outputs} outputs and {len(tokens)} tokens are not those of its steps")
    samples = tensors["samples"]
    further = checked(list[str] | None, content.get("further"), "further")

    def figures(row: JsonObject) -> Figures:
        start, length = row["sample"]
        if not (0 <= start <= start + length <= len(samples)):
            raise InputError("a sample lies beyond the samples' end")
        return Figures.from_row(row, samples[start : start + length])

    records = [
        Record(
            call=Call.from_row({n: v for n, v in row.items() if n not in ("figures", "whole")}),
            figures=tuple(figures(f) for f in row["figures"]),
            tensors={name: tensors[f"whole/{number}/{name}"] for name in row["whole"]},
        )
        for number, row in enumerate(content["operations"])
    ]
    if any(len(record.call.key) > _LONGEST_NAME for record in records):
        raise InputError(f"a module's name has more than {_LONGEST_NAME} letters")
    return RecordedTrace(
        header=content["header"],
        records=records,
        outputs=[tensors[f"output/{k}"] for k in range(outputs)],
        further=(
            None
            if further is None
            else {name: tensors[f"further/{k}"] for k, name in enumerate(further)}
        ),
        tokens=tokens,
        weights={
            name: Weight(str(row["digest"]), figures(row), str(row.get("dtype", "")))
            for name, row in content["weights"].items()
        },
    )


def plain(array: np.ndarray) -> np.ndarray:
    """In a dtype that every reader of safetensors has; widening bfloat16 loses nothing."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
