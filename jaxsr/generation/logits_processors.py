"""Logits processors: they change the logits before a token is chosen.

Each equals a class of `transformers.generation.logits_process`, which the tests compare against,
and applies in the order in which `generate` of transformers applies them. Values are arrays, not
Python numbers, so that one compiled program serves them all; a processor that is off costs a
branch.

Shapes: B rows, V tokens of the vocabulary, T tokens of the longest prompt, N tokens of output.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.options import SamplingOptions

Settings = Mapping[str, Any]
"""`settings_of` on the host or on a device: scalars and padded tables."""

# In a table of biases: any token may stand here.
_ANY_TOKEN = -2
_SMALLEST_TABLE = 8
# A top-k or top-p of at most this many tokens needs no sort of the vocabulary.
_CANDIDATES = 128


class History(NamedTuple):
    """The tokens of each row so far, int32 arrays of JAX or NumPy."""

    prompt_BT: Any
    """The prompt, ending in the last column; `UNFILLED` before it."""
    outputs_BN: Any
    """Generated tokens, from the first column on; `UNFILLED` after them."""
    count_B: Any
    """How many tokens were generated."""

    @property
    def tokens(self) -> jax.Array:
        """Prompt and output, (B, T + N), without a gap between them."""
        return jnp.concatenate((self.prompt_BT, self.outputs_BN), 1)

    @property
    def end_B1(self) -> jax.Array:
        """Column of `tokens` after each row's last."""
        return self.prompt_BT.shape[1] + self.count_B[:, None]


