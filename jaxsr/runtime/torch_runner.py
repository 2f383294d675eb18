"""Runs batches on plain torch, on the CPU or a CUDA device."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode
from jaxsr.models.outputs import answer_of
from jaxsr.runtime.runner import Around, Collect, only_network


class TorchRunner:
    """A network in plain torch; see `jaxsr.runtime.runner.Runner`.

    Args:
      network: evaluated as it is; not changed, but for evaluation mode.
      device: `cpu`, `cuda` or any torch device.
      dtype: of the network's computation, `float32` or `bfloat16`.
      around: what is computed around the network.
      compiled: through `torch.compile`; a name is its mode.
      channels_last: activations NHWC in memory.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        around: Around = only_network,
        compiled: bool | str = False,
        channels_last: bool = False,
    ) -> None:
        self._device, self._dtype = torch.device(device), getattr(torch, dtype)
        self.platform = self._device.type
        self.programs: set[tuple[int, ...]] = set()
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._around = around
        plain = self.platform == "cpu" and dtype == "float32" and not channels_last
        if not plain:  # `to` works in place
            network = copy_module(network)
        network = in_mode(network.to(self._device, self._dtype))
        if channels_last:
            network = network.to(memory_format=self._layout)  # type: ignore[call-overload]
        mode = compiled if isinstance(compiled, str) else None
        self._call: Any = torch.compile(network, mode=mode) if compiled else network

    def submit(self, batch: np.ndarray, **named: np.ndarray) -> Collect:
        """See `Runner.submit`."""
        self.programs.add(batch.shape)

        def place(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self._device, non_blocking=True)

        with torch.inference_mode():
            options = {name: place(array) for name, array in named.items()}

            def apply(x: Tensor) -> Tensor:
                x = x.to(self._dtype).contiguous(memory_format=self._layout)
                return answer_of(self._call(x, **options)).float()

            result = self._around(torch, apply, place(batch))
        return lambda: result.cpu().numpy()
