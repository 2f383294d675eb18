"""Reads a Hugging Face folder: `config.json`, safetensors in one file or in shards.

Nothing is unpickled: a folder with `pytorch_model.bin` only is refused.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jaxsr.errors import InputError, MissingFileError, one_line, printable
from jaxsr.field_values import from_values
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.bounded_read import CONFIGURATION, MOST_BYTES, read_bounded
from jaxsr.interop.fields import check_fields, number
from jaxsr.interop.weights import LFS_POINTER, open_safetensors

_ADAPTER = "adapter_config.json"

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """Fields of any model's `config.json` that no family's code looks at closely."""

    dtype: str | dict | None = None
    """The stored weights' dtype, or that of each part by name."""
    torch_dtype: str | dict | None = None
    """The same, as transformers 4 wrote it."""
    architectures: tuple[str, ...] | None = None
    """Names of classes."""
    pad_token_id: int | None = number(None, least=-1)
    """-1: there is none, as in the first Llama folders."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("dtype", "torch_dtype"):
            stated = getattr(self, name)
            for each in stated.values() if isinstance(stated, dict) else [stated]:
                text = "auto" if each is None else str(each).removeprefix("torch.")
                if text != "auto" and not isinstance(getattr(torch, text, None), torch.dtype):
                    raise _wrong(name, each, "a dtype such as bfloat16")
        for each in self.architectures or ():
            if not each.isidentifier():
                raise _wrong("architectures", each, "the name of a class")


def _wrong(name: str, value: object, what: str) -> InputError:
    shown = printable(repr(value), 80)
    return InputError(f"config.json has {name} {shown}, which is not {what}; correct it")


def read_config(path: Path) -> JsonObject:
    """The fields of a `config.json`, those checked that belong to no family.

    Raises:
      FileNotFoundError: no such file.
      InputError: it is not a JSON object, or a field has a value of another type.
    """
    content = read_json(path)
    stated = {f.name: content[f.name] for f in fields(_Stated) if f.name in content}
    from_values(_Stated, stated, prefix="config.json's ")
    return content


_MOST_CONTAINERS = 2**21
"""More lists and objects than any file has; tokenizers have one for each pair of tokens."""


def read_json(path: Path, *, most_bytes: int = CONFIGURATION) -> JsonObject:
    """One JSON object.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is not a JSON object, or larger than its writers make it.
    """
    if not path.is_file():
        hint = "get it from where the model came from"
        if path.name == "config.json" and (path.parent / _ADAPTER).is_file():
            hint = f"{_ADAPTER} is of an adapter: merge that into its model, and give the result"
        raise MissingFileError(f"no {path.name} in {path.parent}; a model folder needs one: {hint}")
    content = read_bounded(path, most_bytes=most_bytes)
    if content.count(b"{") + content.count(b"[") > _MOST_CONTAINERS:
        raise InputError(
            f"{path} has more than {_MOST_CONTAINERS:,} lists and objects; get it again"
        )
    try:
        value = json.loads(content, object_hook=_number)
    except (ValueError, RecursionError) as error:
        hint = "get it again"
        if content.startswith(LFS_POINTER):
            hint = "it is Git LFS's pointer to the file: run git lfs pull"
        raise InputError(f"{path} is not JSON: {one_line(error)}; {hint}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _number(value: JsonObject) -> Any:
    """transformers writes infinity as an object, because JSON lacks it."""
    match value:
        case {"__float__": "Infinity" | "-Infinity" | "NaN" as text} if len(value) == 1:
            return float(text)
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, every one of them present.

    As in transformers, a file that `config.json` names is taken first, and a single file before an
    index of several.

    Raises:
      FileNotFoundError: there are no weights, or a shard that the index names is missing.
      InputError: an adapter lies beside them, with which peft would import modules that it names;
        `config.json` names a file of another kind, or outside the folder; or shards hold
        other tensors than their index says.
    """
    if (adapter := folder / _ADAPTER).is_file():
        raise InputError(
            f"{adapter} is of an adapter, which is not applied: merge it into the model, or move "
            "the file away"
        )
    single, index = _named_weights(folder)
    if (folder / single).is_file():
        return [folder / single]
    if (folder / index).is_file():
        places = _places(folder / index)
        names = sorted(set(places.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise MissingFileError(
                f"{folder} lacks {len(missing)} of {len(names)} shards: {', '.join(missing[:3])}; "
                "fetch them from where the others came from"
            )
        files = [folder / name for name in names]
        _check_places(folder / index, places, files)
        return files
    hint = "; get the weights from where the model came from"
    if any(folder.glob("*.bin")):
        hint = "; .bin files are pickles, which are never opened: convert them to safetensors"
    names = " or ".join(filter(None, (single, index)))
    raise MissingFileError(f"no {names} in {folder}{hint}")


def _named_weights(folder: Path) -> tuple[str, str]:
    """Names of the single file and of the index that may hold the weights, "" for neither."""
    path = folder / "config.json"
    name = read_json(path).get("transformers_weights") if path.is_file() else None
    if name is None:
        return SINGLE, INDEX
    if not isinstance(name, str) or Path(name).name != name or "safetensors" not in name:
        raise _wrong("transformers_weights", name, "a safetensors file of its folder")
    return ("", name) if name.endswith(".index.json") else (name, "")


def _places(index: Path) -> dict[str, str]:
    """The files of an index's tensors, which lie in its folder."""
    weight_map = read_json(index, most_bytes=MOST_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map that names files; fetch it again")
    places = {tensor: str(name) for tensor, name in weight_map.items()}
    names = set(places.values())
    outside = sorted(n for n in names if Path(n).name != n or not n.endswith(".safetensors"))
    if outside:
        raise InputError(
            f"{index} names {outside[0]!r:.100}, which is not a safetensors file of its folder; "
            "get the index from its source again"
        )
    return places


def _check_places(index: Path, places: Mapping[str, str], files: Iterable[Path]) -> None:
    """Refuses tensors that are not in their file, or in another one too."""
    missing = set(places)
    for path in files:
        with open_safetensors(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (a safe_open is not a mapping)
                if (place := places.get(name, path.name)) != path.name:
                    raise InputError(
                        f"{path} has {printable(name, 80)}, which is in {place} by {index.name}; "
                        "get the folder again"
                    )
                missing.discard(name)
    if missing:
        name = min(missing)
        raise InputError(
            f"{index.parent / places[name]} lacks {printable(name, 80)}, which is in it by "
            f"{index.name}; get the folder again"
        )


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the folder as (name, tensor mapped from the file).

    Raises:
      FileNotFoundError: files are missing.
      ValueError: a file is not whole.
    """
    for path in weight_files(folder):
        with open_safetensors(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (a safe_open is not a mapping)
                yield name, file.get_tensor(name)