def settings_of(options: SamplingOptions, stop_ids: Sequence[int]) -> dict[str, Any]:
    """The options as arrays on the host.

    Tables grow in powers of two, so that another stop token or bias seldom makes another program.
    """
    biases = [(ids, bias) for ids, bias in options.biases]
    longest = _capacity(max([len(ids) for ids, _ in biases], default=1), least=4)
    table = np.full((_capacity(len(biases)), longest), _ANY_TOKEN, np.int32)
    values = np.zeros(len(table), np.float32)
    table[:, -1] = UNFILLED
    for row, (ids, bias) in enumerate(biases):
        table[row, longest - len(ids) :], values[row] = ids, bias
    stop = np.full(_capacity(len(stop_ids)), UNFILLED, np.int32)
    stop[: len(stop_ids)] = stop_ids
    numbers = {
        "temperature": options.temperature,
        "top_p": 1.0 if options.top_p is None else options.top_p,
        # Subtracted in double precision, as transformers does.
        "outside_top_p": 0.0 if options.top_p is None else 1 - options.top_p,
        "min_p": options.min_p or 0.0,
        "typical_p": 1.0 if options.typical_p is None else options.typical_p,
        "repetition_penalty": options.repetition_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    counts = {
        "top_k": options.top_k or 0,
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
        "min_new_tokens": options.min_new_tokens,
        "max_new_tokens": options.max_new_tokens,
    }
    return {
        **{name: np.float32(value) for name, value in numbers.items()},
        **{name: np.int32(value) for name, value in counts.items()},
        "bias_tokens": table,
        "bias": values,
        "stop": stop,
    }


def _capacity(length: int, *, least: int = _SMALLEST_TABLE) -> int:
    return max(least, 1 << math.ceil(math.log2(max(length, 1))))


def is_stop(token_B: jax.Array, settings: Settings) -> jax.Array:
    """Which of the tokens end an output."""
    return ((token_B[:, None] == settings["stop"]) & (settings["stop"] >= 0)).any(1)


# ---- processors that depend on the tokens so far


def has_processors(settings: Settings) -> jax.Array:
    """Whether `processed_logits` changes anything, a scalar."""
    return (
        (settings["bias"] != 0).any()
        | _has_penalties(settings)
        | (settings["no_repeat_ngram_size"] > 0)
        | (settings["min_new_tokens"] > 0)
    )


def _has_penalties(settings: Settings) -> jax.Array:
    return (
        (settings["repetition_penalty"] != 1)
        | (settings["presence_penalty"] != 0)
        | (settings["frequency_penalty"] != 0)
    )


def processed_logits(logits_BV: jax.Array, history: History, settings: Settings) -> jax.Array:
    """Logits after bias, penalties, n-grams and minimum length."""
    logits_BV = _biased(logits_BV, history, settings)
    logits_BV = jax.lax.cond(
        _has_penalties(settings), _penalized, lambda x, *_: x, logits_BV, history, settings
    )
    logits_BV = jax.lax.cond(
        settings["no_repeat_ngram_size"] > 0,
        _without_repeats,
        lambda x, *_: x,
        logits_BV,
        history,
        settings,
    )
    short_B1 = history.count_B[:, None] < settings["min_new_tokens"]
    stop_1V = _marked(settings["stop"][None], logits_BV.shape[-1])
    return jnp.where(short_B1 & stop_1V, -jnp.inf, logits_BV)


def _biased(logits_BV: jax.Array, history: History, settings: Settings) -> jax.Array:
    """`SequenceBiasLogitsProcessor`; with -inf `NoBadWords` and `SuppressTokens`."""
    before = settings["bias_tokens"][:, :-1]
    tokens = history.tokens
    at = history.end_B1 + jnp.arange(-before.shape[1], 0)
    tail = jnp.take_along_axis(tokens, jnp.maximum(at, 0), 1)
    tail = jnp.where(at >= 0, tail, UNFILLED)
    matches_BN = ((before == _ANY_TOKEN) | (tail[:, None] == before)).all(-1)
    vocabulary = logits_BV.shape[-1]
    bias_BV = jnp.zeros_like(logits_BV).at[:, _index(settings["bias_tokens"][:, -1], vocabulary)]
    return logits_BV + bias_BV.add(jnp.where(matches_BN, settings["bias"], 0), mode="drop")


def _penalized(logits_BV: jax.Array, history: History, settings: Settings) -> jax.Array:
    """`RepetitionPenaltyLogitsProcessor`; then frequency and presence as in vLLM."""
    vocabulary = logits_BV.shape[-1]
    penalty = settings["repetition_penalty"]
    scaled_BV = jnp.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    logits_BV = jnp.where(_marked(history.tokens, vocabulary), scaled_BV, logits_BV)
    rows_B1 = jnp.arange(len(logits_BV))[:, None]
    at = (rows_B1, _index(history.outputs_BN, vocabulary))
    counts_BV = jnp.zeros_like(logits_BV).at[at].add(1, mode="drop")
    logits_BV = logits_BV - settings["frequency_penalty"] * counts_BV
    return logits_BV - settings["presence_penalty"] * (counts_BV > 0)


def _without_repeats(logits_BV: jax.Array, history: History, settings: Settings) -> jax.Array:
    """`NoRepeatNGramLogitsProcessor`; padding belongs to no n-gram."""
    tokens, end_B1 = history.tokens, history.end_B1
    before = settings["no_repeat_ngram_size"] - 1

    def narrow(place: jax.Array, matches: jax.Array) -> jax.Array:
        at = jnp.maximum(end_B1 - before + place, 0)
        return matches & (jnp.roll(tokens, -place, 1) == jnp.take_along_axis(tokens, at, 1))

    begin = jnp.arange(tokens.shape[1])
    # A window that begins at its column has all its tokens, and ends before the next token.
    complete = (tokens >= 0) & (begin + before < end_B1)
    matches = jax.lax.fori_loop(0, before, narrow, complete)
    banned = jnp.where(matches, jnp.roll(tokens, -before, 1), UNFILLED)
    return jnp.where(_marked(banned, logits_BV.shape[-1]), -jnp.inf, logits_BV)


def _marked(tokens: jax.Array, vocabulary: int) -> jax.Array:
    """(B, V), true at each row's tokens."""
    rows = jnp.arange(len(tokens))[:, None]
    marks = jnp.zeros((len(tokens), vocabulary), bool)
    return marks.at[rows, _index(tokens, vocabulary)].set(True, mode="drop")


def _index(tokens: jax.Array, vocabulary: int) -> jax.Array:
    """Tokens as indices; values that are not tokens lie outside, and are dropped."""
    return jnp.where(tokens >= 0, tokens, vocabulary)


# ---- processors that depend on the logits alone


def filtered_logits(logits_BV: jax.Array, settings: Settings) -> jax.Array:
    """Logits over the temperature, minus infinity where a filter drops the token."""
    logits_BV = logits_BV / settings["temperature"]
    for active, keep in (
        ((settings["top_k"] > 0) | (settings["top_p"] < 1), _likeliest),
        (settings["min_p"] > 0, _at_least_min_p),
        (settings["typical_p"] < 1, _typical),
    ):
        logits_BV = jax.lax.cond(
            active,
            lambda x, s, keep=keep: jnp.where(keep(x, s), x, -jnp.inf),
            lambda x, _: x,
            logits_BV,
            settings,
        )
    return logits_BV


def _likeliest(logits_BV: jax.Array, settings: Settings) -> jax.Array:
    """The logits that `TopKLogitsWarper` and then `TopPLogitsWarper` keep."""
    vocabulary = logits_BV.shape[-1]
    token_V = jnp.arange(vocabulary, dtype=jnp.int32)

    def of_all(logits_BV: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens_BV = jnp.broadcast_to(token_V, logits_BV.shape)
        return _least_kept(logits_BV, tokens_BV, settings)

    def of_candidates(logits_BV: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _least_kept(*jax.lax.top_k(logits_BV, _CANDIDATES), settings)

    if vocabulary <= _CANDIDATES:
        least_B1, token_B1 = of_all(logits_BV)
    else:
        k = settings["top_k"]
        top_BC = jax.lax.top_k(logits_BV, _CANDIDATES)[0]
        kth_B1 = jax.lax.dynamic_slice_in_dim(top_BC, jnp.clip(k, 1, _CANDIDATES) - 1, 1, 1)
        # Further tokens may be as likely as the k-th: then all of them are needed.
        few = (k > 0) & (k < _CANDIDATES) & (top_BC[:, -1:] < kth_B1).all()
        least_B1, token_B1 = jax.lax.cond(few, of_candidates, of_all, logits_BV)
    # In transformers' sort, equally likely tokens with larger ids come later.
    return (logits_BV > least_B1) | ((logits_BV == least_B1) & (token_V >= token_B1))


def _least_kept(
    logits_BC: jax.Array, tokens_BC: jax.Array, settings: Settings
) -> tuple[jax.Array, jax.Array]:
    """Logit and id, (B, 1), of the least likely token that top-k and top-p keep."""
    logits_BC, tokens_BC = jax.lax.sort((logits_BC, tokens_BC), dimension=1, num_keys=2)
    count = logits_BC.shape[1]
    k = jnp.where(settings["top_k"] > 0, jnp.minimum(settings["top_k"], count), count)
    kth_B1 = jax.lax.dynamic_slice_in_dim(logits_BC, count - k, 1, 1)
    outside_k_BC = logits_BC < kth_B1
    weights_BC = jax.nn.softmax(jnp.where(outside_k_BC, -jnp.inf, logits_BC), -1)
    outside_p_BC = jnp.cumsum(weights_BC, -1) <= settings["outside_top_p"]
    outside_BC = outside_k_BC | (outside_p_BC & (settings["top_p"] < 1))
    first_B1 = jnp.minimum(outside_BC.sum(1, keepdims=True), count - 1)
    at_first = (jnp.take_along_axis(x, first_B1, 1) for x in (logits_BC, tokens_BC))
    least_B1, token_B1 = at_first
    return least_B1, token_B1


def _at_least_min_p(logits_BV: jax.Array, settings: Settings) -> jax.Array:
    """The logits that `MinPLogitsWarper` keeps."""
    weights_BV = jax.nn.softmax(logits_BV, -1)
    largest_B1 = weights_BV.max(-1, keepdims=True)
    first_BV = jnp.arange(logits_BV.shape[-1]) == jnp.argmax(weights_BV, -1)[:, None]
    return (weights_BV >= settings["min_p"] * largest_B1) | first_BV


def _typical(logits_BV: jax.Array, settings: Settings) -> jax.Array:
    """The logits that `TypicalLogitsWarper` keeps."""
    information_BV = -jax.nn.log_softmax(logits_BV, -1)
    weights_BV = jnp.exp(-information_BV)
    terms_BV = jnp.where(weights_BV > 0, information_BV * weights_BV, 0)
    distance_BV = jnp.abs(information_BV - terms_BV.sum(-1, keepdims=True))
    sorted_BV, ordered_BV = jax.lax.sort((distance_BV, logits_BV), dimension=1, num_keys=1)
    below_BV = jnp.cumsum(jax.nn.softmax(ordered_BV, -1), -1) < settings["typical_p"]
    last_B1 = jnp.minimum(below_BV.sum(1, keepdims=True), logits_BV.shape[-1] - 1)
    return distance_BV <= jnp.take_along_axis(sorted_BV, last_B1, 1)
