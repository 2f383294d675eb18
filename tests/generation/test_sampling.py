"""Processors and filters against those of `transformers`; draws against their probabilities."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.logits_processors import (
    History,
    filtered_logits,
    processed_logits,
    settings_of,
)
from jaxsr.generation.options import SamplingOptions, recommended_options
from jaxsr.generation.sampling import (
    choose,
    choose_on_host,
    greedy,
    log_probabilities,
    request_keys,
)

LOGITS = 3 * np.random.default_rng(0).standard_normal((5, 200), dtype=np.float32)


@pytest.fixture(scope="module")
def process():
    return pytest.importorskip("transformers").generation.logits_process


def no_history(rows):
    empty = np.full((rows, 4), UNFILLED, np.int32)
    return History(empty, empty, np.zeros(rows, np.int32))


_filtered = jax.jit(filtered_logits)
_processed = jax.jit(processed_logits)


def filtered(logits, **options):
    return _filtered(jnp.asarray(logits), settings_of(SamplingOptions(**options), ()))


def chosen(logits, keys, number, options):
    history = no_history(len(logits))._replace(count_B=np.full(len(logits), number, np.int32))
    return choose(jnp.asarray(logits), keys, history, settings_of(options, ()))


def warped(process, logits, *, temperature=1.0, top_k=None, top_p=None, min_p=None, typical_p=None):
    """Logits after the warpers of transformers' `generate` for sampling."""
    scores = process.TemperatureLogitsWarper(temperature)(None, torch.from_numpy(logits))
    if top_k is not None:
        scores = process.TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None and top_p < 1:
        scores = process.TopPLogitsWarper(top_p)(None, scores)
    if min_p is not None:
        scores = process.MinPLogitsWarper(min_p)(None, scores)
    if typical_p is not None and typical_p < 1:
        scores = process.TypicalLogitsWarper(typical_p)(None, scores)
    return scores


@pytest.mark.sample(10)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 7, 127, 128, 1000])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.9, 1.0])
def test_filters_keep_what_transformers_keeps(temperature, top_k, top_p, process):
    want = warped(process, LOGITS, temperature=temperature, top_k=top_k, top_p=top_p)
    got = filtered(LOGITS, temperature=temperature, top_k=top_k, top_p=top_p)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.sample(10)
@pytest.mark.parametrize("min_p", [None, 0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("typical_p", [None, 0.01, 0.4, 0.95, 1.0])
@pytest.mark.parametrize("others", [{}, {"top_k": 20}, {"top_k": 50, "top_p": 0.8}])
def test_min_p_and_typical_p_follow_the_others(min_p, typical_p, others, process):
    options = {"temperature": 0.8, "min_p": min_p, "typical_p": typical_p, **others}
    np.testing.assert_allclose(
        filtered(LOGITS, **options), warped(process, LOGITS, **options), rtol=1e-6
    )


EXTREMES = {
    "one token": np.array([[0.0] * 63 + [1e4]], np.float32),
    "overflow of exp": np.linspace(-3e38, 3e38, 64, dtype=np.float32)[None],
    "banned": np.where(np.arange(64) % 3, np.linspace(-2, 2, 64), -np.inf).astype(np.float32)[None],
    "small": np.linspace(0, 1e-6, 64, dtype=np.float32)[None],
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize(
    "options", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"typical_p": 0.6}]
)
def test_extreme_logits(name, options, process):
    want = warped(process, EXTREMES[name], **options)
    np.testing.assert_allclose(filtered(EXTREMES[name], temperature=1.0, **options), want)


@pytest.mark.sample(4)
@pytest.mark.parametrize("vocabulary", [90, 400])
@pytest.mark.parametrize(
    "options", [{"top_k": 7}, {"top_k": 30, "top_p": 0.7}, {"min_p": 0.1}, {"typical_p": 0.6}]
)
def test_equal_logits_count_as_in_transformers(vocabulary, options, process):
    logits = np.random.default_rng(1).integers(-3, 4, (4, vocabulary)).astype(np.float32)
    got, want = filtered(logits, temperature=1.0, **options), warped(process, logits, **options)
    # Which of equal tokens stay is the sort's affair: how many of each logit, transformers'.
    np.testing.assert_array_equal(np.sort(got, 1), np.sort(want, 1))
    if "top_p" not in options:
        np.testing.assert_array_equal(got, want)


# ---- processors, which look at the tokens so far

PROMPTS = ([5, 6, 7, 5, 6], [9], [1, 2, 3, 1, 2, 3, 1, 2], [4] * 7, [11, 12, 13, 14, 15, 16])
OUTPUTS = ([7, 5, 6], [9, 9, 9, 9], [3], [], [11, 12, 13, 14, 15])


@pytest.fixture
def history():
    prompt = np.full((len(PROMPTS), 16), UNFILLED, np.int32)
    outputs = np.full((len(PROMPTS), 8), UNFILLED, np.int32)
    for row, (before, after) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
        prompt[row, 16 - len(before) :] = before
        outputs[row, : len(after)] = after
    return History(prompt, outputs, np.array([len(o) for o in OUTPUTS], np.int32))


def rowwise(apply):
    """Applies a processor of transformers to each row with its own tokens, without padding."""
    rows = [
        apply(torch.tensor([[*before, *after]]), torch.from_numpy(LOGITS[row : row + 1]))
        for row, (before, after) in enumerate(zip(PROMPTS, OUTPUTS, strict=True))
    ]
    return torch.cat(rows).numpy()


def processed(history, stop_ids=(), **options):
    settings = settings_of(SamplingOptions(**options), stop_ids)
    return np.asarray(_processed(jnp.asarray(LOGITS), history, settings))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 100.0])
