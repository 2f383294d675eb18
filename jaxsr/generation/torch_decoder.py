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
from jaxsr.models.cache_entries import SLOTTED, has_slots
from jaxsr.models.llama.network import CausalLM


class TorchBatch:
    """A batch under way, its tensors on the engine's device."""

    cache: Any
    filled: torch.Tensor
    first: torch.Tensor | None
    token: torch.Tensor
    done: torch.Tensor
    outputs: np.ndarray
    requests: np.ndarray
    options: SamplingOptions
    stop_ids: tuple[int, ...]


class TorchEngine(Engine):
    """Runs a causal language model in torch.

    Args:
      network: the module with its weights; moved to `device`.
      device: `cpu`, `cuda` or any torch device.
    """

    def __init__(self, network: Any, *, device: str = "cpu") -> None:
        self.network = network.eval().to(device)
        self._calls = (
            _OwnCalls(network) if isinstance(network, CausalLM) else _LibraryCalls(network)
        )
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
        length_B = torch.from_numpy(length).long().to(self.torch_device)
        tokens_BT = torch.from_numpy(tokens).long().to(self.torch_device)
        batch = TorchBatch()
        logits_BV = self._calls.prefill(batch, tokens_BT, length_B, padding == "left", slots)
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
        for _ in range(steps):
            if self.finished(batch):
                return
            logits_BV = self._calls.decode(batch)
            batch.filled = batch.filled + ~batch.done
            self._take(batch, logits_BV)

    def outputs(self, batch: TorchBatch) -> np.ndarray:
        return batch.outputs

    def finished(self, batch: TorchBatch) -> bool:
        return batch.outputs.shape[1] >= batch.options.max_new_tokens or bool(batch.done.all())

    def snapshot(self, batch: TorchBatch) -> Snapshot:
        filled = batch.filled.cpu().numpy()
        first = np.zeros_like(filled) if batch.first is None else batch.first.cpu().numpy()

        def host(name: str, array: torch.Tensor) -> np.ndarray:
            values = array.float().cpu().numpy()
            return from_slot_zero(values, first, filled) if has_slots(name) else values

        return Snapshot(
            cache={name: host(name, t) for name, t in self._calls.entries(batch).items()},
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
        context = self.config.max_position_embeddings
        slots = cache_slots(int(snapshot.filled.max()), left, context=context)

        def row(array: np.ndarray, kind: Any) -> torch.Tensor:
            return torch.from_numpy(array.astype(kind)).to(self.torch_device)

        batch = TorchBatch()
        cache = {
            name: torch.from_numpy(np.asarray(array, np.float32)).to(
                self.torch_device, self.network.dtype
            )
            for name, array in snapshot.cache.items()
        }
        self._calls.resume(batch, cache, row(snapshot.filled, np.int64), slots)
        batch.token = row(snapshot.token, np.int64)
        batch.done = row(snapshot.done | np.isin(snapshot.token, stop_ids), bool)
        batch.outputs, batch.requests = snapshot.outputs, snapshot.requests
        batch.options, batch.stop_ids = options, tuple(stop_ids)
        return batch


class _OwnCalls:
    """Feeds a network of `jaxsr.models.llama`; its cache is a pair for each block."""

    def __init__(self, network: CausalLM) -> None:
        self.network = network

    def prefill(
        self,
        batch: TorchBatch,
        tokens_BT: torch.Tensor,
        length_B: torch.Tensor,
        left: bool,
        slots: int,
    ) -> torch.Tensor:
        count = tokens_BT.shape[1]
        batch.first = count - length_B if left else None
        read_B = torch.full_like(length_B, count - 1) if left else length_B - 1
        logits_BV, new = self.network(tokens_BT, first_B=batch.first, read_B=read_B)
        batch.cache = [(_grown(k, slots), _grown(v, slots)) for k, v in new]
        batch.filled = torch.full_like(length_B, count) if left else length_B.clone()
        return logits_BV

    def decode(self, batch: TorchBatch) -> torch.Tensor:
        rows = torch.arange(len(batch.filled), device=batch.filled.device)
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
        return logits_BV

    def entries(self, batch: TorchBatch) -> dict[str, torch.Tensor]:
        pairs = enumerate(batch.cache)
        return {
            f"layers.{i}.{name}": t
            for i, pair in pairs
            for name, t in zip(SLOTTED, pair, strict=True)
        }

    def resume(
        self, batch: TorchBatch, cache: dict[str, torch.Tensor], filled: torch.Tensor, slots: int
    ) -> None:
        layers = range(self.network.config.num_hidden_layers)
        batch.cache = [
            tuple(_grown(cache[f"layers.{i}.{name}"], slots) for name in SLOTTED) for i in layers
        ]
        batch.filled, batch.first = filled, None


class _LibraryCalls:
    """Feeds a network of `jaxsr.models.hugging_face`; all rows are filled up to the same slot."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def prefill(
        self,
        batch: TorchBatch,
        tokens_BT: torch.Tensor,
        length_B: torch.Tensor,
        left: bool,
        slots: int,
    ) -> torch.Tensor:
        count = tokens_BT.shape[1]
        batch.first = count - length_B
        if not left:  # a recurrence must end with each row's last token
            rows = zip(tokens_BT, batch.first.tolist(), strict=True)
            tokens_BT = torch.stack([row.roll(shift) for row, shift in rows])
        logits_BV, new = self.network(tokens_BT, first_B=batch.first)
        batch.cache = {n: _grown(t, slots) if has_slots(n) else t for n, t in new.items()}
        batch.filled = torch.full_like(length_B, count)
        return logits_BV

    def decode(self, batch: TorchBatch) -> torch.Tensor:
        logits_BV, batch.cache = self.network(
            batch.token[:, None], batch.cache, filled=batch.filled.max(), first_B=batch.first
        )
        return logits_BV

    def entries(self, batch: TorchBatch) -> dict[str, torch.Tensor]:
        return batch.cache

    def resume(
        self, batch: TorchBatch, cache: dict[str, torch.Tensor], filled: torch.Tensor, slots: int
    ) -> None:
        batch.filled = torch.full_like(filled, int(filled.max()))
        batch.first = batch.filled - filled
        shifts = batch.first.tolist()

        def aligned(array: torch.Tensor) -> torch.Tensor:
            rows = zip(array, shifts, strict=True)
            return _grown(torch.stack([row.roll(shift, 1) for row, shift in rows]), slots)

        batch.cache = {n: aligned(t) if has_slots(n) else t for n, t in cache.items()}


def _grown(cache: torch.Tensor, slots: int) -> torch.Tensor:
    """The cache with zeros up to `slots`."""
    return torch.nn.functional.pad(cache, (0, 0, 0, slots - cache.shape[2]))
