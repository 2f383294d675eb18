"""Batches advanced until their rows have ended: rows' places, streaming, timing."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxsr.errors import InputError
from jaxsr.generation.decoder import NO_TOKEN, UNFILLED, Batch, BatchDecoder, BatchSnapshot
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, cache_slots
from jaxsr.generation.prompt_pool import Request
from jaxsr.generation.stop_text import StopText

OnTokens = Callable[[int, list[int]], None]
"""Called with the prompt's index and the tokens that are new since the last call."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One prompt's output. Times are in seconds, compiling left out."""

    index: int
    """Number of the prompt."""
    tokens: list[int]
    """Generated tokens, the stop token included, or the token that completes a stop text."""
    finish: str
    """`stop` after a stop token or a stop text, `length` after the last token asked for."""
    row: int
    """Its place in the batch."""
    rows: int
    """Rows that ran together."""
    prefill_s: float
    """From the prompt to the first token, without compiling."""
    compile_s: float
    """Compiling, or reading compiled programs, before the first token."""
    decode_s: float
    """From the first token to the last, prompts of other rows left out."""
    decode_tokens_per_s: float
    """Tokens of all the batch's rows in that time, per second; 0 where there are none."""
    beams: tuple[tuple[list[int], float], ...] = ()
    """With beam search the best outputs and their scores; `tokens` is the first."""
    logprobs: tuple[np.ndarray, ...] | None = None
    """The arrays `jaxsr.generation.decoder.LOGPROBS` of its tokens, if asked for."""


OnDone = Callable[[Completion], None]
"""Called as soon as an output has ended."""


def _no_token(prompt: int, place: str) -> InputError:
    return InputError(
        f"prompt {prompt}: the model's logits are NaN or infinite at {place}, so that none can be "
        "chosen; get the weights again, or use --dtype float32 where float16 overflows"
    )


@dataclass
class GenerationRun:
    """Completions of a run in the prompts' order, and its batches as snapshots if asked for."""

    completions: list[Completion] = field(default_factory=list)
    snapshots: list[BatchSnapshot] = field(default_factory=list)


@dataclass
class RequestPlace:
    """A request in its place of the batch."""

    request: Request
    prefill_s: float
    compile_s: float
    tokens_before: int
    """Tokens that all rows had when it began."""
    decode_s_before: float
    length: int = 0
    """Tokens that were looked at."""