def test_repetition_penalty(penalty, history, process):
    want = rowwise(process.RepetitionPenaltyLogitsProcessor(penalty))
    np.testing.assert_allclose(processed(history, repetition_penalty=penalty), want, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 40])
def test_no_repeat_ngram(size, history, process):
    want = rowwise(process.NoRepeatNGramLogitsProcessor(size))
    np.testing.assert_array_equal(processed(history, no_repeat_ngram_size=size), want)


def test_biases_of_tokens_and_sequences(history, process):
    biases = {(7,): -2.5, (8,): float("-inf"), (9, 9, 10): 4.0, (6, 7): -1.0, (1, 2, 3, 9): 9.0}
    biases |= {(5, 6, 7, 5, 6, 7, 5, 6, 30): 3.0, tuple(range(60)): 1.0, (6, 30): 0.5}
    want = rowwise(process.SequenceBiasLogitsProcessor(biases))
    texts = tuple(f"{','.join(map(str, ids))}={bias}" for ids, bias in biases.items())
    np.testing.assert_array_equal(processed(history, logit_bias=texts), want)
    text = "{" + ", ".join(
        f'"{t.rpartition("=")[0]}": {b}' for t, b in zip(texts, biases.values(), strict=True)
    )
    text = text.replace("-inf", "-Infinity") + "}"
    np.testing.assert_array_equal(processed(history, logit_bias=(text,)), want)


def test_minus_infinity_bans_as_bad_words_and_suppressed_tokens_do(history, process):
    bad = [[7], [9, 9], [1, 2, 3]]
    want = rowwise(process.NoBadWordsLogitsProcessor(bad, torch.tensor([2])))
    texts = tuple(f"{','.join(map(str, ids))}=-inf" for ids in bad)
    np.testing.assert_array_equal(processed(history, logit_bias=texts), want)
    want = rowwise(process.SuppressTokensLogitsProcessor([3, 4]))
    np.testing.assert_array_equal(processed(history, logit_bias=("3=-inf", "4=-inf")), want)


def test_stop_tokens_wait_for_the_minimum_length(history, process):
    got = processed(history, min_new_tokens=4, stop_ids=(2, 30))
    for row, (before, after) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
        one = process.MinNewTokensLengthLogitsProcessor(len(before), 4, [2, 30])
        ids = torch.tensor([[*before, *after]])
        want = one(ids, torch.from_numpy(LOGITS[row : row + 1]))
        np.testing.assert_array_equal(got[row : row + 1], want)


