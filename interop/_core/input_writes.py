"""Writes into a method's arguments, which stay in torch and are lost where arrays were given."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree


class InputVersion(NamedTuple):
    """An argument's tensor before a call, and how often it had been written."""

    name: str
    tensor: torch.Tensor
    writes: int


def input_versions(arguments: Sequence[Any]) -> list[InputVersion]:
    """Every tensor of the arguments, by its key in an argument that is a dictionary, as `'x'`."""
    named = [
        (repr(key), value)
        for place, argument in enumerate(arguments)
        for key, value in (
            argument.items() if isinstance(argument, Mapping) else [(place, argument)]
        )
    ]
    return [
        InputVersion(name, leaf, leaf._version)
        for name, value in named
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


def written_input(before: list[InputVersion], arguments: Sequence[Any]) -> str | None:
    """The name of the first argument that a call has written or replaced since `before`."""
    now = {id(entry.tensor): entry for entry in input_versions(arguments)}
    for name, tensor, writes in before:
        entry = now.get(id(tensor))
        if entry is None or entry.writes != writes:
            return name
    return None
