"""Options that choose tokens and end outputs, the same for every engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from jaxsr.errors import InputError, one_line
from jaxsr.interop.fields import number
from jaxsr.interop.json_text import parse_json
from jaxsr.runtime.options import CheckedOptions

Bias = tuple[tuple[int, ...], float]
"""Token ids, and the number added to the last one's logit if the others precede it."""

# Fields of transformers' `GenerationConfig` with the same name and meaning here.
_SAME_NAMES = (
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "num_return_sequences",
)
LESS_MEMORY = (
    "use a smaller --batch-size, fewer --num-beams, fewer tokens, --dtype bfloat16, "
    "--quantize int8, or more devices (--mesh)"
)
"""Advice for errors of memory."""

_ONLY_DRAWN = ("temperature", "top_k", "top_p", "min_p", "typical_p")
# Fields that change the chosen tokens, with the values that have no effect.
_NOT_COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": (None, []),
    "constraints": (None,),
    "diversity_penalty": (None, 0.0),
    "dola_layers": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1.0),
    "min_length": (None, 0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "remove_invalid_values": (None, False),
    "stop_strings": (None, []),
    "top_h": (None,),
    "watermarking_config": (None,),
}


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(CheckedOptions):
    """Options of sampling, checked at construction.

    The names are those of transformers, and so is the order in which the options apply: logit bias,
    penalties, n-grams, minimum length; then temperature, top-k, top-p, min-p, typical-p.
    """

    max_new_tokens: int = number(128, least=1, most=2**24)
    """Maximum number of tokens to generate for each prompt."""
    min_new_tokens: int = number(0, least=0)
    """Minimum number of tokens before a stop token or stop text ends an output."""
    temperature: float = number(0.0, least=0)
    """Sampling temperature; 0 is greedy and disables --top-k, --top-p, --min-p and --typical-p."""
    top_k: int | None = number(None, least=1)
    """Keep only this many of the likeliest tokens. Default: keep all."""
    top_p: float | None = number(None, above=0, most=1)
    """Keep the likeliest tokens until their probabilities reach this sum. Default: keep all."""
    min_p: float | None = number(None, least=0, most=1)
    """Keep tokens with at least this share of the likeliest one's probability. Default: keep
    all."""
    typical_p: float | None = number(None, above=0, most=1)
    """Keep the tokens whose information is closest to the entropy, up to this sum of probabilities.
    Default: keep all."""
    repetition_penalty: float = number(1.0, above=0)
    """Divisor of positive logits of tokens in prompt and output, and factor of negative ones."""
    presence_penalty: float = number(0.0)
    """Subtracted from the logits of tokens in the output, as OpenAI and vLLM define it."""
    frequency_penalty: float = number(0.0)
    """Subtracted once for each time that the token is in the output."""
    no_repeat_ngram_size: int = number(0, least=0, most=2**20)
    """Sequences of this many tokens may not repeat in prompt and output; 0 allows repeats."""
    logit_bias: tuple[str, ...] = ()
    """ID=VALUE adds to this token's logit; -inf bans it. With several IDs, joined by commas, it
    applies to the last token when the others precede it. A JSON object of such pairs is also
    accepted."""
    logprobs: int | None = number(None, least=0, most=2**20)
    """Report log-probabilities of the chosen tokens and of this many of the likeliest ones; 0
    reports only the chosen tokens."""
    num_beams: int = number(1, least=1, most=1024)
    """Number of beams, which search for the likeliest output as a whole; 1 is off."""
    length_penalty: float = number(1.0)
    """With beams: scores are divided by the length to this power; above 0 favours long outputs."""
    early_stopping: Literal["false", "true", "never"] = "false"
    """With beams. true: stop at --num-beams ended outputs; false: when better ones are unlikely;
    never: when better ones are impossible."""
    num_return_sequences: int = number(1, least=1, most=1024)
    """With beams: number of best outputs to report."""
    prompt_lookup: int | None = number(None, least=1, most=1024)
    """Number of tokens to propose at each step where prompt or output repeat themselves; greedy
    tokens stay the same."""
    num_draft_tokens: int | None = number(None, least=1, most=1024)
    """Number of tokens that the draft model proposes at each step; greedy tokens stay the same.
    Default: 4 with --draft-model."""
    seed: int = number(0, least=-(2**31), most=2**31 - 1)
    """Seed of the random draws; each request has its own key, made of the seed and its number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_new_tokens > self.max_new_tokens:
            raise InputError(
                f"min_new_tokens={self.min_new_tokens} is above max_new_tokens="
                f"{self.max_new_tokens}; raise --max-new-tokens"
            )
        _ = self.biases
        self._check_beams()
        if None not in (self.prompt_lookup, self.draft_tokens):
            raise InputError(
                f"prompt_lookup={self.prompt_lookup} and a draft model both propose tokens; use "
                "one of them"
            )
        alone = self.plain and self.num_beams == 1 and self.logprobs is None
        if self.proposals is not None and not alone:
            raise InputError(
                f"{self.named_proposals} is for plain greedy decoding; leave it out, "
                "or temperature, penalties, bias, minimum length, logprobs and beams"
            )

    def _check_beams(self) -> None:
        if self.num_return_sequences > self.num_beams:
            raise InputError(
                f"num_return_sequences={self.num_return_sequences} is above num_beams="
                f"{self.num_beams}; raise --num-beams"
            )
        if self.num_beams == 1:
            return
        if not self.greedy:
            raise InputError(
                f"num_beams={self.num_beams} looks for the likeliest output, and temperature="
                f"{self.temperature} draws; use one of them"
            )
        if self.logprobs is not None:
            raise InputError("logprobs are of single outputs; leave them out, or num_beams")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def most_slots(self) -> int:
        """Slots of a cache that an output may need; proposals may extend beyond its end."""
        return self.max_new_tokens + (self.proposals or 0)

    @property
    def draft_tokens(self) -> int | None:
        """Number of tokens that a draft model proposes at each step."""
        return self.num_draft_tokens

    @property
    def proposals(self) -> int | None:
        """Number of tokens that are proposed at each step."""
        return self.prompt_lookup or self.draft_tokens

    @property
    def named_proposals(self) -> str:
        """The option that asks for proposals, for messages."""
        name = "prompt_lookup" if self.draft_tokens is None else "num_draft_tokens"
        return f"{name}={self.proposals}"

    @property
    def plain(self) -> bool:
        """Whether decoding is greedy, with the logits unchanged."""
        return (
            self.greedy
            and self.min_new_tokens == self.no_repeat_ngram_size == 0
            and self.repetition_penalty == 1
            and self.presence_penalty == self.frequency_penalty == 0
            and not self.logit_bias
        )

    @cached_property
    def biases(self) -> tuple[Bias, ...]:
        """Returns `logit_bias` as token ids and values; the last of equal ids counts."""
        pairs: dict[tuple[int, ...], float] = {}
        for item in self.logit_bias:
            pairs |= _parsed_bias(item)
        return tuple(pairs.items())


def _parsed_bias(item: str) -> dict[tuple[int, ...], float]:
    """Parses one value of `logit_bias`."""
    if item.lstrip().startswith("{"):
        try:
            entries = [(str(ids), value) for ids, value in parse_json(item).items()]
        except (ValueError, RecursionError) as error:
            raise InputError(f"logit_bias is not JSON ({one_line(error)}): {item[:80]!r}") from None
    else:
        ids, _, value = item.rpartition("=")
        entries = [(ids, value)]
    try:
        pairs = {tuple(int(i) for i in ids.split(",")): float(value) for ids, value in entries}
    except (TypeError, ValueError):
        pairs = {}
    good = bool(pairs) and all(min(ids) >= 0 and bias < math.inf for ids, bias in pairs.items())
    if not good:
        raise InputError(
            "logit_bias must be ID=VALUE, ID,ID=VALUE or a JSON object of such pairs, with ids "
            f"from 0 and values below infinity, got {item[:80]!r}"
        )
    return pairs


def recommended_options(generation: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads options for choosing tokens from a model's `generation_config.json`.

    Args:
      generation: the file's fields, or those of a GGUF file, which has names of its own.

    Returns:
      Fields of `SamplingOptions`, and the names of fields that change sampling but are not computed
        here.
    """
    drawn = bool(generation.get("do_sample"))
    values = {
        name: generation[name]
        for name in _SAME_NAMES
        if generation.get(name) is not None and (drawn or name not in _ONLY_DRAWN)
    }
    if drawn:
        values = {"temperature": 1.0, "top_k": 50} | values  # transformers' own defaults
    if values.get("top_k") == 0:
        del values["top_k"]
    if (early := generation.get("early_stopping")) is not None:
        values["early_stopping"] = str(early).lower()
    try:
        biases = _stated_biases(generation)
    except (TypeError, ValueError) as error:
        raise InputError(
            "generation_config.json has bad_words_ids, suppress_tokens or sequence_bias of another "
            f"form than transformers writes ({one_line(error)}); correct it"
        ) from error
    if biases:
        values["logit_bias"] = biases
    unknown = [
        name
        for name, neutral in _NOT_COMPUTED.items()
        if name in generation and generation[name] not in neutral
    ]
    unknown += [name for name in generation if name.startswith("general.sampling.")]
    return values, unknown


def _stated_biases(generation: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns values of `logit_bias` that a `generation_config.json` asks for."""
    stop = generation.get("eos_token_id")
    ends = [[token] for token in (stop if isinstance(stop, list) else [stop])]
    biases = [(ids, -math.inf) for ids in generation.get("bad_words_ids") or () if ids not in ends]
    biases += [([token], -math.inf) for token in generation.get("suppress_tokens") or ()]
    biases += [(ids, bias) for ids, bias in generation.get("sequence_bias") or ()]
    return tuple(f"{','.join(map(str, ids))}={float(bias)}" for ids, bias in biases)