def test_presence_and_frequency_count_outputs_alone(history):
    got = processed(history, presence_penalty=0.7, frequency_penalty=0.25)
    for row, after in enumerate(OUTPUTS):
        counts = np.bincount(after, minlength=200)
        # The formula of OpenAI's API reference, "frequency and presence penalties".
        want = LOGITS[row] - counts * 0.25 - (counts > 0) * 0.7
        np.testing.assert_allclose(got[row], want, rtol=1e-6)


def test_all_processors_apply_in_the_order_of_generate(history, process):
    def of_transformers(ids, scores):
        scores = process.SequenceBiasLogitsProcessor({(7,): -2.5, (6, 7): 3.0})(ids, scores)
        scores = process.RepetitionPenaltyLogitsProcessor(1.4)(ids, scores)
        scores = process.NoRepeatNGramLogitsProcessor(3)(ids, scores)
        return warped(process, scores.numpy(), temperature=0.6, top_k=30, top_p=0.9, min_p=0.01)

    options = SamplingOptions(
        logit_bias=("7=-2.5", "6,7=3"),
        repetition_penalty=1.4,
        no_repeat_ngram_size=3,
        temperature=0.6,
        top_k=30,
        top_p=0.9,
        min_p=0.01,
    )
    settings = settings_of(options, ())
    got = _filtered(_processed(jnp.asarray(LOGITS), history, settings), settings)
    np.testing.assert_allclose(got, rowwise(of_transformers), rtol=1e-6)


def test_values_are_no_part_of_the_program(history):
    """Changing any of them, or stop tokens and biases of a similar number, compiles nothing."""
    traces = []

    @jax.jit
    def run(*args):
        traces.append(args)
        return choose(*args)

    keys = request_keys(0, jnp.arange(5))
    every = [
        SamplingOptions(),
        SamplingOptions(temperature=0.5, top_k=3, top_p=0.4, min_p=0.1, typical_p=0.5),
        SamplingOptions(repetition_penalty=2.0, presence_penalty=1, frequency_penalty=1),
        SamplingOptions(no_repeat_ngram_size=4, min_new_tokens=3, logit_bias=("3=1", "4,5=2")),
    ]
    for options in every:
        for stop_ids in ((), (1,), (1, 2, 3, 4, 5)):
            run(jnp.asarray(LOGITS), keys, history, settings_of(options, stop_ids))
    assert len(traces) == 1


# ---- draws


@pytest.mark.slow
def test_draws_follow_the_filtered_probabilities():
    options = SamplingOptions(temperature=0.7, top_k=6)
    count = 20000
    rows = jnp.broadcast_to(LOGITS[0], (count, 200))
    keys = request_keys(0, jnp.arange(count))
    drawn = np.bincount(chosen(rows, keys, 0, options), minlength=200) / count
    kept = torch.from_numpy(np.array(filtered(LOGITS[:1], temperature=0.7, top_k=6)))
    want = torch.softmax(kept[0], 0)
    # Five standard deviations of a count of 20000 draws.
    np.testing.assert_allclose(drawn, want, atol=5 * 0.5 / np.sqrt(count))
    assert (drawn[want.numpy() == 0] == 0).all()


def test_a_draw_depends_on_seed_request_and_number_alone():
    options = SamplingOptions(temperature=1.0)
    keys = request_keys(0, jnp.arange(5))
    together = chosen(LOGITS, keys, 3, options)
    settings = settings_of(options, ())
    for row in range(5):
        history = no_history(1)._replace(count_B=np.array([3], np.int32))
        alone = choose_on_host(LOGITS[row : row + 1], keys[row : row + 1], history, settings)
        assert alone[0] == together[row]
    same = jnp.broadcast_to(LOGITS[0], (64, 200))
    for keys, number in (
        (request_keys(1, jnp.arange(64)), 3),
        (request_keys(0, jnp.arange(64)), 4),
    ):
        other = chosen(same, keys, number, options)
        first = chosen(same, request_keys(0, jnp.arange(64)), 3, options)
        assert (other != first).any()
        assert len(set(np.asarray(other).tolist())) > 5  # requests draw differently


