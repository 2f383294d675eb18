"""Prompts through an engine in batches: order, limits, streaming, timing.

Deterministic mode runs every prompt alone, on one device, in programs whose shapes follow from its
own length and the options, and draws with a key made of its own tokens. It is fed from slot 0:
padding on the left would move it to other lanes of each sum, which then rounds in another order; a
mesh would cut the sums into parts. So the same executable sees the same numbers in the same places,
whatever the batch, the row's place in it, the padding, the mesh, and the other prompts.
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxsr.errors import InputError
from jaxsr.generation.decoder import UNFILLED, Engine, Snapshot
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import Padding, cache_slots

OnTokens = Callable[[int, list[int]], None]
"""Called with the prompt's index and the tokens that are new since the last call."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One prompt's output. Times are those of its batch, in seconds, compiling left out."""

    index: int
    """Number of the prompt."""
    tokens: list[int]
    """Generated tokens, the stop token included."""
    finish: str
    """`stop` after a stop token, `length` after the last token asked for."""
    row: int
    """Its place in the batch."""
    rows: int
    """Rows that ran together."""
    prefill_s: float
    """From the prompt to the first token."""
    decode_s: float
    """From the first token to the batch's last."""
    decode_tokens_per_s: float
    """Tokens after the first, of all the batch's rows, per second; 0 where there are none."""


@dataclass
class Run:
    """Completions of a run in the prompts' order, and its batches as snapshots if asked for."""

    completions: list[Completion] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)


def check_prompts(
    prompts: Sequence[Sequence[int]], options: SamplingOptions, *, context: int, vocabulary: int
) -> None:
    """Refuses prompts that the network cannot take, before any is run.

    Raises:
      ValueError: no prompt, an empty one, one too long for the context, or unknown token ids.
    """
    if not prompts:
        raise InputError("there is no prompt; give one as an argument, or a file with --file")
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {index} is empty; give it at least one token")
        if len(prompt) >= context:
            raise InputError(
                f"prompt {index} has {len(prompt)} tokens, but the model's context holds "
                f"{context}; shorten it"
            )
        if len(prompt) + options.max_new_tokens > context:
            raise InputError(
                f"prompt {index} has {len(prompt)} tokens, and {options.max_new_tokens} new ones "
                f"would pass the model's context of {context}; use --max-new-tokens "
                f"{context - len(prompt)} or fewer"
            )
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise InputError(
                f"prompt {index} has the token id {max(prompt)}, but the model knows "
                f"{vocabulary}; is the tokenizer this model's?"
            )


def complete(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    options: SamplingOptions,
    *,
    batch_size: int = 1,
    stop_ids: Sequence[int] = (),
    deterministic: bool = False,
    padding: Padding = "right",
    chunk: int | None = None,
    on_tokens: OnTokens | None = None,
    keep_snapshots: bool = False,
) -> Run:
    """Generates from every prompt.

    Args:
      engine: who computes.
      prompts: token ids.
      options: how tokens are chosen; prompt i draws with the key of request i, or in deterministic
        mode with one made of its tokens.
      batch_size: prompts that run together.
      stop_ids: tokens that end an output.
      deterministic: run each prompt alone, see above.
      padding: side on which the shorter prompts of a batch are padded; in deterministic mode there
        is no batch, and nothing is padded on the left.
      chunk: tokens between two calls of `on_tokens`. Default: 8 with `on_tokens`, else all at once.
      on_tokens: receives tokens while the batch runs.
      keep_snapshots: keep each batch's cache and tokens, for saving.

    Raises:
      ValueError: see `check_prompts`; or `batch_size` is below 1, or the engine computes on
        several devices in deterministic mode.
    """
    if batch_size < 1:
        raise InputError(f"batch size must be at least 1, got {batch_size}")
    if deterministic and engine.devices > 1:
        raise InputError(
            f"deterministic generation needs an engine on one device, got {engine.devices}; sums "
            "that are split over devices round otherwise"
        )
    config = engine.config
    check_prompts(
        prompts, options, context=config.max_position_embeddings, vocabulary=config.vocab_size
    )
    together = 1 if deterministic else min(batch_size, len(prompts))
    # One cache size for the whole run means one compiled loop; a deterministic row has its own.
    longest = max(len(prompt) for prompt in prompts)
    context = config.max_position_embeddings
    slots = cache_slots(longest, options.max_new_tokens, context=context)
    requests = _requests_of(prompts) if deterministic else list(range(len(prompts)))
    run = Run()
    for begin in range(0, len(prompts), together):
        indices = list(range(begin, min(begin + together, len(prompts))))
        # The last batch is filled up with its first prompt, so that it needs no program of its own.
        fill = indices + [indices[0]] * (together - len(indices))
        before, compiled = time.perf_counter(), engine.compile_s
        batch = engine.start(
            [prompts[i] for i in fill],
            [requests[i] for i in fill],
            options,
            stop_ids=stop_ids,
            slots=None if deterministic else slots,
            padding="right" if deterministic else padding,
        )
        first = engine.outputs(batch)
        prefill_s = time.perf_counter() - before - (engine.compile_s - compiled)
        _follow(run, engine, batch, indices, options, first, prefill_s, stop_ids, chunk, on_tokens)
        if keep_snapshots:
            run.snapshots.append(engine.snapshot(batch).rows(range(len(indices))))
    return run


