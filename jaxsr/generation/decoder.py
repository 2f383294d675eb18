"""The interface of both engines: start a batch of prompts, advance it, look at its tokens, save it.

An engine is `JaxDecoder` or `TorchDecoder`; a batch under way is a `Batch`, opaque to callers.
`BatchSnapshot` is a batch on the host, in no engine's layout.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, cache_slots, padded
from jaxsr.models.cache_entries import has_slots

UNFILLED = -1
"""Stands where there is no token: after a row's outputs, and before a row's prompt."""

NO_TOKEN = -2
"""Ends a row's outputs where its logits are NaN or infinite, so that no token can be chosen."""

LOGPROBS = ("logprobs", "top_logprobs", "top_tokens")
"""Log-probabilities of the chosen tokens (B, N) and of the likeliest (B, N, K), and their ids."""

MOST_PACKED = 16
"""Prompts that `BatchDecoder.admit_packed` takes at most."""

ENDED = ("filled", "token", "done", "outputs", "count")
"""Arrays of a batch that `end_rows` changes."""

# Log-probabilities of so many tokens at least, so that few programs are compiled.
_LEAST_TOP = 16


@dataclass(eq=False)
class Batch:
    """A running batch: its state on the engine's device, and the settings for its next steps."""

    state: dict[str, Any]
    """The cache and its bookkeeping, in the engine's layout; and by row `prompt`, `outputs`,
    `token`, `done`, `count`, `keys`, `filled`, `first` (None: 0), and `LOGPROBS` if asked for."""
    options: SamplingOptions
    stop_ids: tuple[int, ...]
    padding: Padding
    requests: np.ndarray
    seeds: np.ndarray
    settings: dict[str, Any]
    slots: int
    admits: bool = False
    """Whether rows that ended have been replaced."""

    @property
    def rows(self) -> int:
        return len(self.requests)


@dataclass(frozen=True, kw_only=True)
class BatchSnapshot:
    """A batch as plain arrays, enough to continue it elsewhere.

    Rows start at slot 0 of their cache, whatever padding they were started with.
    """

    cache: dict[str, np.ndarray]
    """`layers.I.keys` and `layers.I.values`, (B, K, S, D), S the longest row's filled slots, zeros
    beyond a row's own; of blocks with a window, the last tokens alone, S at most the window; and
    states without slots, (B, …)."""
    filled: np.ndarray
    """Filled slots of each row, (B,) int32."""
    token: np.ndarray
    """Each row's last token, chosen but not fed yet, (B,) int32."""
    done: np.ndarray
    """Rows that met a stop token or a stop text, (B,) bool."""
    prompt: np.ndarray
    """The prompts, (B, T) int32, ending in the last column, `UNFILLED` before them."""
    outputs: np.ndarray
    """Tokens generated so far, (B, N) int32, `UNFILLED` after a row's end."""
    requests: np.ndarray
    """Numbers of the requests, which their random keys are made of, (B,) int32."""
    seeds: np.ndarray
    """Seeds of the requests, which their random keys are made of too, (B,) int32."""

    @property
    def counts(self) -> np.ndarray:
        """Tokens generated in each row, (B,) int32."""
        return (self.outputs != UNFILLED).sum(1, dtype=np.int32)

    def rows(self, index: Sequence[int] | np.ndarray) -> "BatchSnapshot":
        """The snapshot of some of the rows, as small as these allow."""
        index = np.asarray(index)
        pick = {n: getattr(self, n)[index] for n in self.row_fields()}
        pick["outputs"] = pick["outputs"][:, : int(self.counts[index].max())]
        longest = int(pick["filled"].max())
        cache = {
            n: t[index][:, :, :longest] if has_slots(n) else t[index] for n, t in self.cache.items()
        }
        return BatchSnapshot(cache=cache, **pick)

    @staticmethod
    def row_fields() -> tuple[str, ...]:
        """Names of the fields that are one array with the rows first."""
        return ("filled", "token", "done", "prompt", "outputs", "requests", "seeds")