def test_each_row_may_have_a_seed_of_its_own():
    keys = request_keys(jnp.array([3, 4, 3]), jnp.array([0, 0, 5]))
    for row, (seed, number) in enumerate([(3, 0), (4, 0), (3, 5)]):
        np.testing.assert_array_equal(keys[row], request_keys(seed, jnp.array([number]))[0])


def test_log_probabilities_are_those_of_the_raw_logits():
    tokens = jnp.array([3, 0, 199, 7, 50])
    of_chosen, top, ids = log_probabilities(jnp.asarray(LOGITS), tokens, 4)
    want = torch.from_numpy(LOGITS).log_softmax(-1)
    np.testing.assert_allclose(of_chosen, want[torch.arange(5), tokens.tolist()], rtol=1e-5)
    np.testing.assert_allclose(top, want.topk(4).values, rtol=1e-5)
    np.testing.assert_array_equal(ids, want.topk(4).indices)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature must be at least 0, got -1"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0, got 0.0"),
        ({"typical_p": 1.5}, "typical_p must be at most 1, got 1.5"),
        ({"min_p": -0.1}, "min_p must be at least 0, got -0.1"),
        ({"min_p": float("nan")}, "min_p must be finite, got nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0, got 0.0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be finite"),
        ({"presence_penalty": float("nan")}, "presence_penalty must be finite"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty must be finite"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be at least 0"),
        ({"logprobs": -1}, "logprobs must be at least 0"),
        ({"min_new_tokens": 200}, "min_new_tokens=200 is above max_new_tokens=128"),
        ({"logit_bias": ("7",)}, "logit_bias must be ID=VALUE"),
        ({"logit_bias": ("7=x",)}, "logit_bias must be ID=VALUE"),
        ({"logit_bias": ("-7=1",)}, "logit_bias must be ID=VALUE"),
        ({"logit_bias": ("7=inf",)}, "values below infinity"),
        ({"logit_bias": ("7=nan",)}, "values below infinity"),
        ({"logit_bias": ("{}",)}, "logit_bias must be ID=VALUE"),
        ({"logit_bias": ('{"7": [1]}',)}, "logit_bias must be ID=VALUE"),
        ({"logit_bias": ("{7",)}, "logit_bias is not JSON"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_options_say_what_is_wrong(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingOptions(**fields)


def test_a_model_s_generation_config_becomes_options():
    fields = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
        "repetition_penalty": 1.05,
        "bad_words_ids": [[5], [6, 7], [2]],
        "suppress_tokens": [9],
        "sequence_bias": [[[3], 1.5]],
        "eos_token_id": [2, 4],
        "epsilon_cutoff": 0.0,
        "transformers_version": "5.0",
    }
    values, unknown = recommended_options(fields)
    options = SamplingOptions(**values)
    assert unknown == []
    assert (options.temperature, options.top_k, options.top_p) == (0.6, 50, 0.95)
    inf = float("-inf")
    assert options.biases == (((5,), inf), ((6, 7), inf), ((9,), inf), ((3,), 1.5))
    assert recommended_options({"temperature": 0.6, "repetition_penalty": 1.1}) == (
        {"repetition_penalty": 1.1},
        [],
    )
    assert recommended_options({"do_sample": True, "top_k": 0})[0] == {"temperature": 1.0}
    assert recommended_options(fields | {"epsilon_cutoff": 1e-4, "top_h": 0.4})[1] == [
        "epsilon_cutoff",
        "top_h",
    ]
    assert dataclasses.replace(options, top_k=None).top_k is None


@pytest.mark.parametrize("words", [192, 200])  # in 64 parts, and not
def test_greedy_takes_the_first_of_equal_logits(words):
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 3, (40, words)).astype(np.float32)
    logits[0], logits[1, 70], logits[2, [150, 90]] = -np.inf, np.nan, np.inf
    np.testing.assert_array_equal(jax.jit(greedy)(logits), logits.argmax(-1))
