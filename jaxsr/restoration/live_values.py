"""Counts the values that a network keeps at once: the memory cost of a tile."""

import collections
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from jaxsr.interop.mode_methods import DispatchMode, Options


class LiveValues:
    """Counts the values of tensors that are alive; views share their tensor's."""

    def __init__(self) -> None:
        self.most = 0
        """The largest count so far."""
        self._now = 0
        self._holders: collections.Counter[int] = collections.Counter()

    def hold(self, holder: Tensor, memory: Tensor) -> None:
        """Counts the values of `memory` for as long as any holder of them is alive."""
        storage = memory.untyped_storage()
        address, values = storage._cdata, storage.nbytes() // memory.element_size()
        self._now += 0 if self._holders[address] else values
        self._holders[address] += 1
        self.most = max(self.most, self._now)
        weakref.finalize(holder, self._release, address, values).atexit = False

    def _release(self, address: int, values: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self._now -= values


class _Counting(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live = LiveValues()

    def call(self, func: torch._ops.OpOverload, args: tuple, kwargs: Options) -> Any:
        result = func(*args, **kwargs)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.live.hold(tensor, tensor)
        return result


def most_live_values(network: nn.Module, picture: Tensor) -> int:
    """Values alive at once, at most, in a forward pass."""
    with torch.no_grad(), _Counting() as counting:
        network(picture)
    return counting.live.most
