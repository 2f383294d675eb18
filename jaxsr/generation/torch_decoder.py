"""Generation in plain PyTorch with the same module: the reference, on CPU or CUDA.

One Python step per token. Drawn tokens come from the same keys and the same arithmetic as in the
JAX engine (`jaxsr.generation.sampling`, on the CPU), so that two engines differ only by what the
network computes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from jaxsr.generation.decoder import UNFILLED, Engine, Snapshot, from_slot_zero
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, cache_slots
from jaxsr.generation.sampling import choose_on_host
from jaxsr.models.llama.network import CausalLM


class TorchBatch:
    """A batch under way, its tensors on the engine's device."""

    cache: list[tuple[torch.Tensor, torch.Tensor]]
    filled: torch.Tensor
    first: torch.Tensor | None
    token: torch.Tensor
    done: torch.Tensor
    outputs: np.ndarray
    requests: np.ndarray
    options: SamplingOptions
    stop_ids: tuple[int, ...]


class TorchEngine(Engine):
    """Runs a Llama-family network in torch.

    Args:
      network: the module with its weights; moved to `device`.
      device: `cpu`, `cuda` or any torch device.
    """

    def __init__(self, network: CausalLM, *, device: str = "cpu") -> None:
        self.network = network.eval().to(device)
        self.config = network.config
        self.torch_device = torch.device(device)
        kind = "cpu" if device == "cpu" else torch.cuda.get_device_name(self.torch_device)
        self.device = f"{device}: {kind} (torch)"
        self.compile_s = 0.0

    @torch.no_grad()
    def _start(
        self,
        tokens: np.ndarray,
        length: np.ndarray,
        requests: np.ndarray,
        options: SamplingOptions,
        stop_ids: tuple[int, ...],
        slots: int,
        padding: Padding,
    ) -> TorchBatch:
        count = tokens.shape[1]
        length_B = torch.from_numpy(length).long().to(self.torch_device)
        tokens_BT = torch.from_numpy(tokens).long().to(self.torch_device)
        batch = TorchBatch()
        left = padding == "left"
        batch.first = count - length_B if left else None
        read_B = torch.full_like(length_B, count - 1) if left else length_B - 1
        logits_BV, new = self.network(tokens_BT, first_B=batch.first, read_B=read_B)
        batch.cache = [(_grown(k, slots), _grown(v, slots)) for k, v in new]
        batch.filled = torch.full_like(length_B, count) if left else length_B.clone()
        batch.requests, batch.options, batch.stop_ids = requests, options, stop_ids
        batch.outputs = np.zeros((len(length), 0), np.int32)
        batch.done = torch.zeros(len(length), dtype=torch.bool, device=self.torch_device)
        batch.token = torch.zeros_like(length_B)
        self._take(batch, logits_BV)
        return batch

    def _take(self, batch: TorchBatch, logits_BV: torch.Tensor) -> None:
        """Chooses each row's next token and notes it."""
        if batch.options.greedy:
            chosen = logits_BV.argmax(-1)
        else:
            logits, number = logits_BV.cpu().numpy(), batch.outputs.shape[1]
            drawn = choose_on_host(logits, batch.requests, number, batch.options)
            chosen = torch.from_numpy(drawn.astype(np.int64)).to(self.torch_device)
        batch.token = torch.where(batch.done, batch.token, chosen)
        column = torch.where(batch.done, UNFILLED, batch.token).cpu().numpy().astype(np.int32)
        batch.outputs = np.concatenate((batch.outputs, column[:, None]), 1)
        if batch.stop_ids:
            stop = torch.tensor(batch.stop_ids, device=self.torch_device)
            batch.done = batch.done | torch.isin(batch.token, stop)

    @torch.no_grad()
    def advance(self, batch: TorchBatch, steps: int) -> None:
        rows = torch.arange(len(batch.filled), device=self.torch_device)
        for _ in range(steps):
            if self.finished(batch):
                return
            logits_BV, new = self.network(
                batch.token[:, None],
                batch.cache,
                filled_B=batch.filled,
                first_B=batch.first,
                read_B=torch.zeros_like(batch.filled),
            )
            for (keys, values), (k, v) in zip(batch.cache, new, strict=True):
                keys[rows, :, batch.filled] = k[:, :, 0]
                values[rows, :, batch.filled] = v[:, :, 0]
            batch.filled = batch.filled + ~batch.done
            self._take(batch, logits_BV)

    def outputs(self, batch: TorchBatch) -> np.ndarray:
        return batch.outputs

    def finished(self, batch: TorchBatch) -> bool:
        return batch.outputs.shape[1] >= batch.options.max_new_tokens or bool(batch.done.all())

    def snapshot(self, batch: TorchBatch) -> Snapshot:
        filled = batch.filled.cpu().numpy()
        first = np.zeros_like(filled) if batch.first is None else batch.first.cpu().numpy()

        def host(cache: torch.Tensor) -> np.ndarray:
            return from_slot_zero(cache.float().cpu().numpy(), first, filled)

        return Snapshot(
            keys=[host(k) for k, _ in batch.cache],
            values=[host(v) for _, v in batch.cache],
            filled=(filled - first).astype(np.int32),
            token=batch.token.cpu().numpy().astype(np.int32),
            done=batch.done.cpu().numpy(),
            outputs=batch.outputs,
            requests=batch.requests,
        )

    def resume(
        self, snapshot: Snapshot, options: SamplingOptions, *, stop_ids: Sequence[int] = ()
    ) -> TorchBatch:
        left = max(options.max_new_tokens - snapshot.outputs.shape[1], 1)
        slots = cache_slots(snapshot.keys[0].shape[2], left)
        dtype = self.network.model.norm.weight.dtype

        def placed(array: np.ndarray) -> torch.Tensor:
            tensor = torch.from_numpy(np.asarray(array, np.float32)).to(self.torch_device, dtype)
            return _grown(tensor, slots)

        def row(array: np.ndarray, kind: Any) -> torch.Tensor:
            return torch.from_numpy(array.astype(kind)).to(self.torch_device)

        batch = TorchBatch()
        pairs = zip(snapshot.keys, snapshot.values, strict=True)
        batch.cache = [(placed(k), placed(v)) for k, v in pairs]
        batch.filled, batch.first = row(snapshot.filled, np.int64), None
        batch.token = row(snapshot.token, np.int64)
        batch.done = row(snapshot.done | np.isin(snapshot.token, stop_ids), bool)
        batch.outputs, batch.requests = snapshot.outputs, snapshot.requests
        batch.options, batch.stop_ids = options, tuple(stop_ids)
        return batch


def _grown(cache: torch.Tensor, slots: int) -> torch.Tensor:
    """The cache with zeros up to `slots`."""
    return torch.nn.functional.pad(cache, (0, 0, 0, slots - cache.shape[2]))
