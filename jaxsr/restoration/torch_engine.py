"""Runs batches of tiles on plain torch: the comparison, and the host's part in the JAX engine."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

Collect = Callable[[], np.ndarray]


class TorchEngine:
    """Tiles in, tiles out, on the CPU or a CUDA device.

    Args:
      network: evaluated as it is; not changed.
      value_range: intensities that the network's 0…1 stands for.
      ensemble: average over the eight flips and turns.
      device: `cpu`, `cuda` or any torch device.
      dtype: `float32` or `bfloat16`.
      compiled: through `torch.compile`.
      channels_last: activations NHWC in memory.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        value_range: tuple[float, float] = (0.0, 1.0),
        ensemble: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        compiled: bool = False,
        channels_last: bool = False,
    ) -> None:
        self.device, self._dtype = torch.device(device), getattr(torch, dtype)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self._layout = layout
        plain = self.device.type == "cpu" and self._dtype == torch.float32 and not channels_last
        if not plain:  # `to` works in place
            import copy

            network = copy.deepcopy(network)
        network = network.to(self.device, self._dtype).eval()
        if channels_last:
            network = network.to(memory_format=layout)  # type: ignore[call-overload]
        self._network = network
        self._call = torch.compile(self._network) if compiled else self._network
        self._low, high = value_range
        self._span = high - self._low
        self._ensemble = ensemble
        self.programs: set[tuple[int, ...]] = set()

    def submit(self, tiles: np.ndarray) -> Collect:
        """Starts a batch (n, c, h, w) in [0, 1]; calling the result waits for the answer."""
        with torch.inference_mode():
            batch = torch.from_numpy(tiles).to(self.device, non_blocking=True)
            if not self._ensemble:
                result = self._run(batch)
            else:
                turned = [_turn(self._run(_turn(batch, k)), k, back=True) for k in range(8)]
                result = torch.stack(turned).mean(0)
        return lambda: result.cpu().numpy()

    def _run(self, batch: Tensor) -> Tensor:
        x = (batch * self._span + self._low).to(self._dtype)
        y = self._call(x.contiguous(memory_format=self._layout))
        return (y.float() - self._low) / self._span


def _turn(images: Tensor, k: int, *, back: bool = False) -> Tensor:
    """The k-th of the eight symmetries of the square, or its inverse."""
    if back:
        images = torch.rot90(images, -(k % 4), (-2, -1))
        return images.flip(-1) if k >= 4 else images
    images = images.flip(-1) if k >= 4 else images
    return torch.rot90(images, k % 4, (-2, -1))