@dataclass
class Rounds:
    """Advances batches until their rows have ended, and fills their places."""

    engine: BatchDecoder
    options: SamplingOptions
    stop_ids: Sequence[int]
    stop_text: StopText | None
    chunk: int | None
    on_tokens: OnTokens | None
    on_done: OnDone | None
    run: GenerationRun = field(default_factory=GenerationRun)
    tokens: int = 0
    """Tokens that were decoded so far, in all rows."""
    decode_s: float = 0.0
    compile_s: float = 0.0
    """Compiling of the last start."""

    def timed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
        """A batch from the engine, and the seconds until its first tokens, without compiling."""
        begin, compiled = time.perf_counter(), self.engine.compile_s
        batch = function(*args, **kwargs)
        self.engine.running(batch)  # waits
        self.compile_s = self.engine.compile_s - compiled
        return batch, time.perf_counter() - begin - self.compile_s

    def follow(
        self,
        batch: Any,
        first: Sequence[Request],
        prefill_s: float,
        waiting: deque[Request],
        rows: int,
        free: Sequence[int] = (),
    ) -> None:
        """Advances a batch until its rows have ended and no prompt waits.

        Args:
          batch: of the engine, just started.
          first: requests of its first rows; further rows only fill it up.
          prefill_s: seconds of the start.
          waiting: requests that take the places of rows that end.
          rows: of the batch.
          free: places that were never taken.
        """
        live = {row: self.row_of(request, prefill_s) for row, request in enumerate(first)}
        free = [*free, *self.settle(batch, live, rows, decoded=False)]
        live = {row: state for row, state in live.items() if row not in free}
        while True:
            while free and waiting:
                row, request = free.pop(0), waiting.popleft()
                _, seconds = self.timed(self._admit, batch, row, request)
                live[row] = self.row_of(request, seconds)
                free += self.settle(batch, {row: live[row]}, rows, decoded=False)
                if row in free:
                    del live[row]
            if not live:
                return
            free += self.advance(batch, live, rows, least_running=len(live) if waiting else 1)

    def advance(
        self, batch: Any, live: dict[int, RequestPlace], rows: int, *, least_running: int
    ) -> list[int]:
        """Generates until fewer rows are running, or for a chunk of tokens.

        Returns:
          The rows that ended, which are no longer `live`.
        """
        step = self.chunk or (8 if self.on_tokens or self.stop_text else None)
        begin, compiled = time.perf_counter(), self.engine.compile_s
        self.engine.advance(batch, step or self.options.max_new_tokens, least_running=least_running)
        self.engine.running(batch)  # waits
        self.decode_s += time.perf_counter() - begin - (self.engine.compile_s - compiled)
        ended = self.settle(batch, live, rows, decoded=True)
        for row in ended:
            del live[row]
        return ended

    def tiles(self, requests: Sequence[Request], together: int, *, keep_snapshots: bool) -> None:
        """Generates in tiles of rows with caches of one size.

        Args:
          requests: in any order.
          together: so many rows of a tile are used.
          keep_snapshots: no row's place is taken by another.
        """
        groups: dict[int, deque[Request]] = {}
        context, snapshots = self.engine.config.max_position_embeddings, {}
        for request in requests:
            slots = cache_slots(len(request.prompt), self.options.most_slots, context=context)
            groups.setdefault(slots, deque()).append(request)
        for slots, group in groups.items():
            while group:
                count = min(together, len(group)) if keep_snapshots else len(group)
                members = [group.popleft() for _ in range(count)]
                batch = self.one_by_one(deque(members), self.engine.tile, together, slots=slots)
                if keep_snapshots:
                    saved = self.engine.snapshot(batch)
                    snapshots |= {m.index: saved.rows([row]) for row, m in enumerate(members)}
        self.run.snapshots += [snapshots[index] for index in sorted(snapshots)]

    def one_by_one(
        self,
        waiting: deque[Request],
        rows: int,
        together: int,
        *,
        slots: int,
        padding: Padding = "right",
    ) -> Any:
        """Generates from all that wait, each fed alone in its length's bucket.

        Args:
          waiting: requests.
          rows: of the batch.
          together: so many of them are used.
          slots: of the cache.
          padding: side of it.

        Returns:
          The batch, after all.
        """
        first = waiting.popleft()

        def start() -> Batch:
            batch = self.engine.start(
                [first.prompt], [first.number], self.options, stop_ids=self.stop_ids, slots=slots,
                padding=padding, seeds=[first.seed],
            )  # fmt: skip
            self.engine.widen(batch, rows)
            return batch

        batch, prefill_s = self.timed(start)
        self.follow(batch, [first], prefill_s, waiting, together, range(1, together))
        return batch

    def search(
        self, first: Sequence[Request], fill: Sequence[Request], slots: int, padding: Padding
    ) -> None:
        """Beam search of a batch; the requests after the first ones only fill it up."""
        begin, compiled = time.perf_counter(), self.engine.compile_s
        outputs, scores = self.engine.search(
            [request.prompt for request in fill],
            self.options,
            stop_ids=self.stop_ids,
            slots=slots,
            padding=padding,
        )
        compile_s = self.engine.compile_s - compiled
        seconds = time.perf_counter() - begin - compile_s
        for row, request in enumerate(first):
            # Scores that are NaN are never the best: then no output has ended.
            if not np.isfinite(scores[row]).all() or outputs[row, 0, 0] == UNFILLED:
                raise _no_token(request.index, "some token of its beams")
        length = int((outputs[: len(first), 0] != UNFILLED).sum())
        for row, request in enumerate(first):
            best = range(self.options.num_return_sequences)
            tokens = [[int(t) for t in outputs[row, k] if t != UNFILLED] for k in best]
            self._report(
                Completion(
                    index=request.index,
                    tokens=tokens[0],
                    finish="stop" if tokens[0][-1] in self.stop_ids else "length",
                    row=row,
                    rows=len(fill),
                    prefill_s=seconds,
                    compile_s=compile_s,
                    decode_s=seconds,
                    decode_tokens_per_s=length / seconds,
                    beams=tuple((tokens[k], float(scores[row, k])) for k in best),
                )
            )

    def _report(self, completion: Completion) -> None:
        self.run.completions.append(completion)
        if self.on_done is not None:
            self.on_done(completion)

    def _admit(self, batch: Any, row: int, request: Request) -> Any:
        self.engine.admit(batch, row, request.prompt, request.number, request.seed)
        return batch

    def row_of(self, request: Request, prefill_s: float) -> RequestPlace:
        """The state of a request that begins now."""
        return RequestPlace(request, prefill_s, self.compile_s, self.tokens, self.decode_s)

    def settle(
        self, batch: Any, live: dict[int, RequestPlace], rows: int, *, decoded: bool
    ) -> list[int]:
        """Reports new tokens and outputs that ended; returns the rows of these."""
        outputs, running = self.engine.outputs(batch), self.engine.running(batch)
        tokens = {row: [int(t) for t in outputs[row] if t != UNFILLED] for row in live}
        for row, state in live.items():
            if NO_TOKEN in tokens[row]:
                raise _no_token(state.request.index, f"token {tokens[row].index(NO_TOKEN) + 1}")
        ends = {}
        if self.stop_text is not None:
            lengths = {r: self.stop_text.length(tokens[r], live[r].length) for r in live}
            ends = {row: length for row, length in lengths.items() if length is not None}
        if ends:
            self.engine.end(batch, ends)
        for row, state in live.items():
            tokens[row] = tokens[row][: ends.get(row)]
            new, state.length = tokens[row][state.length :], len(tokens[row])
            self.tokens += len(new) if decoded else 0
            if new and self.on_tokens is not None:
                self.on_tokens(state.request.index, new)
        ended = [row for row in live if row in ends or not running[row]]
        for row in ended:
            self._note(batch, row, rows, live[row], tokens[row], stopped=row in ends)
        return ended

    def _note(
        self,
        batch: Any,
        row: int,
        rows: int,
        state: RequestPlace,
        tokens: list[int],
        *,
        stopped: bool,
    ) -> None:
        decode_s = self.decode_s - state.decode_s_before
        later = self.tokens - state.tokens_before
        arrays = self.engine.logprobs(batch, row)
        self._report(
            Completion(
                index=state.request.index,
                tokens=tokens,
                finish="stop" if stopped or tokens[-1] in self.stop_ids else "length",
                row=row,
                rows=rows,
                prefill_s=state.prefill_s,
                compile_s=state.compile_s,
                decode_s=decode_s,
                decode_tokens_per_s=later / decode_s if later else 0.0,
                logprobs=arrays and tuple(array[: len(tokens)] for array in arrays),
            )
        )
