"""A module's arguments: the tensors among them by name, the rest as it is; outputs by name."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from jaxsr.errors import InputTypeError
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.host_arrays import to_numpy, to_torch


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Positional and keyword arguments, with the places of their tensors."""

    leaves: Sequence
    """Tensors on the CPU, and whatever else there is."""
    structure: pytree.TreeSpec
    names: Sequence[str]
    """Names of all leaves: `input`, `input[1]`, `attention_mask`."""

    @classmethod
    def of(cls, args: Sequence, kwargs: Mapping[str, PyTree]) -> "Arguments":
        """The arguments of `module(*args, **kwargs)`; NumPy arrays become tensors."""
        pairs, structure = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
        single = len(args) == 1 and "input" not in kwargs
        names = [_argument_name(path, single) for path, _ in pairs]
        leaves = [to_torch(v) if isinstance(v, np.ndarray) else v for _, v in pairs]
        for name, leaf in zip(names, leaves, strict=True):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
                raise InputTypeError(f"{name} is on the meta device; give a tensor with values")
        leaves = [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in leaves]
        return cls(leaves, structure, names)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        pairs = zip(self.names, self.leaves, strict=True)
        return {name: leaf for name, leaf in pairs if isinstance(leaf, torch.Tensor)}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors as NumPy arrays."""
        return {name: to_numpy(tensor) for name, tensor in self.tensors.items()}

    def call(self, values: Mapping[str, Any]) -> tuple[tuple, dict[str, PyTree]]:
        """The arguments with other values for their tensors."""
        pairs = zip(self.names, self.leaves, strict=True)
        return pytree.tree_unflatten([values.get(n, leaf) for n, leaf in pairs], self.structure)

    def replaced(self, values: Mapping[str, torch.Tensor]) -> "Arguments":
        """The same arguments with other tensors."""
        pairs = zip(self.names, self.leaves, strict=True)
        leaves = [values.get(n, leaf) for n, leaf in pairs]
        return Arguments(leaves, self.structure, self.names)

    @property
    def rows(self) -> int | None:
        """The batch: the first size that all tensors with axes share; None where they differ."""
        sizes = {tensor.shape[0] for tensor in self.tensors.values() if tensor.ndim}
        return sizes.pop() if len(sizes) == 1 else None

    def row(self, index: int) -> "Arguments":
        """One sample of the batch, as a batch of one."""
        return self.batched(lambda t: t[index : index + 1])

    def repeated(self, times: int) -> "Arguments":
        """The batch several times."""
        return self.batched(lambda t: torch.cat([t] * times))

    def batched(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Arguments":
        """The same arguments with another batch, as the function makes it of a tensor with axes."""
        return self.replaced({n: function(t) if t.ndim else t for n, t in self.tensors.items()})

    def describe(self, *, batch: str | None = None) -> str:
        """Names, dtypes and shapes: `input float32[2,3,32,32]`; `batch` replaces the first size."""

        def sizes(shape: torch.Size) -> str:
            return ",".join(map(str, [batch or shape[0], *shape[1:]] if shape else []))

        return ", ".join(
            f"{name} {str(t.dtype).removeprefix('torch.')}[{sizes(t.shape)}]"
            for name, t in self.tensors.items()
        )


def _argument_name(path: Any, single: bool) -> str:
    first, second, *rest = path
    positional = "input" if single else f"input[{getattr(second, 'idx', 0)}]"
    name = positional if first.idx == 0 else str(second.key)
    return name + pytree.keystr(tuple(rest))


def named_leaves(value: PyTree, kind: type | tuple[type, ...], name: str = "") -> dict[str, Any]:
    """The arrays in a module's output, by where they stand: `logits`, `[0]`, `hidden[2]`.

    Args:
      value: whatever forward returned.
      kind: of an array.
      name: of `value`; "" for the output itself.
    """
    if isinstance(value, kind):
        return {name or "output": value}
    if isinstance(value, Mapping):
        items = [(f"{name}.{k}" if name else str(k), v) for k, v in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{i}]", v) for i, v in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        prefix = f"{name}." if name else ""
        items = [(f"{prefix}{f.name}", getattr(value, f.name)) for f in fields]
    else:
        pairs = pytree.tree_flatten_with_path(value)[0]
        items = [(name + pytree.keystr(path), leaf) for path, leaf in pairs if path]
    leaves: dict[str, Any] = {}
    for label, inner in items:
        for place, leaf in named_leaves(inner, kind, label).items():
            same = sum(known.rstrip("'") == place for known in leaves)  # {"a.b": …, "a": {"b": …}}
            leaves[place + "'" * same] = leaf
    return leaves
