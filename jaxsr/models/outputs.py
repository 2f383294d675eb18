"""Outputs of user-supplied networks: a tensor, a list of them, or one in a container.

The container is a dictionary or a dataclass, whose other values are None; those of a list or tuple
that are None do not count.

Works for torch tensors and JAX arrays alike.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxsr.errors import InputError
from jaxsr.interop.annotations import PyTree


def tensors_of(output: PyTree, *, name: str = "the network") -> list:
    """The tensors of a network's output, in its order.

    Args:
      output: a tensor, a list or tuple of tensors and None, or a mapping (`ModelOutput`) or
        dataclass of one tensor.
      name: of the network, for errors.

    Raises:
      InputError: it is something else.
    """
    if _is_tensor(output):
        return [output]
    if dataclasses.is_dataclass(output) and not isinstance(output, (Mapping, type)):
        parts = {part.name: getattr(output, part.name) for part in dataclasses.fields(output)}
    else:
        parts = output
    if isinstance(parts, Mapping):
        values = [value for value in parts.values() if value is not None]
        if len(values) == 1 and _is_tensor(values[0]):
            return values
        names = ", ".join(map(str, parts))
        raise InputError(
            f"{name} returned a {type(output).__name__} of {names}; wrap it in a module that "
            "returns the one that is its answer"
        )
    if isinstance(output, (list, tuple)):
        values = [value for value in output if value is not None]
        if values and all(map(_is_tensor, values)):
            return values
    raise InputError(
        f"{name} returned a {type(output).__name__}, not a tensor; wrap it in a module that "
        "returns the one that is its answer"
    )


def answer_of(output: PyTree, *, name: str = "the network") -> Any:
    """The tensor that a network answers with: the first of the largest, where it gives several.

    Images and maps, (n, c, h, w), come before features of fewer axes, whose sides may be larger.

    Raises:
      InputError: see `tensors_of`.
    """
    return max(tensors_of(output, name=name), key=lambda one: (len(one.shape), one.shape[-2:]))


def _is_tensor(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
