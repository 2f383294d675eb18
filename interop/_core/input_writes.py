"""Writes into a method's arguments, which stay in torch and are lost where arrays were given."""

from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree


class InputVersion(NamedTuple):
    """An argument's tensor before a call, and how often it had been written."""

    name: str
    tensor: torch.Tensor
    writes: int


def input_versions(arguments: Any) -> list[InputVersion]:
    """Every tensor of nested arguments, named by its last key, such as `'x'`."""
    leaves, _ = pytree.tree_flatten_with_path(arguments)
    return [
        InputVersion(pytree.keystr(path[-1:])[1:-1], leaf, leaf._version)
        for path, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    ]


def written_input(before: list[InputVersion], arguments: Any) -> str | None:
    """The name of the first argument that a call has written or replaced since `before`."""
    now = {id(entry.tensor): entry for entry in input_versions(arguments)}
    for name, tensor, writes in before:
        entry = now.get(id(tensor))
        if entry is None or entry.writes != writes:
            return name
    return None
