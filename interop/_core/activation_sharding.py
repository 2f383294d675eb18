"""States to XLA that activations are split over a mesh as the rows of their batch are.

Where weights are split over both `fsdp` and `tensor`, XLA has two ways to multiply: gather a weight
over `fsdp`, or multiply its parts and sum the activations. It takes the second for a transformer,
which sends several times as much. MaxText states how activations are split for that
(`activation_batch` of its rules). Here every result of a module whose first axis is as long as the
batch is stated to be split over the rows' axes; XLA chooses for its other axes. Values do not
depend on it: where that axis is another one of the same length, only time is lost.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace_scope import Region
from jaxsr.interop.annotations import PyTree


class _Split(NamedTuple):
    mesh: Mesh
    axes: Sequence[str]
    rows: int


# Per thread and per context, as the watchers of `hooks.py`.
_SPLIT: ContextVar[_Split | None] = ContextVar("jaxsr_interop_split_rows", default=None)


@contextmanager
def split_rows(mesh: Mesh, axes: Sequence[str], rows: int) -> Generator[None]:
    """Every `JaxModule.apply` traced in this block states the sharding of its modules' results.

    Args:
      mesh: where the program will run.
      axes: those that the batch's rows are split over.
      rows: of the batch. Where the devices of `axes` cannot share them equally, the sharding is
        left open.
    """
    devices = 1
    for axis in axes:
        devices *= mesh.shape[axis]
    token = _SPLIT.set(_Split(mesh, axes, rows) if devices > 1 and rows % devices == 0 else None)
    try:
        yield
    finally:
        _SPLIT.reset(token)


@contextmanager
def stating_results(module: nn.Module) -> Generator[None]:
    """In this block, the results of all submodules get the sharding that `split_rows` asks for."""
    split = _SPLIT.get()
    if split is None:
        yield
        return

    def state(_: nn.Module, inputs: tuple, outputs: PyTree) -> None:
        del inputs
        for tensor in pytree.tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor):
                _state(tensor, split)

    handles = [sub.register_forward_hook(state) for sub in module.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _state(tensor: torch.Tensor, split: _Split) -> None:
    """Replaces the value of a tensor by the same one with its sharding stated."""
    if not isinstance(tensor, JaxTensor) or tensor.cell.input_free:
        return  # a weight, a mask or a table, whatever its first axis
    has_rows = tensor.dim() > 0 and tensor.shape[0] == split.rows
    if not has_rows or tensor.deferred is not None or tensor.selection is not None:
        return
    rest = [PartitionSpec.UNCONSTRAINED] * (tensor.dim() - 1)
    sharding = NamedSharding(split.mesh, PartitionSpec(tuple(split.axes), *rest))
    # The value is equal: no write that others would have to see, only another array for the same.
    if tensor.view_of is not None:
        stated = jax.lax.with_sharding_constraint(tensor.array(), sharding)
        tensor.cache = (tensor.cell.version, Region.current(), stated)
    elif tensor.cell.region is Region.current():
        tensor.cell.value = jax.lax.with_sharding_constraint(tensor.cell.value, sharding)