class BatchDecoder(ABC):
    """Runs batches on an engine. `start` and `resume` leave at least one output token per row."""

    config: Any
    """With `vocab_size` and `max_position_embeddings`."""
    device: str
    """Platform and kind of the device, for reports."""
    devices: int = 1
    """Over how many devices each sum may be split."""
    compile_s: float
    """Seconds spent on tracing and compiling so far."""
    widens: bool = False
    """Whether it has `widen`."""
    packs_prompts: bool = False
    """Whether it has `start_empty`, `admit_packed` and `resize`."""
    tile: int = 1
    """Rows that decode together in deterministic mode. A row of so many computes the same bits in
    any place and beside any others, for its sums have the order that follows from their number."""

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[int],
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        slots: int | None = None,
        padding: Padding = "right",
        seeds: Sequence[int] | None = None,
    ) -> Batch:
        """Feeds the prompts and chooses each row's first token.

        Args:
          prompts: token ids per row.
          requests: number of each row's request, which its random key is made of.
          options: how tokens are chosen.
          stop_ids: tokens that end a row.
          slots: size of the cache; at least `cache_slots` of the longest prompt, the default.
          padding: side on which shorter rows are padded.
          seeds: of each row's random key. Default: that of the options.
        """
        tokens, length = padded(prompts, padding=padding)
        context = self.config.max_position_embeddings
        least = cache_slots(int(length.max()), options.most_slots, context=context)
        numbers = np.asarray(requests, np.int32)
        own_seeds = np.asarray([options.seed] * len(numbers) if seeds is None else seeds, np.int32)
        slots = max(slots or least, least)
        batch = self._new_batch(options, stop_ids, padding, numbers, own_seeds, slots)
        self._start(batch, tokens, length)
        return batch

    @abstractmethod
    def check_proposals(self, options: SamplingOptions, *, longest: int = 0) -> None:
        """Refuses proposals of tokens that cannot be taken back, or that have no source.

        Args:
          options: of a run.
          longest: tokens of its longest prompt.

        Raises:
          InputError: the engine feeds one token at a time, a network keeps states, or the draft is
            missing or has too short a context.
        """

    def widen(self, batch: Batch, rows: int) -> None:
        """Makes a batch of one prompt one of so many rows, which `admit` gives to others."""
        raise NotImplementedError

    def start_empty(
        self,
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        rows: int,
        slots: int,
    ) -> Batch:
        """A batch whose rows have all ended; `admit_packed` brings prompts."""
        raise NotImplementedError

    def admit_packed(
        self,
        batch: Batch,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        requests: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        """`admit` of several prompts, at most `MOST_PACKED`, which are fed one after another as one
        text, without padding between them.
        """
        raise NotImplementedError

    def resize(self, batch: Batch, keep: Sequence[int], *, rows: int, slots: int) -> None:
        """Keeps some rows of a batch, in this order, among so many, with caches of so many slots.

        The other rows have ended. Slots beyond the rows' filled ones alone may be cut off.
        """
        raise NotImplementedError

    @abstractmethod
    def _new_batch(
        self,
        options: SamplingOptions,
        stop_ids: Sequence[int],
        padding: Padding,
        requests: np.ndarray,
        seeds: np.ndarray,
        slots: int,
    ) -> Batch:
        """A batch without a state."""

    @abstractmethod
    def _start(self, batch: Batch, tokens: np.ndarray, length: np.ndarray) -> None:
        """Gives a new batch its state: prompts (B, T) of these lengths (B,), and a token each."""

    def admit(self, batch: Batch, row: int, prompt: Sequence[int], request: int, seed: int) -> None:
        """Gives the place of a row that has ended to another prompt.

        The batch was started with enough slots for it. Such a batch has no snapshots of rows that
        ended.
        """
        tokens, length = padded([prompt], padding=batch.padding)
        numbers = np.asarray([request, seed], np.int32)
        new = self._new_batch(
            batch.options, batch.stop_ids, batch.padding, numbers[:1], numbers[1:], batch.slots
        )
        self._start(new, tokens, length)
        self._replace_row(batch, new, row)
        batch.requests[row], batch.seeds[row] = request, seed
        batch.admits = True

    @abstractmethod
    def _replace_row(self, batch: Batch, new: Batch, row: int) -> None:
        """Gives a row's place to the only row of another batch."""

    @abstractmethod
    def advance(self, batch: Batch, steps: int, *, least_running: int = 1) -> None:
        """Generates more tokens in each row that has not ended; may not wait.

        Args:
          batch: of `start` or `resume`.
          steps: tokens at most.
          least_running: ends as soon as fewer rows are running.
        """

    @abstractmethod
    def search(
        self,
        prompts: Sequence[Sequence[int]],
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        slots: int,
        padding: Padding = "right",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Beam search: the best outputs of each prompt.

        Args: as for `start`.

        Returns:
          Tokens (P, K, N), `UNFILLED` after an output's end, and scores (P, K), the best first.
        """

    @abstractmethod
    def _fetched(self, tree: Any) -> Any:
        """Copies of arrays of a batch's state on the host; waits for them."""

    @abstractmethod
    def _placed_state(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Arrays of a batch's state where the engine keeps them."""

    def outputs(self, batch: Batch) -> np.ndarray:
        """Tokens so far, (B, N) int32, `UNFILLED` after a row's end; waits for the device."""
        count, outputs = self._fetched((batch.state["count"], batch.state["outputs"]))
        return outputs[:, : count.max()]

    def running(self, batch: Batch) -> np.ndarray:
        """Rows that met no stop and may have more tokens, (B,) bool; waits for the device."""
        done, count = self._fetched((batch.state["done"], batch.state["count"]))
        return ~done & (count < batch.options.max_new_tokens)

    def finished(self, batch: Batch) -> bool:
        """Whether no row is running; waits for the device."""
        return not self.running(batch).any()

    def logprobs(self, batch: Batch, row: int) -> tuple[np.ndarray, ...] | None:
        """The arrays `LOGPROBS` of a row, NaN where not known; None where not asked for."""
        if LOGPROBS[0] not in batch.state:
            return None
        return self._fetched(tuple(batch.state[name][row] for name in LOGPROBS))

    def end(self, batch: Batch, lengths: Mapping[int, int]) -> None:
        """Ends rows after so many of their tokens, at least one; later ones are dropped."""
        arrays = {n: np.array(a) for n, a in self._fetched(_only(batch.state, ENDED)).items()}
        end_rows(arrays, lengths)
        batch.state |= self._placed_state(arrays)

    def snapshot(self, batch: Batch) -> BatchSnapshot:
        """The batch on the host."""
        arrays = self._fetched(_only(batch.state, ("filled", "first", "token", "done", "prompt")))
        filled, first = arrays["filled"], arrays["first"]
        if first is None:
            first = np.zeros_like(filled)
        return BatchSnapshot(
            cache=self._cache_on_host(batch, first, filled),
            filled=(filled - first).astype(np.int32),
            token=arrays["token"],
            done=arrays["done"],
            prompt=arrays["prompt"],
            outputs=self.outputs(batch),
            requests=batch.requests,
            seeds=batch.seeds,
        )

    @abstractmethod
    def _cache_on_host(
        self, batch: Batch, first: np.ndarray, filled: np.ndarray
    ) -> dict[str, np.ndarray]:
        """`BatchSnapshot.cache`; a row's tokens lie from slot `first` up to slot `filled`, (B,)."""

    def resume(
        self, snapshot: BatchSnapshot, options: SamplingOptions, *, stop_ids: Sequence[int] = ()
    ) -> Batch:
        """A batch that goes on where the snapshot stands.

        `options.max_new_tokens` counts from the beginning, those in the snapshot included.
        """
        rows, count_B = len(snapshot.filled), snapshot.counts
        left = max(options.most_slots - int(count_B.min()), 1)
        context = self.config.max_position_embeddings
        slots = cache_slots(int(snapshot.filled.max()), left, context=context)
        outputs = np.full((rows, slots), UNFILLED, np.int32)
        outputs[:, : snapshot.outputs.shape[1]] = snapshot.outputs
        numbers = snapshot.requests, snapshot.seeds
        batch = self._new_batch(options, stop_ids, "right", *numbers, slots)
        batch.state |= {
            "token": snapshot.token.astype(np.int32),
            "done": snapshot.done | np.isin(snapshot.token, stop_ids),
            "prompt": ending_in(np, snapshot.prompt, slots),
            "outputs": outputs,
            "count": count_B,
            **empty_logprobs(rows, slots, self._top(options)),
        }
        self._resume(batch, snapshot)
        return batch

    @abstractmethod
    def _resume(self, batch: Batch, snapshot: BatchSnapshot) -> None:
        """Completes a state whose engine-independent part is on the host."""

    def _top(self, options: SamplingOptions) -> int | None:
        return logprobs_capacity(options, self.config.vocab_size)


def _only(state: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: state[name] for name in names}


def end_rows(arrays: MutableMapping[str, np.ndarray], lengths: Mapping[int, int]) -> None:
    """`BatchDecoder.end` on the arrays `ENDED` of a batch, in place."""
    for row, length in lengths.items():
        arrays["filled"][row] -= arrays["count"][row] - length
        arrays["outputs"][row, length:] = UNFILLED
        arrays["token"][row] = arrays["outputs"][row, length - 1]
        arrays["count"][row], arrays["done"][row] = length, True


def logprobs_capacity(options: SamplingOptions, vocabulary: int) -> int | None:
    """How many of the likeliest tokens are recorded at each step; None: not recorded."""
    if options.logprobs is None:
        return None
    return min(max(_LEAST_TOP, 1 << max(options.logprobs - 1, 0).bit_length()), vocabulary)


def ending_in(xp: Any, prompt_BT: Any, slots: int) -> Any:
    """Prompts that end in the last of so many columns, `UNFILLED` before them; `xp` is NumPy or
    `jax.numpy`.
    """
    part = prompt_BT[:, max(0, prompt_BT.shape[1] - slots) :]
    return xp.pad(part, [(0, 0), (slots - part.shape[1], 0)], constant_values=UNFILLED)


def empty_logprobs(rows: int, room: int, top: int | None) -> dict[str, np.ndarray]:
    """The arrays `LOGPROBS` before any token; none where `top` is None."""
    if top is None:
        return {}
    shapes = ((rows, room), (rows, room, top))
    values = [np.full(shape, np.nan, np.float32) for shape in shapes]
    return dict(zip(LOGPROBS, (*values, np.full(shapes[1], UNFILLED, np.int32)), strict=True))


def from_slot_zero(
    cache: np.ndarray, first: np.ndarray, filled: np.ndarray, *, window: int | None = None
) -> np.ndarray:
    """The rows' filled slots moved to slot 0, cut to the longest, zeros beyond.

    Args:
      cache: (B, K, S, D); slot s lies in place s modulo S.
      first: slot of each row's first token.
      filled: slot after each row's last token.
      window: only so many of a row's last tokens are there. Default: all.
    """
    ring, most = cache.shape[2], int((filled - first).max())
    most = min(most, window or most)
    out = np.zeros((*cache.shape[:2], most, cache.shape[3]), cache.dtype)
    for row, (begin, end) in enumerate(zip(first, filled, strict=True)):
        zero = max(begin, end - most)
        # Where others go on, a row that has ended loses its oldest tokens to theirs.
        slots = np.arange(max(zero, filled.max() - ring), end)
        out[row][:, slots - zero] = cache[row][:, slots % ring]
    return out


def entries_from_slot_zero(
    entries: Mapping[str, np.ndarray],
    first: np.ndarray,
    filled: np.ndarray,
    windows: Mapping[str, int | None],
) -> dict[str, np.ndarray]:
    """`from_slot_zero` of a cache's entries that have slots, and the others as they are."""
    return {
        name: from_slot_zero(array, first, filled, window=windows.get(name))
        if has_slots(name)
        else array
        for name, array in entries.items()
    }


def ending_at(
    cache: np.ndarray, filled: np.ndarray, *, slots: int, window: int | None = None
) -> np.ndarray:
    """Inverse of `from_slot_zero`: all rows end where the longest does.

    Args:
      cache: (B, K, S, D), each row from slot 0.
      filled: tokens of each row.
      slots: of the cache.
      window: the result has at most so many slots, slot s in place s modulo their number.
    """
    ring, end = min(slots, window or slots), int(filled.max())
    out = np.zeros((*cache.shape[:2], ring, cache.shape[3]), cache.dtype)
    for row, count in enumerate(np.minimum(filled, cache.shape[2])):
        out[row][:, np.arange(end - count, end) % ring] = cache[row][:, :count]
    return out
