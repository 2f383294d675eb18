"""What both engines offer: start a batch of prompts, advance it, look at its tokens, save it.

An engine is `JaxEngine` or `TorchEngine`; a batch under way is its own object, opaque to callers.
`Snapshot` is a batch on the host, in no engine's layout.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, cache_slots, padded

UNFILLED = -1
"""Stands in a row of outputs where no token has been generated."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A batch as plain arrays: what is needed to go on with it elsewhere.

    Rows start at slot 0 of their cache, whatever padding they were started with.
    """

    cache: dict[str, np.ndarray]
    """`layers.I.keys` and `layers.I.values`, (B, K, S, D), S the longest row's filled slots, zeros
    beyond a row's own; and states without slots, (B, …)."""
    filled: np.ndarray
    """Filled slots of each row, (B,) int32."""
    token: np.ndarray
    """Each row's last token, chosen but not fed yet, (B,) int32."""
    done: np.ndarray
    """Rows that met a stop token, (B,) bool."""
    outputs: np.ndarray
    """Tokens generated so far, (B, N) int32, `UNFILLED` after a row's end."""
    requests: np.ndarray
    """Numbers of the requests, which their random keys are made of, (B,) int32."""

    def rows(self, index: Sequence[int] | np.ndarray) -> "Snapshot":
        """The snapshot of some of the rows."""
        index = np.asarray(index)
        pick = {n: getattr(self, n)[index] for n in self.row_fields()}
        return Snapshot(cache={n: t[index] for n, t in self.cache.items()}, **pick)

    @staticmethod
    def row_fields() -> tuple[str, ...]:
        """Names of the fields that are one array with the rows first."""
        return ("filled", "token", "done", "outputs", "requests")


class Engine(ABC):
    """Runs batches. `start` and `resume` leave at least one output token per row."""

    config: Any
    """With `vocab_size` and `max_position_embeddings`."""
    device: str
    """Platform and kind of the device, for reports."""
    devices: int = 1
    """Over how many devices each sum may be split."""
    compile_s: float
    """Seconds spent on tracing and compiling so far."""

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[int],
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        slots: int | None = None,
        padding: Padding = "right",
    ) -> Any:
        """Feeds the prompts and chooses each row's first token.

        Args:
          prompts: token ids per row.
          requests: number of each row's request, which its random key is made of.
          options: how tokens are chosen.
          stop_ids: tokens that end a row.
          slots: size of the cache; at least `cache_slots` of the longest prompt, the default.
          padding: side on which shorter rows are padded.
        """
        tokens, length = padded(prompts, padding=padding)
        context = self.config.max_position_embeddings
        least = cache_slots(int(length.max()), options.max_new_tokens, context=context)
        numbers = np.asarray(requests, np.int32)
        slots = max(slots or least, least)
        return self._start(tokens, length, numbers, options, tuple(stop_ids), slots, padding)

    @abstractmethod
    def _start(
        self,
        tokens: np.ndarray,
        length: np.ndarray,
        requests: np.ndarray,
        options: SamplingOptions,
        stop_ids: tuple[int, ...],
        slots: int,
        padding: Padding,
    ) -> Any:
        """`start` with the prompts as one array (B, T); lengths and numbers are int32 (B,)."""

    @abstractmethod
    def advance(self, batch: Any, steps: int) -> None:
        """Generates up to `steps` more tokens in each row that is not done; may not wait."""

    @abstractmethod
    def outputs(self, batch: Any) -> np.ndarray:
        """Tokens so far, (B, N) int32, `UNFILLED` after a row's end; waits for the device."""

    @abstractmethod
    def finished(self, batch: Any) -> bool:
        """Whether every row met a stop token or has all its tokens; waits for the device."""

    @abstractmethod
    def snapshot(self, batch: Any) -> Snapshot:
        """The batch on the host."""

    @abstractmethod
    def resume(
        self, snapshot: Snapshot, options: SamplingOptions, *, stop_ids: Sequence[int] = ()
    ) -> Any:
        """A batch that goes on where the snapshot stands.

        `options.max_new_tokens` counts from the beginning, those in the snapshot included.
        """


def from_slot_zero(cache: np.ndarray, first: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """The rows' filled slots moved to slot 0, cut to the longest, zeros beyond."""
    out = np.zeros((*cache.shape[:2], int((filled - first).max()), cache.shape[3]), cache.dtype)
    for row, (begin, end) in enumerate(zip(first, filled, strict=True)):
        out[row, :, : end - begin] = cache[row, :, begin:end]
    return out
