"""Prompts through an engine in batches: order, limits, streaming, timing.

As soon as a row of a batch ends, the next prompt takes its place.

Deterministic mode feeds every prompt alone, on one device, in programs whose shapes follow from its
own length and the options, and draws with a key made of its own tokens. It is fed from slot 0:
padding on the left would move it to other lanes of each sum, which then rounds in another order; a
mesh would cut the sums into parts. Rows with caches of one size then decode in tiles of
`BatchDecoder.tile` rows, always so many, where a row's sums do not depend on its place; with an
engine whose tile is 1, alone. So the same executable sees the same numbers in sums of the same
order, whatever the batch, the row's place in it, the padding, the mesh, and the other prompts.
"""

import math
import zlib
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxsr.errors import InputError
from jaxsr.generation.decoder import BatchDecoder, BatchSnapshot
from jaxsr.generation.options import LESS_MEMORY, SamplingOptions
from jaxsr.generation.packed_rounds import PackedRounds
from jaxsr.generation.padding import Padding, cache_slots
from jaxsr.generation.prompt_pool import Request
from jaxsr.generation.rounds import GenerationRun, OnDone, OnTokens, Rounds
from jaxsr.generation.stop_text import StopText
from jaxsr.interop.out_of_memory import check_fits

# Prompts for each row from which on feeding them together is worth its programs' compiling.
_LEAST_TURNS = 4


def check_prompts(prompts: Sequence[Sequence[int]], options: SamplingOptions, config: Any) -> None:
    """Refuses prompts that the network cannot take, before any is run.

    Args:
      prompts: token ids.
      options: of the run.
      config: of the network.

    Raises:
      ValueError: no prompt, an empty one, one too long for the context, unknown token ids, or an
        output that passes the length from which on LongRoPE turns all keys by other angles.
    """
    context, vocabulary = config.max_position_embeddings, config.vocab_size
    if not prompts:
        raise InputError("there is no prompt; give one as an argument, or a file with --prompts")
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
        _check_angles(f"prompt {index}", len(prompt), options.most_slots - 1, config)
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise InputError(
                f"prompt {index} has the token id {max(prompt)}, but the model knows "
                f"{vocabulary}; is the tokenizer this model's?"
            )
    biased = max((max(ids) for ids, _ in options.biases), default=0)
    if biased >= vocabulary:
        raise InputError(
            f"logit_bias names the token id {biased}, but the model knows {vocabulary}; use a "
            "smaller id"
        )
    banned = {ids[0] for ids, bias in options.biases if len(ids) == 1 and bias == -math.inf}
    if len(banned) == vocabulary:
        raise InputError(
            f"logit_bias bans all {vocabulary} tokens that the model knows; leave at least one"
        )
    if options.logprobs is not None and options.logprobs > vocabulary:
        raise InputError(
            f"logprobs={options.logprobs} asks for more tokens than the model's {vocabulary}; use "
            "fewer"
        )


def _check_angles(what: str, filled: int, fed: int, config: Any) -> None:
    """Refuses a row that LongRoPE turns by other angles in its middle.

    Args:
      what: description of the row, for the error.
      filled: tokens in its cache before it decodes.
      fed: tokens that decoding feeds.
      config: of the network.
    """
    short = config.short_context
    if short is not None and filled <= short < filled + fed:
        raise InputError(
            f"{what} has {filled} tokens, and its output would pass {short}, from where on the "
            f"model (LongRoPE) turns the keys of all tokens by other angles; use fewer "
            f"--max-new-tokens, by {filled + fed - short}, and give what comes out as a prompt"
        )


