"""Generation in plain PyTorch with the same module: the reference, on CPU or CUDA.

One Python step per token. Drawn tokens come from the same keys and the same arithmetic as in the
JAX engine (`jaxsr.generation.sampling`, on the CPU), so that two engines differ only by what the
network computes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxsr.errors import InputError
from jaxsr.generation import beams
from jaxsr.generation.decoder import (
    ENDED,
    LOGPROBS,
    NO_TOKEN,
    UNFILLED,
    Engine,
    Snapshot,
    empty_logprobs,
    end_rows,
    ending_at,
    ending_in,
    from_slot_zero,
    logprobs_capacity,
)
from jaxsr.generation.logits_processors import History, settings_of
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, cache_slots, padded
from jaxsr.generation.sampling import choose_on_host, request_keys
from jaxsr.models.cache_entries import SLOTTED, has_slots
from jaxsr.models.llama.network import CausalLM


class TorchBatch:
    """A batch under way, the network's tensors on the engine's device, the rest on the host."""

    cache: Any
    filled: torch.Tensor
    first: torch.Tensor | None
    token: np.ndarray
    done: np.ndarray
    prompt: np.ndarray
    outputs: np.ndarray
    count: np.ndarray
    logprobs: dict[str, np.ndarray]
    padding: Padding

    def __init__(
        self,
        options: SamplingOptions,
        stop_ids: Sequence[int],
        requests: np.ndarray,
        seeds: np.ndarray,
        *,
        padding: Padding,
        slots: int,
    ) -> None:
        self.options, self.stop_ids = options, tuple(stop_ids)
        self.requests, self.seeds = requests, seeds
        self.padding, self.slots, self.admits = padding, slots, False
        self.settings = settings_of(options, stop_ids)
        self.keys = np.array(request_keys(jnp.asarray(seeds), jnp.asarray(requests)))

    @property
    def running(self) -> np.ndarray:
        return ~self.done & (self.count < self.options.max_new_tokens)


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
        seeds: np.ndarray,
        options: SamplingOptions,
        stop_ids: tuple[int, ...],
        slots: int,
        padding: Padding,
    ) -> TorchBatch:
        length_B, tokens_BT = (self._integers(array) for array in (length, tokens))
        batch = TorchBatch(options, stop_ids, requests, seeds, padding=padding, slots=slots)
        left = padding == "left"
        logits_BV = self._calls.prefill(batch, tokens_BT, length_B, left, slots)
        batch.prompt = ending_in(np, _right_aligned(tokens, length, left=left), slots)
        self._begin(batch, len(length))
        self._take(batch, logits_BV)
        return batch

    def _begin(self, batch: TorchBatch, rows: int) -> None:
        room = batch.options.max_new_tokens
        batch.outputs = np.full((rows, room), UNFILLED, np.int32)
        batch.count, batch.token = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        batch.done = np.zeros(rows, bool)
        top = logprobs_capacity(batch.options, self.config.vocab_size)
        batch.logprobs = empty_logprobs(rows, room, top)

    def check_proposals(self, options: SamplingOptions, *, longest: int = 0) -> None:
        if options.proposals is not None:
            raise InputError(
                f"{options.named_proposals} is for --engine jax; leave it out, or --engine torch"
            )

    def _take(self, batch: TorchBatch, logits_BV: torch.Tensor) -> None:
        """Chooses each running row's next token and notes it."""
        history = History(batch.prompt, batch.outputs, batch.count)
        if batch.options.plain:
            chosen = logits_BV.argmax(-1).cpu().numpy().astype(np.int32)
        else:
            logits = logits_BV.cpu().numpy()
            chosen = choose_on_host(logits, batch.keys, history, batch.settings)
        rows = np.flatnonzero(batch.running)
        at = (rows, batch.count[rows])
        if batch.logprobs:
            all_BV = logits_BV.log_softmax(-1)
            top = all_BV.topk(batch.logprobs["top_logprobs"].shape[2])
            of_chosen = all_BV.gather(1, self._integers(chosen)[:, None])[:, 0]
            for name, value in zip(LOGPROBS, (of_chosen, top.values, top.indices), strict=True):
                batch.logprobs[name][at] = value.cpu().numpy()[rows]
        sound = logits_BV.amax(-1).isfinite().cpu().numpy()
        batch.token[rows] = chosen[rows]
        batch.outputs[at] = np.where(sound, chosen, NO_TOKEN)[rows]
        batch.count[rows] += 1
        batch.done[rows] |= np.isin(chosen[rows], batch.stop_ids) | ~sound[rows]

    @torch.no_grad()
    def admit(
        self, batch: TorchBatch, row: int, prompt: Sequence[int], request: int, seed: int
    ) -> None:
        tokens, length = padded([prompt], padding=batch.padding)
        numbers = np.asarray([request, seed], np.int32)
        new = self._start(
            tokens,
            length,
            numbers[:1],
            numbers[1:],
            batch.options,
            batch.stop_ids,
            batch.slots,
            batch.padding,
        )
        running = batch.running
        running[row] = False
        self._calls.admit(batch, new, row, torch.from_numpy(running).to(self.torch_device))
        for name in ("token", "done", "prompt", "outputs", "count", "keys"):
            getattr(batch, name)[row] = getattr(new, name)[0]
        for name, array in batch.logprobs.items():
            array[row] = new.logprobs[name][0]
        batch.admits = True

    @torch.no_grad()
    def advance(self, batch: TorchBatch, steps: int, *, least_running: int = 1) -> None:
        for _ in range(steps):
            running = batch.running
            if running.sum() < least_running:
                return
            on_device = torch.from_numpy(running).to(self.torch_device)
            if batch.admits:
                self._calls.make_room(batch, on_device)
            logits_BV = self._calls.decode(batch, self._integers(batch.token))
            batch.filled = batch.filled + on_device
            self._take(batch, logits_BV)

    @torch.no_grad()
    def search(
        self,
        prompts: Sequence[Sequence[int]],
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        slots: int,
        padding: Padding = "right",
    ) -> tuple[np.ndarray, np.ndarray]:
        tokens, length = padded(prompts, padding=padding)
        batch = TorchBatch(options, stop_ids, length, length, padding=padding, slots=slots)
        length_B, tokens_BT = (self._integers(array) for array in (length, tokens))
        left, count = padding == "left", options.num_beams
        logits_BV = self._calls.prefill(batch, tokens_BT, length_B, left, slots)
        rows = np.repeat(np.arange(len(length)), count)
        self._calls.take(batch, self._integers(rows))
        logits_BV = logits_BV[rows]
        prompt_BT = _right_aligned(tokens, length, left=left)[rows]
        settings = batch.settings | beams.beam_settings(options, options.max_new_tokens)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            search = beams.begin_on_host(len(length), count, options.max_new_tokens)
            while True:
                search, parent_B, token_B, goes_on = beams.step_on_host(
                    logits_BV.cpu().numpy(), prompt_BT, search, settings
                )
                if not goes_on:
                    break
                self._calls.take(batch, self._integers(np.asarray(parent_B)))
                logits_BV = self._calls.decode(batch, self._integers(np.asarray(token_B)))
                batch.filled = batch.filled + 1
        return np.asarray(search["ended_outputs"]), np.asarray(search["ended_scores"])

    def _integers(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.torch_device)

    def outputs(self, batch: TorchBatch) -> np.ndarray:
        return batch.outputs[:, : batch.count.max()].copy()

    def running(self, batch: TorchBatch) -> np.ndarray:
        return batch.running

    def logprobs(self, batch: TorchBatch, row: int) -> tuple[np.ndarray, ...] | None:
        return tuple(array[row].copy() for array in batch.logprobs.values()) or None

    def end(self, batch: TorchBatch, lengths: Mapping[int, int]) -> None:
        arrays = {name: np.array(getattr(batch, name)) for name in ENDED if name != "filled"}
        arrays["filled"] = batch.filled.cpu().numpy()
        end_rows(arrays, lengths)
        batch.filled = torch.from_numpy(arrays.pop("filled")).to(self.torch_device)
        for name, array in arrays.items():
            setattr(batch, name, array)

    def snapshot(self, batch: TorchBatch) -> Snapshot:
        filled = batch.filled.cpu().numpy()
        first = np.zeros_like(filled) if batch.first is None else batch.first.cpu().numpy()

        windows = self.network.cache_windows()

        def host(name: str, array: torch.Tensor) -> np.ndarray:
            values = array.float().cpu().numpy()
            if not has_slots(name):
                return values
            return from_slot_zero(values, first, filled, window=windows.get(name))

        return Snapshot(
            cache={name: host(name, t) for name, t in self._calls.entries(batch).items()},
            filled=(filled - first).astype(np.int32),
            token=batch.token.copy(),
            done=batch.done.copy(),
            prompt=batch.prompt,
            outputs=self.outputs(batch),
            requests=batch.requests,
            seeds=batch.seeds,
        )

    def resume(
        self, snapshot: Snapshot, options: SamplingOptions, *, stop_ids: Sequence[int] = ()
    ) -> TorchBatch:
        left = max(options.max_new_tokens - int(snapshot.counts.min()), 1)
        context = self.config.max_position_embeddings
        slots = cache_slots(int(snapshot.filled.max()), left, context=context)
        batch = TorchBatch(
            options, stop_ids, snapshot.requests, snapshot.seeds, padding="right", slots=slots
        )
        cache = {
            name: torch.from_numpy(np.asarray(array, np.float32)).to(
                self.torch_device, self.network.dtype
            )
            for name, array in self._calls.laid(snapshot, slots).items()
        }
        self._calls.resume(batch, cache, self._integers(snapshot.filled))
        self._begin(batch, len(snapshot.filled))
        batch.prompt = snapshot.prompt
        batch.outputs[:, : snapshot.outputs.shape[1]] = snapshot.outputs
        batch.count, batch.token = snapshot.counts, snapshot.token.copy()
        batch.done = snapshot.done | np.isin(snapshot.token, stop_ids)
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

    def decode(self, batch: TorchBatch, token_B: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(batch.filled), device=batch.filled.device)
        logits_BV, new = self.network(
            token_B[:, None],
            batch.cache,
            filled_B=batch.filled,
            first_B=batch.first,
            read_B=torch.zeros_like(batch.filled),
        )
        for (keys, values), (k, v) in zip(batch.cache, new, strict=True):
            keys[rows, :, batch.filled] = k[:, :, 0]
            values[rows, :, batch.filled] = v[:, :, 0]
        return logits_BV

    def admit(self, batch: TorchBatch, new: TorchBatch, row: int, running: torch.Tensor) -> None:
        for pair, of_new in zip(batch.cache, new.cache, strict=True):
            for tensor, tensor_of_new in zip(pair, of_new, strict=True):
                tensor[row] = tensor_of_new[0]
        batch.filled[row] = new.filled[0]
        if batch.first is not None and new.first is not None:
            batch.first[row] = new.first[0]

    def make_room(self, batch: TorchBatch, running: torch.Tensor) -> None:
        """Nothing to do: each row fills slots of its own."""

    def take(self, batch: TorchBatch, rows: torch.Tensor) -> None:
        """Replaces the rows by some of them."""
        batch.cache = [(keys[rows], values[rows]) for keys, values in batch.cache]
        batch.filled = batch.filled[rows]
        batch.first = None if batch.first is None else batch.first[rows]

    def entries(self, batch: TorchBatch) -> dict[str, torch.Tensor]:
        pairs = enumerate(batch.cache)
        return {
            f"layers.{i}.{name}": t
            for i, pair in pairs
            for name, t in zip(SLOTTED, pair, strict=True)
        }

    def laid(self, snapshot: Snapshot, slots: int) -> dict[str, np.ndarray]:
        """The snapshot's cache in as many slots."""
        grow = [(0, 0), (0, 0), (0, slots - int(snapshot.filled.max())), (0, 0)]
        return {name: np.pad(array, grow) for name, array in snapshot.cache.items()}

    def resume(
        self, batch: TorchBatch, cache: dict[str, torch.Tensor], filled: torch.Tensor
    ) -> None:
        layers = range(self.network.config.num_hidden_layers)
        batch.cache = [tuple(cache[f"layers.{i}.{name}"] for name in SLOTTED) for i in layers]
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
        logits_BV, batch.cache = self.network(tokens_BT, first_B=batch.first, slots=slots)
        batch.filled = torch.full_like(length_B, count)
        return logits_BV

    def decode(self, batch: TorchBatch, token_B: torch.Tensor) -> torch.Tensor:
        logits_BV, batch.cache = self.network(
            token_B[:, None], batch.cache, filled=batch.filled.max(), first_B=batch.first
        )
        return logits_BV

    def admit(self, batch: TorchBatch, new: TorchBatch, row: int, running: torch.Tensor) -> None:
        assert batch.first is not None and new.first is not None
        length = new.filled[0] - new.first[0]
        self._realign(batch, running, least=int(length))
        end = torch.maximum(batch.filled.max(), length)
        for name, tensor in batch.cache.items():
            of_new = new.cache[name]
            if has_slots(name):
                of_new = of_new.roll(int(end - new.filled[0]), 2)
            tensor[row] = of_new[0]
        batch.filled[row], batch.first[row] = end, end - length

    def make_room(self, batch: TorchBatch, running: torch.Tensor) -> None:
        """Moves the rows down where all slots are filled."""
        if int(batch.filled.max()) >= batch.slots:
            self._realign(batch, running)

    def _realign(self, batch: TorchBatch, running: torch.Tensor, *, least: int = 0) -> None:
        """Moves the running rows to end at the longest one's length, at `least` or above."""
        assert batch.first is not None
        end = max(int((batch.filled - batch.first)[running].max()) if running.any() else 0, least)
        by = end - (int(batch.filled[running].max()) if running.any() else 0)
        batch.cache = {
            n: t.roll(by, 2) if has_slots(n) else t.clone() for n, t in batch.cache.items()
        }
        batch.filled = torch.where(running, end, 0)
        batch.first = torch.where(running, batch.first + by, 0)

    def take(self, batch: TorchBatch, rows: torch.Tensor) -> None:
        """Replaces the rows by some of them."""
        assert batch.first is not None
        batch.cache = {n: t[rows] for n, t in batch.cache.items()}
        batch.filled, batch.first = batch.filled[rows], batch.first[rows]

    def entries(self, batch: TorchBatch) -> dict[str, torch.Tensor]:
        return batch.cache

    def laid(self, snapshot: Snapshot, slots: int) -> dict[str, np.ndarray]:
        """The snapshot's cache in as many slots, rings in theirs."""
        windows = self.network.cache_windows()
        return {
            n: ending_at(t, snapshot.filled, slots=slots, window=windows.get(n))
            if has_slots(n)
            else t
            for n, t in snapshot.cache.items()
        }

    def resume(
        self, batch: TorchBatch, cache: dict[str, torch.Tensor], filled: torch.Tensor
    ) -> None:
        batch.filled = torch.full_like(filled, int(filled.max()))
        batch.first, batch.cache = batch.filled - filled, cache


def _right_aligned(tokens: np.ndarray, length: np.ndarray, *, left: bool) -> np.ndarray:
    """Prompts that end in the last column, `UNFILLED` before them."""
    prompt = np.full(tokens.shape, UNFILLED, np.int32)
    for row, size in enumerate(length):
        prompt[row, -size:] = tokens[row, -size:] if left else tokens[row, :size]
    return prompt


def _grown(cache: torch.Tensor, slots: int) -> torch.Tensor:
    """The cache with zeros up to `slots`."""
    return torch.nn.functional.pad(cache, (0, 0, 0, slots - cache.shape[2]))