def _requests_of(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Numbers of requests that follow from each prompt's tokens alone.

    Of equal prompts the second is the first's number and one, so that their draws differ.
    """
    repeats: Counter[int] = Counter()
    numbers = []
    for prompt in prompts:
        checksum = zlib.crc32(np.asarray(prompt, np.int32).tobytes())
        numbers.append((checksum + repeats[checksum]) % 2**31)
        repeats[checksum] += 1
    return numbers


def continue_from(
    engine: Engine,
    snapshot: Snapshot,
    options: SamplingOptions,
    *,
    stop_ids: Sequence[int] = (),
    chunk: int | None = None,
    on_tokens: OnTokens | None = None,
    keep_snapshots: bool = False,
) -> Run:
    """Goes on from a snapshot; `options.max_new_tokens` counts the tokens already in it.

    Raises:
      ValueError: the snapshot has that many tokens already, or the context ends before them.
    """
    have = snapshot.outputs.shape[1]
    if have >= options.max_new_tokens:
        raise InputError(
            f"the saved batch has {have} tokens already; ask for more with --max-new-tokens"
        )
    reach = int(snapshot.filled.max()) + options.max_new_tokens - have
    if reach > engine.config.max_position_embeddings:
        raise InputError(
            f"{options.max_new_tokens} tokens would pass the model's context of "
            f"{engine.config.max_position_embeddings}; use a smaller --max-new-tokens"
        )
    run = Run()
    before, compiled = time.perf_counter(), engine.compile_s
    batch = engine.resume(snapshot, options, stop_ids=stop_ids)
    first = engine.outputs(batch)
    prefill_s = time.perf_counter() - before - (engine.compile_s - compiled)
    indices = list(range(len(snapshot.requests)))
    _follow(run, engine, batch, indices, options, first, prefill_s, stop_ids, chunk, on_tokens)
    if keep_snapshots:
        run.snapshots.append(engine.snapshot(batch))
    return run


def _follow(
    run: Run,
    engine: Engine,
    batch: object,
    indices: list[int],
    options: SamplingOptions,
    first: np.ndarray,
    prefill_s: float,
    stop_ids: Sequence[int],
    chunk: int | None,
    on_tokens: OnTokens | None,
) -> None:
    """Advances a started batch to its end and notes its completions."""
    begin, compiled = time.perf_counter(), engine.compile_s
    reported = 0
    outputs = first
    step = chunk or (8 if on_tokens else options.max_new_tokens)
    while True:
        if on_tokens is not None:
            for row, index in enumerate(indices):
                if new := [int(t) for t in outputs[row, reported:] if t != UNFILLED]:
                    on_tokens(index, new)
        reported = outputs.shape[1]
        if engine.finished(batch):
            break
        engine.advance(batch, step)
        outputs = engine.outputs(batch)
    decode_s = time.perf_counter() - begin - (engine.compile_s - compiled)
    # Rows that only fill the batch up do not count.
    later = int((outputs[: len(indices), first.shape[1] :] != UNFILLED).sum())
    for row, index in enumerate(indices):
        tokens = [int(t) for t in outputs[row] if t != UNFILLED]
        run.completions.append(
            Completion(
                index=index,
                tokens=tokens,
                finish="stop" if tokens and tokens[-1] in stop_ids else "length",
                row=row,
                rows=len(outputs),
                prefill_s=prefill_s,
                decode_s=decode_s,
                decode_tokens_per_s=later / decode_s if later else 0.0,
            )
        )
