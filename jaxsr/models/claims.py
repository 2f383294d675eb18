"""Checks a header's claims against the file's size before a network is built from them.

A network is built from numbers of a configuration or of metadata, which are easily written: a
million layers take hours, a width of 2³¹ takes all memory. But every layer has a tensor in the
file, and every feature a weight.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, printable
from jaxsr.interop.weights import open_safetensors

_WEIGHTS_A_BYTE = 8
"""Quantised weights take a bit and more."""
_OF_NO_WEIGHT = ("position", "context", "token", "window", "theta", "seed", "chunk", "time",
                 "max", "base", "freq", "id", "ids", "steps", "every", "rate")  # fmt: skip
"""Parts of names of numbers that stand for no weights: lengths of texts and runs, constants."""
_LARGEST_FREE = 2**31
_LAYERS = ("layer", "layers", "block", "blocks", "depth", "depths")
_COUNTS = ("n", "num", "number", "count")
_EXTENTS = ("size", "sizes", "dim", "dims", "channels", "width", "features", "units")
"""Parts of names. A number of layers ends in a word of the first, or has one of the second beside
it, and none of the third: `num_hidden_layers` is one, `block_channels` is not."""
_LEAST_COUNT = 64
"""Layers that may share tensors, or have none."""
_MOST_LAYERS = 4096
"""Limit for a configuration without weights."""


def check_claims(
    fields: Mapping[str, Any],
    *,
    tensors: int,
    size: int | None,
    source: Path,
    least: int = 2**20,
    way_out: str = "get it again",
) -> None:
    """Refuses a configuration that describes more than a file holds.

    Args:
      fields: of the configuration.
      tensors: how many the file or folder holds.
      size: bytes of the file, or of the folder's weights. None: there are no weights.
      source: of the fields, for errors.
      least: numbers up to this pass in any case.
      way_out: advice at the end of the error.

    Raises:
      InputError: a number is larger than it can be; the message has its name.
    """
    weights = None if size is None else _WEIGHTS_A_BYTE * size
    for name, value in _numbers(fields):
        parts = name.lower().replace(".", "_").split("_")
        if _counts_layers(parts):
            most, what = max(tensors, _LEAST_COUNT), f"its {tensors:,} tensors"
            if weights is None:
                most, what = _MOST_LAYERS, f"the {_MOST_LAYERS:,} that are built here"
        elif weights is None or any(part in parts for part in _OF_NO_WEIGHT):
            most, what = _LARGEST_FREE, "this allows"
        else:
            most, what = max(weights, least), f"its {size:,} bytes hold"
        if abs(value) > most:
            raise InputError(
                f"{source} claims {printable(name, 60)}={value:,}, more than {what}; {way_out}"
            )


def _counts_layers(parts: list[str]) -> bool:
    """Whether a number whose name has these parts is one of layers."""
    layers, counts, extents = (set(parts) & set(words) for words in (_LAYERS, _COUNTS, _EXTENTS))
    return (parts[-1] in layers or bool(layers and counts)) and not extents


def check_folder_claims(fields: Mapping[str, Any], files: list[Path], *, source: Path) -> None:
    """`check_claims` for a folder of safetensors."""
    tensors = 0
    for path in files:
        with open_safetensors(path) as file:
            tensors += len(file.keys())
    size = sum(path.stat().st_size for path in files)
    check_claims(fields, tensors=tensors, size=size, source=source)


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Mapping):
                yield from _numbers(each, f"{prefix}{name}.")
            elif isinstance(each, int) and not isinstance(each, bool):
                yield f"{prefix}{name}", each
