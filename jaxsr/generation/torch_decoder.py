"""Generation in plain PyTorch with the same module: the reference, on CPU or CUDA.

One Python step per token. Drawn tokens come from the same keys and the same arithmetic as in the
JAX engine (`jaxsr.generation.sampling`, on the CPU), so that two engines differ only in the
network's logits.
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
    LOGPROBS,
    NO_TOKEN,
    UNFILLED,
    Batch,
    BatchDecoder,
    BatchSnapshot,
    empty_logprobs,
    ending_at,
    ending_in,
    entries_from_slot_zero,
)
from jaxsr.generation.logits_processors import History, settings_of
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, padded
from jaxsr.generation.sampling import choose_on_host, request_keys
from jaxsr.models.cache_entries import SLOTTED, has_slots
from jaxsr.models.llama.network import CausalLM

State = dict[str, Any]
"""`Batch.state`."""

_OF_NETWORK = ("cache", "filled", "first")
"""State that is on the device: arguments of the network."""


class TorchDecoder(BatchDecoder):
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

    def _new_batch(
        self,
        options: SamplingOptions,
        stop_ids: Sequence[int],
        padding: Padding,
        requests: np.ndarray,
        seeds: np.ndarray,
        slots: int,
    ) -> Batch:
        keys = np.array(request_keys(jnp.asarray(seeds), jnp.asarray(requests)))
        settings, ids = settings_of(options, stop_ids), tuple(stop_ids)
        return Batch({"keys": keys}, options, ids, padding, requests, seeds, settings, slots)

    @torch.no_grad()
    def _start(self, batch: Batch, tokens: np.ndarray, length: np.ndarray) -> None:
        length_B, tokens_BT = (self._integers(array) for array in (length, tokens))
        left, rows, slots = batch.padding == "left", len(length), batch.slots
        batch.state |= {
            "token": np.zeros(rows, np.int32),
            "done": np.zeros(rows, bool),
            "prompt": ending_in(np, _right_aligned(tokens, length, left=left), slots),
            "outputs": np.full((rows, slots), UNFILLED, np.int32),
            "count": np.zeros(rows, np.int32),
            **empty_logprobs(rows, slots, self._top(batch.options)),
        }
        self._take(batch, self._calls.prefill(batch.state, tokens_BT, length_B, left, slots))

    def check_proposals(self, options: SamplingOptions, *, longest: int = 0) -> None:
        if options.proposals is not None:
            raise InputError(
                f"{options.named_proposals} is for --engine jax; leave it out, or --engine torch"
            )

    def _take(self, batch: Batch, logits_BV: torch.Tensor) -> None:
        """Chooses each running row's next token and notes it."""
        state = batch.state
        history = History(state["prompt"], state["outputs"], state["count"])
        if batch.options.plain:
            chosen = logits_BV.argmax(-1).cpu().numpy().astype(np.int32)
        else:
            logits = logits_BV.cpu().numpy()
            chosen = choose_on_host(logits, state["keys"], history, batch.settings)
        rows = np.flatnonzero(self.running(batch))
        at = (rows, state["count"][rows])
        if LOGPROBS[0] in state:
            all_BV = logits_BV.log_softmax(-1)
            top = all_BV.topk(state["top_logprobs"].shape[2])
            of_chosen = all_BV.gather(1, self._integers(chosen)[:, None])[:, 0]
            for name, value in zip(LOGPROBS, (of_chosen, top.values, top.indices), strict=True):
                state[name][at] = value.cpu().numpy()[rows]
        sound = logits_BV.amax(-1).isfinite().cpu().numpy()
        state["token"][rows] = chosen[rows]
        state["outputs"][at] = np.where(sound, chosen, NO_TOKEN)[rows]
        state["count"][rows] += 1
        state["done"][rows] |= np.isin(chosen[rows], batch.stop_ids) | ~sound[rows]

    def _replace_row(self, batch: Batch, new: Batch, row: int) -> None:
        running = self.running(batch)
        running[row] = False
        self._calls.admit(
            batch.state, new.state, row, torch.from_numpy(running).to(self.torch_device)
        )
        for name, array in new.state.items():
            if name not in _OF_NETWORK:
                batch.state[name][row] = array[0]

    @torch.no_grad()
    def advance(self, batch: Batch, steps: int, *, least_running: int = 1) -> None:
        for _ in range(steps):
            running = self.running(batch)
            if running.sum() < least_running:
                return
            on_device = torch.from_numpy(running).to(self.torch_device)
            if batch.admits:
                self._calls.make_room(batch.state, on_device, batch.slots)
            logits_BV = self._calls.decode(batch.state, self._integers(batch.state["token"]))
            batch.state["filled"] = batch.state["filled"] + on_device
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
        batch = self._new_batch(options, stop_ids, padding, length, length, slots)
        length_B, tokens_BT = (self._integers(array) for array in (length, tokens))
        left, count = padding == "left", options.num_beams
        logits_BV = self._calls.prefill(batch.state, tokens_BT, length_B, left, slots)
        rows = np.repeat(np.arange(len(length)), count)
        self._calls.take(batch.state, self._integers(rows))
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
                self._calls.take(batch.state, self._integers(np.asarray(parent_B)))
                logits_BV = self._calls.decode(batch.state, self._integers(np.asarray(token_B)))
                batch.state["filled"] = batch.state["filled"] + 1
        return np.asarray(search["ended_outputs"]), np.asarray(search["ended_scores"])

    def _integers(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.torch_device)

    def _fetched(self, tree: Any) -> Any:
        return jax.tree.map(
            lambda x: x.cpu().numpy() if isinstance(x, torch.Tensor) else np.array(x), tree
        )

    def _placed_state(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {
            name: torch.from_numpy(array).to(self.torch_device) if name in _OF_NETWORK else array
            for name, array in arrays.items()
        }

    def _cache_on_host(
        self, batch: Batch, first: np.ndarray, filled: np.ndarray
    ) -> dict[str, np.ndarray]:
        tensors = self._calls.entries(batch.state)
        entries = {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}
        return entries_from_slot_zero(entries, first, filled, self.network.cache_windows())

    def _resume(self, batch: Batch, snapshot: BatchSnapshot) -> None:
        cache = {
            name: torch.from_numpy(np.asarray(array, np.float32)).to(
                self.torch_device, self.network.dtype
            )
            for name, array in self._calls.laid(snapshot, batch.slots).items()
        }
        self._calls.resume(batch.state, cache, self._integers(snapshot.filled))


class _OwnCalls:
    """Feeds a network of `jaxsr.models.llama`; its cache is a pair for each block."""

    def __init__(self, network: CausalLM) -> None:
        self.network = network

    def prefill(
        self,
        state: State,
        tokens_BT: torch.Tensor,
        length_B: torch.Tensor,
        left: bool,
        slots: int,
    ) -> torch.Tensor:
        count = tokens_BT.shape[1]
        state["first"] = count - length_B if left else None
        read_B = torch.full_like(length_B, count - 1) if left else length_B - 1
        logits_BV, new = self.network(tokens_BT, first_B=state["first"], read_B=read_B)
        state["cache"] = [(_grown(k, slots), _grown(v, slots)) for k, v in new]
        state["filled"] = torch.full_like(length_B, count) if left else length_B.clone()
        return logits_BV

    def decode(self, state: State, token_B: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(state["filled"]), device=state["filled"].device)
        logits_BV, new = self.network(
            token_B[:, None],
            state["cache"],
            filled_B=state["filled"],
            first_B=state["first"],
            read_B=torch.zeros_like(state["filled"]),
        )
        for (keys, values), (k, v) in zip(state["cache"], new, strict=True):
            keys[rows, :, state["filled"]] = k[:, :, 0]
            values[rows, :, state["filled"]] = v[:, :, 0]
        return logits_BV

    def admit(self, state: State, new: State, row: int, running: torch.Tensor) -> None:
        for pair, of_new in zip(state["cache"], new["cache"], strict=True):
            for tensor, tensor_of_new in zip(pair, of_new, strict=True):
                tensor[row] = tensor_of_new[0]
        state["filled"][row] = new["filled"][0]
        if state["first"] is not None and new["first"] is not None:
            state["first"][row] = new["first"][0]

    def make_room(self, state: State, running: torch.Tensor, slots: int) -> None:
        """Nothing to do: each row fills slots of its own."""

    def take(self, state: State, rows: torch.Tensor) -> None:
        """Replaces the rows by some of them."""
        state["cache"] = [(keys[rows], values[rows]) for keys, values in state["cache"]]
        state["filled"] = state["filled"][rows]
        state["first"] = None if state["first"] is None else state["first"][rows]

    def entries(self, state: State) -> dict[str, torch.Tensor]:
        pairs = enumerate(state["cache"])
        return {
            f"layers.{i}.{name}": t
            for i, pair in pairs
            for name, t in zip(SLOTTED, pair, strict=True)
        }

    def laid(self, snapshot: BatchSnapshot, slots: int) -> dict[str, np.ndarray]:
        """The snapshot's cache in as many slots."""
        grow = [(0, 0), (0, 0), (0, slots - int(snapshot.filled.max())), (0, 0)]
        return {name: np.pad(array, grow) for name, array in snapshot.cache.items()}

    def resume(self, state: State, cache: dict[str, torch.Tensor], filled: torch.Tensor) -> None:
        layers = range(self.network.config.num_hidden_layers)
        state["cache"] = [tuple(cache[f"layers.{i}.{name}"] for name in SLOTTED) for i in layers]
        state["filled"], state["first"] = filled, None


class _LibraryCalls:
    """Feeds a network of `jaxsr.models.hugging_face`; all rows are filled up to the same slot."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def prefill(
        self,
        state: State,
        tokens_BT: torch.Tensor,
        length_B: torch.Tensor,
        left: bool,
        slots: int,
    ) -> torch.Tensor:
        count = tokens_BT.shape[1]
        state["first"] = count - length_B
        if not left:  # a recurrence must end with each row's last token
            rows = zip(tokens_BT, state["first"].tolist(), strict=True)
            tokens_BT = torch.stack([row.roll(shift) for row, shift in rows])
        logits_BV, state["cache"] = self.network(tokens_BT, first_B=state["first"], slots=slots)
        state["filled"] = torch.full_like(length_B, count)
        return logits_BV

    def decode(self, state: State, token_B: torch.Tensor) -> torch.Tensor:
        logits_BV, state["cache"] = self.network(
            token_B[:, None], state["cache"], filled=state["filled"].max(), first_B=state["first"]
        )
        return logits_BV

    def admit(self, state: State, new: State, row: int, running: torch.Tensor) -> None:
        assert state["first"] is not None and new["first"] is not None
        length = new["filled"][0] - new["first"][0]
        self._realign(state, running, least=int(length))
        end = torch.maximum(state["filled"].max(), length)
        for name, tensor in state["cache"].items():
            of_new = new["cache"][name]
            if has_slots(name):
                of_new = of_new.roll(int(end - new["filled"][0]), 2)
            tensor[row] = of_new[0]
        state["filled"][row], state["first"][row] = end, end - length

    def make_room(self, state: State, running: torch.Tensor, slots: int) -> None:
        """Moves the rows down where all slots are filled."""
        if int(state["filled"].max()) >= slots:
            self._realign(state, running)

    def _realign(self, state: State, running: torch.Tensor, *, least: int = 0) -> None:
        """Moves the running rows to end at the longest one's length, at `least` or above."""
        assert state["first"] is not None
        end = max(
            int((state["filled"] - state["first"])[running].max()) if running.any() else 0, least
        )
        by = end - (int(state["filled"][running].max()) if running.any() else 0)
        state["cache"] = {
            n: t.roll(by, 2) if has_slots(n) else t.clone() for n, t in state["cache"].items()
        }
        state["filled"] = torch.where(running, end, 0)
        state["first"] = torch.where(running, state["first"] + by, 0)

    def take(self, state: State, rows: torch.Tensor) -> None:
        """Replaces the rows by some of them."""
        assert state["first"] is not None
        state["cache"] = {n: t[rows] for n, t in state["cache"].items()}
        state["filled"], state["first"] = state["filled"][rows], state["first"][rows]

    def entries(self, state: State) -> dict[str, torch.Tensor]:
        return state["cache"]

    def laid(self, snapshot: BatchSnapshot, slots: int) -> dict[str, np.ndarray]:
        """The snapshot's cache in as many slots, rings in theirs."""
        windows = self.network.cache_windows()
        return {
            n: ending_at(t, snapshot.filled, slots=slots, window=windows.get(n))
            if has_slots(n)
            else t
            for n, t in snapshot.cache.items()
        }

    def resume(self, state: State, cache: dict[str, torch.Tensor], filled: torch.Tensor) -> None:
        state["filled"] = torch.full_like(filled, int(filled.max()))
        state["first"], state["cache"] = state["filled"] - filled, cache


def _right_aligned(tokens: np.ndarray, length: np.ndarray, *, left: bool) -> np.ndarray:
    """Prompts that end in the last column, `UNFILLED` before them."""
    prompt = np.full(tokens.shape, UNFILLED, np.int32)
    for row, size in enumerate(length):
        prompt[row, -size:] = tokens[row, -size:] if left else tokens[row, :size]
    return prompt


def _grown(cache: torch.Tensor, slots: int) -> torch.Tensor:
    """The cache with zeros up to `slots`."""
    return torch.nn.functional.pad(cache, (0, 0, 0, slots - cache.shape[2]))
