"""Networks of users, from the files that `jaxsr.train` exported.

Metadata of an exported file name the builder of its network: `builder` (a name for
`jaxsr.models.build`) and `builder_args`; and what it is for: `task`, which a task of the user's
leaves out, with `channels`, `value_range` and `multiple`, or with `input`.

A weights file may come from anyone, so it runs no code of its choice. A builder of a library is
one of a fixed list, and its arguments are data (`jaxsr.models.named_code`). A builder of the user's
is called only where a person agrees with `--trust-builder`, where its module lies outside the
file's folder, and where it is a subclass of `torch.nn.Module` or defined below the current folder.
Else the error states the command that names the class on the command line.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.build import LIBRARIES, build_network, import_attribute
from jaxsr.models.build_bound import bounded_build
from jaxsr.models.builder_arguments import check_library_arguments, check_library_entry
from jaxsr.models.claims import check_claims
from jaxsr.models.named_code import (
    check_network_arguments,
    check_network_code,
    code_names,
    lies_in,
)
from jaxsr.models.registry import Kind, LoadedModel, Weights
from jaxsr.models.weight_files import load_weights

KINDS: Mapping[str, Kind] = {"super-resolution": "restorer", "detection": "detector"}
"""The kind of network that each task trains."""
_LARGEST_MULTIPLE = 2**16
"""Pixels. Images are padded to a multiple, and a larger one is damage."""
_LONGEST_OPTIONS = 400
"""Characters of a builder's arguments that an error repeats."""


def load_own_network(
    path: Path,
    weights: Weights,
    metadata: Mapping[str, Any],
    *,
    name: str,
    trust_builder: bool = False,
) -> LoadedModel:
    """The network of an exported file.

    Args:
      path: the file.
      weights: its tensors.
      metadata: of the file, with `builder`.
      name: by which the user named it.
      trust_builder: the user agrees that the builder of the user's that the file names is called.

    Raises:
      InputError: the metadata are damaged, the builder may not be called or fails, or the weights
        do not fit.
    """
    uses = stated_uses(path, metadata)
    builder, arguments = metadata["builder"], metadata.get("builder_args", {})
    if not (isinstance(builder, str) and isinstance(arguments, dict)):
        raise _unknown_metadata(path)
    size = path.stat().st_size
    is_library = builder.partition(":")[0] in LIBRARIES
    way_out = "name the network yourself: --model {} --model-options JSON --weights {}".format(
        "library:NAME" if is_library else builder, path
    )
    check_claims(
        {"builder_args": arguments},
        tensors=len(weights),
        size=size,
        source=path,
        least=1024 if is_library else 2**20,  # what a number of the user's means, nobody knows
        way_out=f"get it again, or {way_out}",
    )
    if is_library:
        check_library_entry(path, builder, way_out=way_out)
        check_library_arguments(path, arguments, way_out=way_out)
        with bounded_build(path, size=size, tensors=len(weights), way_out=way_out):
            network = build_network(builder, arguments)
    else:
        _check_builder(path, builder, arguments, trusted=trust_builder)
        network = build_network(builder, arguments)
    if "task" in metadata:  # by --network, which trains float64 parameters and buffers in float32
        network.float()
    load_weights(network, weights, source=str(path))
    return LoadedModel(
        network=network.cpu().eval(), name=name, family=type(network).__name__, **uses
    )


def stated_uses(path: Path, metadata: Mapping[str, Any]) -> JsonObject:
    """An exported file's statements on its network's use, as fields of `LoadedModel`.

    Args:
      path: the file, for errors.
      metadata: of the file; ignored without `builder`.

    Raises:
      InputError: the metadata are damaged.
    """
    if "builder" not in metadata:
        return {}
    task = metadata.get("task")
    kind = KINDS.get(str(task))
    channels, multiple = metadata.get("channels"), metadata.get("multiple", 1)
    value_range = metadata.get("value_range", [0.0, 1.0])
    try:
        low, high = map(float, value_range)
    except (TypeError, ValueError, OverflowError):
        raise _unknown_metadata(path) from None
    counts = [multiple, 1 if channels is None else channels]
    is_valid = isinstance(value_range, list) and all(type(n) is int and n >= 1 for n in counts)
    is_valid = is_valid and multiple <= _LARGEST_MULTIPLE
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


def _check_builder(
    path: Path, builder: str, arguments: Mapping[str, Any], *, trusted: bool
) -> None:
    """Raises `InputError` where this builder may not be called; see the module's docstring."""
    options = f" --model-options {shlex.quote(json.dumps(arguments))}" if arguments else ""
    by_name = f"--model {builder}{options} --weights {shlex.quote(str(path))}"
    what = f"{path} names the builder {builder}"
    names = (builder, *code_names(arguments))  # a task's options may name its network
    if inside := next((name for name in names if lies_in(name, path.parent)), None):
        raise InputError(
            f"{path} names the builder {inside}, whose code lies in the same folder, and a weights "
            f"file runs no code of its choice; where you trust it, name the class: {by_name}"
        )
    if not trusted:
        # A task has all options of its run.
        named = f", or name the class: {by_name}" if len(options) < _LONGEST_OPTIONS else ""
        raise InputError(
            f"{what}, and a weights file runs no code of its choice; where you trust it, add "
            f"--trust-builder{named}"
        )
    check_network_arguments(path, arguments, way_out=lambda _: f"name the class: {by_name}")
    try:
        check_network_code(import_attribute(builder, option="--model"), what)
    except InputError as error:
        raise InputError(f"{error}; where you trust it, name the class: {by_name}") from error