def complete(
    engine: BatchDecoder,
    prompts: Sequence[Sequence[int]],
    options: SamplingOptions,
    *,
    batch_size: int = 1,
    stop_ids: Sequence[int] = (),
    stop_text: StopText | None = None,
    deterministic: bool = False,
    padding: Padding = "right",
    seeds: Sequence[int | None] = (),
    skip: Collection[int] = (),
    chunk: int | None = None,
    on_tokens: OnTokens | None = None,
    on_done: OnDone | None = None,
    keep_snapshots: bool = False,
) -> GenerationRun:
    """Generates from every prompt.

    Args:
      engine: who computes.
      prompts: token ids.
      options: how tokens are chosen; prompt i draws with the key of request i, or in deterministic
        mode with one made of its tokens.
      batch_size: prompts that run together.
      stop_ids: tokens that end an output.
      stop_text: texts that end an output.
      deterministic: outputs bit-equal in any company, see above.
      padding: side on which the shorter prompts of a batch are padded; in deterministic mode there
        is not a batch, and nothing is padded on the left.
      seeds: of the prompts; one that has none draws by the options' and its number.
      skip: numbers of prompts that have their outputs already.
      chunk: tokens between two calls of `on_tokens`. Default: 8 with `on_tokens` or `stop_text`,
        else all at once.
      on_tokens: receives tokens while the batch runs.
      on_done: receives each output as soon as it has ended, in any order.
      keep_snapshots: keep each batch's cache and tokens, for saving; batches then run one after
        another, no row's place is taken.

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
    if options.num_beams > 1 and (stop_text is not None or keep_snapshots):
        raise InputError(
            "beam search ends at tokens and saves no cache; leave out --save-cache, and name "
            "special tokens or ids with --stop"
        )
    config = engine.config
    check_prompts(prompts, options, config)
    engine.check_proposals(options, longest=max(map(len, prompts)))
    together = 1 if deterministic else min(batch_size, len(prompts))
    # One cache size for the whole run means one compiled loop; a deterministic row has its own.
    longest = max(len(prompt) for prompt in prompts)
    context = config.max_position_embeddings
    slots = cache_slots(longest, options.most_slots, context=context)
    if engine.device.startswith("cpu"):
        rows = together * options.num_beams
        what = f"caches of {rows} outputs ({together} prompts, {options.num_beams} beams)"
        check_fits(rows * slots * _slot_bytes(config), what, advice=LESS_MEMORY)
    requests = _requests_of(prompts, options, seeds, deterministic=deterministic)
    rounds = Rounds(engine, options, stop_ids, stop_text, chunk, on_tokens, on_done)
    alone = deterministic or keep_snapshots or options.num_beams > 1
    packs = engine.packs_prompts and not alone and options.num_draft_tokens is None
    pending = [request for request in requests if request.index not in skip]
    for waiting in _groups_of_angles(pending, config.short_context):
        if deterministic and engine.tile > 1 and options.num_beams == 1 and not options.proposals:
            rounds.tiles(waiting, min(batch_size, engine.tile), keep_snapshots=keep_snapshots)
            waiting.clear()
        if packs and len(waiting) >= _LEAST_TURNS * together:
            PackedRounds(rounds, together, context=context).run(waiting)
        if engine.widens and not alone and len(waiting) > together:
            # Together, the first prompts would all be padded to the longest one's bucket.
            rounds.one_by_one(
                waiting,
                together,
                together,
                slots=slots,
                padding=padding,
            )
        while waiting:
            first = [waiting.popleft() for _ in range(min(together, len(waiting)))]
            # The last batch is filled up with its first prompt, which needs no further program.
            fill = first + [first[0]] * (together - len(first))
            if options.num_beams > 1:
                if deterministic:
                    size = len(first[0].prompt)
                    slots = cache_slots(size, options.max_new_tokens, context=context)
                rounds.search(first, fill, slots, "right" if deterministic else padding)
                continue
            batch, prefill_s = rounds.timed(
                engine.start,
                [request.prompt for request in fill],
                [request.number for request in fill],
                options,
                stop_ids=stop_ids,
                slots=None if deterministic else slots,
                padding="right" if deterministic else padding,
                seeds=[request.seed for request in fill],
            )
            rounds.follow(batch, first, prefill_s, deque() if alone else waiting, together)
            if keep_snapshots:
                rounds.run.snapshots.append(engine.snapshot(batch).rows(range(len(first))))
    rounds.run.completions.sort(key=lambda completion: completion.index)
    return rounds.run


def _groups_of_angles(requests: Sequence[Request], short: int | None) -> list[deque[Request]]:
    """Requests that may share a batch: LongRoPE turns the keys of short and long texts by other
    angles, and transformers' code decides by the longest of a batch.
    """
    if short is None:
        return [deque(requests)]
    parts = ([r for r in requests if (len(r.prompt) > short) == is_long] for is_long in (0, 1))
    return [deque(part) for part in parts if part]


def _slot_bytes(config: Any) -> int:
    """Bytes of a row's cache that a token takes at least: keys and values in 16 bits.

    0 where the configuration does not say: some networks keep states instead.
    """
    names = ("num_hidden_layers", "num_key_value_heads", "head_dim")
    sizes = [getattr(config, name, None) for name in names]
    known = [size for size in sizes if isinstance(size, int)]
    return 4 * math.prod(known) if len(known) == len(sizes) else 0


def _requests_of(
    prompts: Sequence[Sequence[int]],
    options: SamplingOptions,
    seeds: Sequence[int | None],
    *,
    deterministic: bool,
) -> list[Request]:
    """Requests in the prompts' order.

    In deterministic mode their numbers follow from each prompt's tokens alone. The second of two
    equal prompts has the first's number plus one, so that their draws differ. A prompt with a seed
    of its own draws as it would as the only one.
    """
    repeats: Counter[int] = Counter()
    requests = []
    for index, prompt in enumerate(prompts):
        seed, number = seeds[index] if index < len(seeds) else None, index
        if deterministic:
            checksum = zlib.crc32(np.asarray(prompt, np.int32).tobytes())
            number = checksum % 2**31
            if seed is None:
                number = (checksum + repeats[checksum]) % 2**31
                repeats[checksum] += 1
        elif seed is not None:
            number = 0
        seed = options.seed if seed is None else seed
        requests.append(Request(index=index, prompt=prompt, number=number, seed=seed))
    return requests


def continue_from(
    engine: BatchDecoder,
    snapshot: BatchSnapshot,
    options: SamplingOptions,
    *,
    stop_ids: Sequence[int] = (),
    stop_text: StopText | None = None,
    on_tokens: OnTokens | None = None,
    on_done: OnDone | None = None,
    keep_snapshots: bool = False,
) -> GenerationRun:
    """Goes on from a snapshot; `options.max_new_tokens` counts the tokens already in it.

    Rows draw with the seeds of the snapshot.

    Raises:
      ValueError: the snapshot has that many tokens already, or the context ends before them.
    """
    if options.num_beams > 1:
        raise InputError("a saved batch goes on without beams; leave out --num-beams or --resume")
    engine.check_proposals(options)
    if options.num_draft_tokens is not None:
        raise InputError(
            "a saved batch has no cache of the draft model; leave --draft-model or --resume out"
        )
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
    left = options.most_slots - have
    for row, filled in enumerate(snapshot.filled):
        _check_angles(f"row {row} of the saved batch", int(filled), left, engine.config)
    rounds = Rounds(engine, options, stop_ids, stop_text, None, on_tokens, on_done)
    batch, prefill_s = rounds.timed(engine.resume, snapshot, options, stop_ids=stop_ids)
    rows = [
        Request(index=i, prompt=(), number=int(n), seed=0) for i, n in enumerate(snapshot.requests)
    ]
    rounds.follow(batch, rows, prefill_s, deque(), len(rows))
    if keep_snapshots:
        rounds.run.snapshots.append(engine.snapshot(batch))
    rounds.run.completions.sort(key=lambda completion: completion.index)
    return rounds.run
