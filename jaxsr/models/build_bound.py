"""Bounds the memory and the time that a network's own code takes to build it.

Numbers in a file claim any size of a network: a width, a window, a ratio of two widths, positions,
a list in a list. What the code then computes is counted instead, whatever the number's name.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from jaxsr.errors import InputError

_FREE_BYTES = 2**28
"""Tables and temporary values that networks of any size may have."""
_BYTES_A_BYTE = 24
"""Networks drop layers that they made, and float32 takes the double of a file of float16."""
_FREE_STEPS = 100_000
_STEPS_A_TENSOR = 200
"""Operations that give a tensor its first values."""
_BYTES_OF_OBJECT = 512
"""Bytes of a tensor beside its values."""


@contextmanager
def bounded_build(
    source: Path, *, size: int, tensors: int | None = None, way_out: str = "get it again"
) -> Generator[None]:
    """Refuses operations of torch, before they run, whose results are far larger than the weights.

    Args:
      source: the file that says how the network is built, for errors.
      size: bytes of its weights, as float16 or larger.
      tensors: how many they are. None: the steps are not counted.
      way_out: what a person may do.

    Raises:
      InputError: the results inside it take more bytes or steps than such a network's do.
    """
    with _Bounded(source, size, tensors, way_out):
        yield


class _Bounded(TorchDispatchMode):
    def __init__(self, source: Path, size: int, tensors: int | None, way_out: str) -> None:
        super().__init__()
        self.bytes_left = _FREE_BYTES + _BYTES_A_BYTE * size
        self.steps_left = _FREE_STEPS + _STEPS_A_TENSOR * tensors if tensors is not None else None
        self.refusal = (
            f"{source} claims a network that takes far more {{}} to build than its {size:,} bytes "
            f"of weights do; {way_out}"
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.unbind.int:  # as `for` does
            dim = args[1] if len(args) > 1 else 0
            self.bytes_left -= _BYTES_OF_OBJECT * args[0].shape[dim]
        elif any(result.alias_info is None for result in func._schema.returns):
            self.bytes_left -= _bytes_of_results(func, args, kwargs)
        if self.bytes_left < 0:
            raise InputError(self.refusal.format("memory"))
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise InputError(self.refusal.format("time"))
        return func(*args, **kwargs)


def _bytes_of_results(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """Bytes of an operation's new tensors, found on the meta device."""
    meta = torch.device("meta")
    leaves = tree_leaves((args, kwargs))
    if any(leaf == meta or (isinstance(leaf, Tensor) and leaf.is_meta) for leaf in leaves):
        return 0
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to(meta), (args, kwargs))
    args, kwargs = tree_map_only(torch.device, lambda _: meta, (args, kwargs))
    try:
        results = func(*args, **{n: v for n, v in kwargs.items() if n != "generator"})
    except Exception:  # sizes depend on values, or the operation itself raises the same
        return 0
    return sum(part.nbytes for part in tree_leaves(results) if isinstance(part, Tensor))
