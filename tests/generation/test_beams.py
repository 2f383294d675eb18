"""Beam search against `generate(num_beams=…)` of transformers."""

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.errors import DeviceError, InputError
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.stop_text import StopText
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.hugging_face.network import LibraryLM
from tests.oracles.language_models.tiny import tiny_model

BEAMS = SamplingOptions(max_new_tokens=12, num_beams=3, num_return_sequences=3)
LENGTHS = (9, 3, 17)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(3, 90, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def models(hf_model, network, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("configurations"), {}

    def make(family):
        if family not in made and family == "llama":
            made[family] = (network(family), hf_model(family))
        elif family not in made:
            model = tiny_model(family, folder)
            made[family] = (LibraryLM(model).requires_grad_(False).eval(), model)
        return made[family]

    return make


@pytest.fixture(scope="module")
def engines(models):
    made = {}

    def make(kind, family):
        if (kind, family) not in made:
            engine = {"jax": JaxDecoder, "torch": TorchDecoder}[kind]
            made[kind, family] = engine(models(family)[0])
        return made[kind, family]

    return make


def expected(model, prompt, options, stops, **others):
    """Outputs of transformers with their scores, the best first."""
    early = {"false": False, "true": True, "never": "never"}[options.early_stopping]
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=options.max_new_tokens,
        do_sample=False,
        num_beams=options.num_beams,
        num_return_sequences=options.num_return_sequences,
        length_penalty=options.length_penalty,
        early_stopping=early,
        eos_token_id=stops or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **others,
    )
    outputs = []
    for row in out.sequences[:, len(prompt) :].tolist():
        ends = [place for place, token in enumerate(row) if token in stops]
        outputs.append(row[: ends[0] + 1] if ends else row)
    return outputs, out.sequences_scores.tolist()


def check(run, reference):
    for completion, (outputs, scores) in zip(run.completions, reference, strict=True):
        assert [tokens for tokens, _ in completion.beams] == outputs
        np.testing.assert_allclose([score for _, score in completion.beams], scores, rtol=1e-4)
        assert completion.tokens == outputs[0]


CHANGES = (
    {},
    {"early_stopping": "true", "length_penalty": 0.0},
    {"early_stopping": "never", "length_penalty": 2.0},
    {"length_penalty": -1.5},
    {"early_stopping": "never", "length_penalty": -0.7},
)


def references(model, prompts, options, ids):
    return [expected(model, prompt, options, ids) for prompt in prompts]


def some_stops(model, prompts):
    """Tokens that end some of the outputs."""
    free = [outputs for outputs, _ in references(model, prompts, BEAMS, [])]
    return sorted({free[0][0][2], free[0][1][6], free[1][0][4], free[2][2][8]})


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("kind", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_outputs_and_scores_are_those_of_transformers(kind, change, engines, models, prompts):
    engine, model = engines(kind, "llama"), models("llama")[1]
    options = dataclasses.replace(BEAMS, **change)
    for ids in ([], some_stops(model, prompts)):
        reference = references(model, prompts, options, ids)
        check(complete(engine, prompts, options, batch_size=3, stop_ids=ids), reference)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_padding_and_deterministic_products_make_no_difference(kind, engines, models, prompts):
    engine, model = engines(kind, "llama"), models("llama")[1]
    stops = some_stops(model, prompts)
    reference = references(model, prompts, BEAMS, stops)
    left = complete(engine, prompts, BEAMS, batch_size=2, stop_ids=stops, padding="left")
    check(left, reference)
    alone = complete(engine, prompts, BEAMS, stop_ids=stops, deterministic=True)
    check(alone, reference)


# A window, and a recurrence: the states of a beam are those of the beam that it goes on from.
@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["gemma2", pytest.param("falcon_h1", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_beams_of_models_of_transformers(kind, family, engines, models, prompts):
    engine, model = engines(kind, family), models(family)[1]
    stops = some_stops(model, prompts)
    reference = references(model, prompts, BEAMS, stops)
    check(complete(engine, prompts, BEAMS, batch_size=3, stop_ids=stops), reference)


@pytest.mark.parametrize("kind", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_processors_change_the_scores_of_beams_too(kind, engines, models, prompts):
    model = models("llama")[1]
    others = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 6}
    free = expected(model, prompts[0], BEAMS, [])[0]
    stops = [free[0][1], free[1][3]]
    options = dataclasses.replace(BEAMS, num_beams=5, **others)
    reference = [expected(model, prompt, options, stops, **others) for prompt in prompts]
    check(
        complete(engines(kind, "llama"), prompts, options, batch_size=3, stop_ids=stops), reference
    )


def test_values_of_a_search_compile_nothing(engines, prompts):
    engine = engines("jax", "llama")
    complete(engine, prompts, BEAMS, batch_size=3)
    programs = {*engine._programs}
    other = dataclasses.replace(
        BEAMS, length_penalty=0.3, early_stopping="true", num_return_sequences=1, min_new_tokens=2
    )
    complete(engine, prompts, other, batch_size=3, stop_ids=(5, 6))
    assert {*engine._programs} == programs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
        ({"num_beams": 2, "temperature": 0.5}, "draws; use one of them"),
        ({"num_beams": 2, "logprobs": 1}, "logprobs are of single outputs"),
        ({"num_return_sequences": 2}, "is above num_beams=1; raise --num-beams"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty must be finite"),
        ({"early_stopping": "sometimes"}, "early_stopping"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_of_beams_say_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        SamplingOptions(**fields)


def test_what_beams_cannot_do_is_refused(engines, prompts):
    engine = engines("torch", "llama")
    stop = StopText(["x"], lambda ids: "")
    with pytest.raises(InputError, match="beam search ends at tokens"):
        complete(engine, prompts, BEAMS, stop_text=stop)
    run = complete(engine, prompts[:1], SamplingOptions(max_new_tokens=2), keep_snapshots=True)
    with pytest.raises(InputError, match="goes on without beams"):
        continue_from(engine, run.snapshots[0], BEAMS)


@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_beams_beyond_the_memory_are_refused_at_once(engines, prompts, monkeypatch, kind):
    engine = engines(kind, "llama")
    monkeypatch.setattr("jaxsr.interop.out_of_memory.free_memory_bytes", lambda: 2**20)
    many = dataclasses.replace(BEAMS, num_beams=1000)
    with pytest.raises(DeviceError, match=r"caches of 3000 outputs .* fewer --num-beams"):
        complete(engine, prompts, many, batch_size=3)
