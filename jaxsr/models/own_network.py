"""Networks of users, from the files that `jaxsr.train` exported.

Metadata of an exported file say what builds its network: `builder` (a name for
`jaxsr.models.build`) and `builder_args`; and what it is for: `task`, which a task of the user's
leaves out, with `channels`, `value_range` and `multiple`, or with `input`.

A weights file may come from anyone, so it runs no code of its choice. A builder of a library is
one of a fixed list. A builder of the user's is called only where the file lies in its run folder,
whose sealed `config.json` names the same builder, and only where it is a subclass of
`torch.nn.Module` or is defined below the current folder. Else the error states the command that
names the class on the command line.
"""

import inspect
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from jaxsr.errors import InputError, MissingFileError, UserError
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.interop.sealed_json import unseal
from jaxsr.models.build import (
    BUILDS_FROM_OPTIONS,
    LIBRARIES,
    build_network,
    import_attribute,
)
from jaxsr.models.registry import Kind, LoadedModel, Weights
from jaxsr.models.weight_files import load_weights

KINDS: Mapping[str, Kind] = {"super-resolution": "restorer", "detection": "detector"}
"""What a network of each task is."""


def load_own_network(
    path: Path, weights: Weights, metadata: Mapping[str, Any], *, name: str
) -> LoadedModel:
    """The network of an exported file.

    Args:
      path: the file.
      weights: its tensors.
      metadata: what it says of itself, with `builder`.
      name: by which the user named it.

    Raises:
      InputError: the metadata are damaged, the builder may not be called or fails, or the weights
        do not fit.
    """
    uses = stated_uses(path, metadata)
    builder, arguments = metadata["builder"], metadata.get("builder_args", {})
    if not (isinstance(builder, str) and isinstance(arguments, dict)):
        raise _unknown_metadata(path)
    if builder.partition(":")[0] not in LIBRARIES:
        _check_builder(path, builder, arguments)
    network = build_network(builder, arguments)
    if "task" in metadata:  # by --network, which trains float64 parameters and buffers in float32
        network.float()
    load_weights(network, weights, source=str(path))
    return LoadedModel(
        network=network.cpu().eval(), name=name, family=type(network).__name__, **uses
    )


def stated_uses(path: Path, metadata: Mapping[str, Any]) -> JsonObject:
    """What an exported file says of its network's use, as fields of `LoadedModel`.

    Args:
      path: the file, for errors.
      metadata: what it says of itself; nothing is read of files without `builder`.

    Raises:
      InputError: the metadata are damaged.
    """
    if "builder" not in metadata:
        return {}
    task = metadata.get("task")
    kind = KINDS.get(str(task))
    channels, multiple = metadata.get("channels"), metadata.get("multiple", 1)
    try:
        low, high = map(float, metadata.get("value_range", [0.0, 1.0]))
    except (TypeError, ValueError):
        raise _unknown_metadata(path) from None
    is_valid = isinstance(channels, int | None) and isinstance(multiple, int) and multiple >= 1
    if not is_valid or (kind is None and task is not None):
        raise _unknown_metadata(path)
    return {
        "kind": kind,
        "value_range": (low, high),
        "channels": channels,
        "side_multiple": multiple,
        "metadata": metadata,
    }


def _unknown_metadata(path: Path) -> InputError:
    return InputError(
        f"{path} has metadata that jaxsr.train does not write (task, builder, builder_args, "
        "channels, value_range or multiple); export it again"
    )


def _check_builder(path: Path, builder: str, arguments: Mapping[str, Any]) -> None:
    """Raises `InputError` where this builder may not be called; see the module's docstring."""
    options = f" --model-options {shlex.quote(json.dumps(arguments))}" if arguments else ""
    workaround = (
        f"where you trust it, name the class: --model {builder}{options} "
        f"--weights {shlex.quote(str(path))}"
    )
    if builder not in _run_strings(path.parent):
        raise InputError(
            f"{path} names the builder {builder}, and a weights file runs no code of its choice "
            f"outside of its run folder; {workaround}"
        )
    attribute = import_attribute(builder, option="--model")
    if inspect.isclass(attribute) and issubclass(attribute, nn.Module):
        return
    # Of a function or task only: objects may be called, and have no file of their own.
    is_task = inspect.isclass(attribute) and hasattr(attribute, BUILDS_FROM_OPTIONS)
    has_source = inspect.isfunction(attribute) or is_task
    source = inspect.getsourcefile(attribute) if has_source else None
    if source is None or not Path(source).resolve().is_relative_to(Path.cwd()):
        raise InputError(
            f"{path} names the builder {builder}, which is neither a torch.nn.Module nor defined "
            f"below the current folder; {workaround}"
        )


def _run_strings(folder: Path) -> set[str]:
    """All strings in a run folder's config.json; none where it is absent or damaged."""
    config = folder / "config.json"
    try:
        return {*_strings(unseal(read_bounded(config), source=config))}
    except (UserError, MissingFileError, OSError):
        return set()


def _strings(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for value in content.values() if isinstance(content, dict) else ():
        yield from _strings(value)
