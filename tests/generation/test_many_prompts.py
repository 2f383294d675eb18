"""Rows whose places are taken, penalties, stop texts and log-probabilities in whole generations."""

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.generation import generate_loop, packed_rounds
from jaxsr.generation.cache_file import load_snapshot, merged, save_snapshot
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.generation.stop_text import StopText
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.llama.loading import fingerprint
from tests.oracles.language_models.tiny import tiny_model

# Llama by our own network. By that of transformers: a window, attention and a recurrence, a
# recurrence alone.
GREEDY = SamplingOptions(max_new_tokens=20)
LENGTHS = (9, 3, 30, 17, 5, 12, 8)  # of two buckets: a third makes another program
ENGINES = {
    "jax": JaxDecoder,
    "torch": TorchDecoder,
    "mesh": lambda network: JaxDecoder(network, mesh=tensor_mesh(2)),
}


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(3, 90, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def models(hf_model, network, tmp_path_factory):
    """`models(family)`: our network, or the library's, and the model of transformers."""
    folder, made = tmp_path_factory.mktemp("configurations"), {}

    def make(family):
        if family not in made:
            if family == "llama":
                made[family] = (network("llama"), hf_model("llama"))
            else:
                model = tiny_model(family, folder)
                made[family] = (LibraryLM(model).requires_grad_(False).eval(), model)
        return made[family]

    return make


@pytest.fixture(scope="module")
def engines(models):
    made = {}

    def make(kind, family):
        if (kind, family) not in made:
            made[kind, family] = ENGINES[kind](models(family)[0])
        return made[kind, family]

    return make


def expected(model, prompt, **others):
    """New tokens of transformers' `generate`, and its logits."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=GREEDY.max_new_tokens,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        **({"eos_token_id": None} | others),
    )
    return out.sequences[0, len(prompt) :].tolist(), out.logits


def tokens(run):
    return [completion.tokens for completion in run.completions]


def some_stops(model, prompts):
    """Tokens that end outputs early, at different lengths, and the outputs that then come out."""
    free = [expected(model, prompt)[0] for prompt in prompts]
    stops = sorted({free[0][1], free[2][6], free[4][11]})
    return stops, [expected(model, prompt, eos_token_id=stops)[0] for prompt in prompts]


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("jax", "llama"),
        ("torch", "llama"),
        pytest.param("jax", "falcon_h1", marks=pytest.mark.slow),
        pytest.param("torch", "falcon_h1", marks=pytest.mark.slow),
        pytest.param("jax", "gemma2", marks=pytest.mark.slow),
        pytest.param("jax", "mamba2", marks=pytest.mark.slow),
    ],
)
def test_a_place_that_is_free_is_taken_by_the_next_prompt(kind, family, engines, models, prompts):
    stops, reference = some_stops(models(family)[1], prompts)
    engine = engines(kind, family)
    ended = []
    run = complete(
        engine,
        prompts,
        GREEDY,
        batch_size=2,
        stop_ids=stops,
        on_done=lambda d: ended.append(d.index),
    )
    assert tokens(run) == reference
    assert {completion.rows for completion in run.completions} == {2}
    assert sorted(ended) == list(range(len(prompts))) != ended


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_places_are_taken_with_padding_on_the_left_and_alone(kind, engines, models, prompts):
    stops, reference = some_stops(models("llama")[1], prompts)
    engine = engines(kind, "llama")
    left = complete(engine, prompts, GREEDY, batch_size=2, stop_ids=stops, padding="left")
    assert tokens(left) == reference
    one = complete(engine, prompts[:3], GREEDY, batch_size=1, stop_ids=stops)
    assert tokens(one) == reference[:3]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_places_are_taken_on_a_mesh(family, engines, models, prompts):
    stops, reference = some_stops(models(family)[1], prompts)
    run = complete(engines("mesh", family), prompts, GREEDY, batch_size=3, stop_ids=stops)
    assert tokens(run) == reference


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "falcon_h1"])
def test_no_program_is_compiled_for_more_prompts_of_known_lengths(
    family, engines, models, prompts, monkeypatch
):
    monkeypatch.setattr(generate_loop, "_LEAST_TURNS", 1)
    stops, _ = some_stops(models(family)[1], prompts)
    engine = engines("jax", family)
    complete(engine, prompts, GREEDY, batch_size=2, stop_ids=stops)
    programs = {*engine._programs}
    complete(engine, prompts * 2, GREEDY, batch_size=2, stop_ids=stops)
    assert {*engine._programs} == programs


def test_each_prompt_is_fed_in_its_own_bucket(engines, prompts, monkeypatch):
    engine, shapes = engines("jax", "llama"), []
    start = engine._start
    monkeypatch.setattr(
        engine,
        "_start",
        lambda batch, tokens, length: shapes.append(tokens.shape) or start(batch, tokens, length),
    )
    complete(engine, prompts, GREEDY, batch_size=2)
    assert shapes == [(1, 32 if length > 16 else 16) for length in LENGTHS]


@pytest.mark.slow
def test_prompts_are_fed_together_and_ended_rows_leave_the_batch(
    engines, models, prompts, monkeypatch
):
    """Long prompts first, without padding; the cache then shrinks in slots, at the end in rows."""
    monkeypatch.setattr(packed_rounds, "_LEAST_ROWS", 1)
    monkeypatch.setattr(generate_loop, "_LEAST_TURNS", 2)
    engine, fed, sizes = engines("jax", "llama"), [], []
    admit, resize = engine.admit_packed, engine.resize

    def admit_packed(batch, rows, texts, *others):
        fed.append([len(text) for text in texts])
        admit(batch, rows, texts, *others)

    def resized(batch, keep, *, rows, slots):
        sizes.append((rows, slots))
        resize(batch, keep, rows=rows, slots=slots)

    monkeypatch.setattr(engine, "admit_packed", admit_packed)
    monkeypatch.setattr(engine, "resize", resized)
    prompts = [*prompts, prompts[2] * 10]
    stops, reference = some_stops(models("llama")[1], prompts)
    assert tokens(complete(engine, prompts, GREEDY, batch_size=4, stop_ids=stops)) == reference
    assert fed[0] == [300, 30, 17, 12]
    assert sorted(n for pack in fed for n in pack) == sorted(map(len, prompts))
    assert (4, 256) in sizes
    assert sizes[-1][0] < 4


@pytest.mark.slow
@pytest.mark.parametrize("turns", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_draws_depend_on_the_request_not_on_its_place(turns, engines, prompts, monkeypatch):
    monkeypatch.setattr(generate_loop, "_LEAST_TURNS", turns)
    drawn = dataclasses.replace(GREEDY, temperature=0.9, top_p=0.95)
    engine = engines("jax", "llama")
    stops = (5, 6, 7, 8, 9, 10, 11, 12)
    together = tokens(complete(engine, prompts, drawn, batch_size=2, stop_ids=stops))
    torch_engine = engines("torch", "llama")
    assert tokens(complete(torch_engine, prompts, drawn, batch_size=3, stop_ids=stops)) == together
    assert (
        tokens(complete(engine, prompts, drawn, batch_size=2, stop_ids=stops, skip=range(4)))
        == (together[4:])
    )


@pytest.mark.slow
def test_a_prompt_may_have_a_seed_of_its_own(engines, prompts):
    drawn = dataclasses.replace(GREEDY, temperature=0.9)
    engine = engines("jax", "llama")
    run = complete(engine, prompts[:3], drawn, batch_size=2, seeds=[None, 8, 9])
    plain = complete(engine, prompts[:3], drawn, batch_size=2)
    assert tokens(run)[0] == tokens(plain)[0]
    alone = dataclasses.replace(drawn, seed=9)
    assert tokens(run)[2] == tokens(complete(engine, prompts[2:3], alone))[0] != tokens(plain)[2]


PENALTIES = {
    "repetition_penalty": 1.6,
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 12,
}


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("torch", "llama"),
        pytest.param("jax", "llama", marks=pytest.mark.slow),
        pytest.param("mesh", "llama", marks=pytest.mark.slow),
        pytest.param("jax", "gemma2", marks=pytest.mark.slow),
    ],
)
def test_penalties_in_a_batch_are_those_of_transformers(kind, family, engines, models, prompts):
    """Alone in transformers, in padded batches here: padding counts for nothing."""
    model = models(family)[1]
    stops, _ = some_stops(model, prompts)
    bias = [[[stops[0]], 3.0], [[20, 21], -4.0]]
    changes = PENALTIES | {"sequence_bias": bias, "eos_token_id": stops}
    reference = [expected(model, prompt, **changes)[0] for prompt in prompts]
    options = dataclasses.replace(GREEDY, **PENALTIES, logit_bias=(f"{stops[0]}=3.0", "20,21=-4.0"))
    engine = engines(kind, family)
    run = complete(engine, prompts, options, batch_size=2, stop_ids=stops)
    assert tokens(run) == reference
    assert reference != [expected(model, prompt, eos_token_id=stops)[0] for prompt in prompts]


@pytest.mark.slow
def test_no_sampling_value_compiles_again(engines, prompts):
    engine = engines("jax", "llama")
    complete(engine, prompts[:2], GREEDY, batch_size=2)
    programs = {*engine._programs}
    for change in (
        {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9, "seed": 3},
        {"temperature": 1.7, **PENALTIES, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"logit_bias": ("3=1.0", "4,5=-inf"), "max_new_tokens": 13},
    ):
        options = dataclasses.replace(GREEDY, **change)
        for stop_ids in ((), (7,), (7, 8, 9)):
            complete(engine, prompts[:2], options, batch_size=2, stop_ids=stop_ids)
    assert {*engine._programs} == programs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "family"),
    [
        ("torch", "llama"),
        ("jax", "llama"),
        ("jax", "falcon_h1"),
    ],
)
def test_penalties_go_on_after_a_resume(family, second, engines, models, prompts, tmp_path):
    network, _ = models(family)
    options = dataclasses.replace(
        GREEDY, **PENALTIES, presence_penalty=0.5, temperature=0.7, seed=5
    )
    few = prompts[:3]
    whole = complete(engines("jax", family), few, options, batch_size=2, seeds=[None, 2, None])
    begun = dataclasses.replace(options, max_new_tokens=12)
    run = complete(
        engines("jax", family), few, begun, batch_size=2, seeds=[None, 2, None], keep_snapshots=True
    )
    path, mark = tmp_path / "cache.safetensors", fingerprint(network)
    of_model = {"fingerprint": mark, "model": "tiny", "tokenizer": "t"}
    save_snapshot(path, merged(run.snapshots), prompts=["a", "b", "c"], **of_model)
    snapshot, _ = load_snapshot(path, network=network, **of_model)
    other = dataclasses.replace(options, seed=0)  # rows draw with the seeds they began with
    assert tokens(continue_from(engines(second, family), snapshot, other)) == tokens(whole)


# ---- log-probabilities


@pytest.mark.parametrize(
    "kind", ["torch", *(pytest.param(k, marks=pytest.mark.slow) for k in ("jax", "mesh"))]
)
def test_logprobs_are_transformers_raw_scores(kind, engines, models, prompts):
    options = dataclasses.replace(GREEDY, logprobs=3, repetition_penalty=1.5)
    model = models("llama")[1]
    run = complete(engines(kind, "llama"), prompts[:4], options, batch_size=2)
    for completion, prompt in zip(run.completions, prompts, strict=False):
        reference, logits = expected(model, prompt, repetition_penalty=1.5)
        assert completion.tokens == reference
        assert completion.logprobs is not None
        of_chosen, top, ids = completion.logprobs
        scores = torch.cat(logits).log_softmax(-1)
        # Float32 logits of two implementations.
        np.testing.assert_allclose(
            of_chosen, scores[torch.arange(20), reference], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(top[:, :3], scores.topk(3).values, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(ids[:, :3], scores.topk(3).indices)


@pytest.mark.slow
def test_logprobs_before_a_resume_are_not_known(engines, prompts):
    engine = engines("jax", "llama")
    begun = dataclasses.replace(GREEDY, max_new_tokens=5)
    run = complete(engine, prompts[:1], begun, keep_snapshots=True)
    options = dataclasses.replace(GREEDY, logprobs=0)
    done = continue_from(engine, run.snapshots[0], options).completions[0]
    assert done.logprobs is not None
    assert np.isnan(done.logprobs[0]).tolist() == [True] * 5 + [False] * 15


# ---- stop texts


def letters(ids):
    """A decoder in which every token is three letters."""
    return "".join(chr(97 + i % 26) + chr(97 + i // 26 % 26) + "-" for i in ids)


def first_end(ids, texts):
    """By the definition: the fewest tokens whose text has a stop text in it."""
    for n in range(1, len(ids) + 1):
        text = letters(ids[:n])
        if any(stop in text for stop in texts):
            return n, min(text.find(stop) for stop in texts if stop in text)
    return len(ids), len(letters(ids))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("jax", "llama"),
        ("torch", "llama"),
        pytest.param("jax", "falcon_h1", marks=pytest.mark.slow),
    ],
)
def test_an_output_ends_with_the_token_that_completes_a_text(
    kind, family, engines, models, prompts
):
    model = models(family)[1]
    free = [expected(model, prompt)[0] for prompt in prompts]
    texts = [
        letters(free[0])[10:15],  # from within one token into the next but one
        letters(free[2])[33:34] + letters(free[2])[34:39],
        letters(free[4])[3:6],
    ]
    stop = StopText(texts, letters)
    run = complete(engines(kind, family), prompts, GREEDY, batch_size=2, stop_text=stop)
    for completion, ids in zip(run.completions, free, strict=True):
        length, at = first_end(ids, texts)
        assert completion.tokens == ids[:length]
        assert stop.text(completion.tokens) == letters(ids)[:at]
        assert completion.finish == ("stop" if length < len(ids) else "length")
    assert [c.finish for c in run.completions].count("stop") >= 3


def test_a_stop_text_counts_after_the_minimum_length(engines, models, prompts):
    free = expected(models("llama")[1], prompts[0])[0]
    stop = StopText([letters(free)[4:7]], letters, min_new_tokens=6)
    options = dataclasses.replace(GREEDY, min_new_tokens=6)
    run = complete(engines("jax", "llama"), prompts[:1], options, stop_text=stop)
    again = letters(free).find(letters(free)[4:7], 6 * 3 - 2)
    expected_length = 20 if again < 0 else (again + 3 + 2) // 3
    assert len(run.completions[0].tokens) == expected_length


def test_tokens_after_a_stop_text_are_not_streamed_or_saved(engines, models, prompts):
    free = expected(models("llama")[1], prompts[0])[0]
    stop = StopText([letters(free)[10:13]], letters)
    streamed = []
    run = complete(
        engines("jax", "llama"),
        prompts[:1],
        GREEDY,
        stop_text=stop,
        on_tokens=lambda index, new: streamed.extend(new),
        keep_snapshots=True,
    )
    assert streamed == run.completions[0].tokens == free[:5]
    snapshot = run.snapshots[0]
    assert snapshot.done.tolist() == [True]
    assert snapshot.outputs[0].tolist()[:5] == free[:5]
    assert snapshot.filled.tolist() == [len(prompts[0]) + 4]


def test_printable_text_holds_back_what_may_become_a_stop_text():
    stop = StopText(["abc", "-x"], lambda ids: "".join(map(chr, ids)))
    shown = [stop.printable([ord(c) for c in text]) for text in ("zzab", "zzabd", "zz-", "zzabcq")]
    assert shown == ["zz", "zzabd", "zz", "zz"]
    assert stop.text([ord(c) for c in "zzab"]) == "zzab"
