"""Runs batches on plain torch, on the CPU or a CUDA device."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from jaxsr.interop.annotations import PyTree
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode, is_placed
from jaxsr.models.outputs import answer_of
from jaxsr.runtime.runner import Around, Collect, only_network


class TorchRunner:
    """A network in plain torch; see `jaxsr.runtime.runner.Runner`.

    Args:
      network: unchanged, except for evaluation mode.
      device: `cpu`, `cuda` or any torch device.
      dtype: dtype of the network's computation, `float32` or `bfloat16`.
      around: computation around the network.
      compiled: use `torch.compile`; a string is its mode.
      channels_last: keep activations NHWC in memory.
      inputs: further arguments of the network, after the batch.
      evaluating: prepares a network for a run without changing or moving it, for networks in
        training.
    """

    compiles = False
    devices = 1

    def __init__(
        self,
        network: nn.Module,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        around: Around = only_network,
        compiled: bool | str = False,
        channels_last: bool = False,
        inputs: tuple = (),
        evaluating: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self._device, self._dtype = torch.device(device), getattr(torch, dtype)
        self.platform = self._device.type
        self.programs: set[tuple[int, ...]] = set()
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._around, self._inputs = around, inputs
        self._evaluating = evaluating or torch.inference_mode
        self.network: Any = network
        self._call: Any = network
        if evaluating is not None:
            return
        if channels_last or not is_placed(network, self._device, self._dtype):  # `to` is in place
            network = copy_module(network)
        network = in_mode(network.to(self._device, self._dtype))
        if channels_last:
            network = network.to(memory_format=self._layout)  # type: ignore[call-overload]
        mode = compiled if isinstance(compiled, str) else None
        self.network = network
        self._call = torch.compile(network, mode=mode) if compiled else network

    def submit(self, batch: np.ndarray, **named: np.ndarray) -> Collect:
        """See `Runner.submit`."""
        self.programs.add(batch.shape)
        with self._evaluating():
            options = {name: self._placed(array) for name, array in named.items()}

            def apply(x: Tensor) -> Tensor:
                x = x.to(self._dtype).contiguous(memory_format=self._layout)
                return answer_of(self._call(x, *self._inputs, **options)).float()

            result = self._around(torch, apply, self._placed(batch)).detach()
        return lambda: result.cpu().numpy()

    def run(self, method: str, batch: Mapping[str, np.ndarray], *, seed: int) -> PyTree:
        """See `Runner.run`."""
        devices = [self._device] if self.platform == "cuda" else []
        placed = {name: self._placed(array) for name, array in batch.items()}
        with self._evaluating(), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            result = getattr(self.network, method)(placed)
        return pytree.tree_map_only(Tensor, lambda t: t.detach().cpu().numpy(), result)

    def _placed(self, array: np.ndarray) -> Tensor:
        # A copy: networks may write into their inputs.
        return torch.from_numpy(np.array(array)).to(self._device, non_blocking=True)
