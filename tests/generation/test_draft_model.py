"""A draft model: greedy tokens of transformers' `generate` in fewer steps of the model."""

import copy
import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.errors import InputError
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.draft_model import check_same_tokens
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.llama.tokenizer import load_tokenizer
from tests.oracles.language_models.tiny import reference_tokens, tiny_model

# A run of five tokens is cut at the end: 1 + 4 * 5 + 3.
DRAFTED = SamplingOptions(max_new_tokens=24, num_draft_tokens=4)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(3, 320, n).tolist() for n in (20, 5, 11)]


@pytest.fixture(scope="module")
def reference(hf_model, prompts):
    model = copy.deepcopy(hf_model("llama"))
    return reference_tokens(model, prompts=prompts, new_tokens=DRAFTED.max_new_tokens)


@pytest.fixture(scope="module")
def networks(network, hf_model, tmp_path_factory):
    """`networks(kind)`: by jaxsr, by transformers, and drafts that are often wrong."""
    made = {}

    def make(kind):
        if kind not in made:
            if kind == "windows":  # other weights, almost never right
                model = tiny_model("gemma2", tmp_path_factory.mktemp("draft"))
            else:
                model = network("llama") if "own" in kind else hf_model("llama")
            model = copy.deepcopy(model)
            if "wrong" in kind:
                generator = torch.Generator().manual_seed(0)
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.add_(0.01 * torch.randn(weight.shape, generator=generator))
            made[kind] = model if "own" in kind else LibraryLM(model).eval()
        return made[kind]

    return make


def tokens(run):
    return [completion.tokens for completion in run.completions]


def tokens_a_step(engine, prompts, steps=3):
    batch = engine.start(prompts, range(len(prompts)), DRAFTED)
    engine.advance(batch, steps)
    return ((engine.outputs(batch) != UNFILLED).sum(1) - 1) / steps


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("own", "own, wrong"),
        pytest.param("transformers'", "transformers', wrong", marks=pytest.mark.slow),
        pytest.param("own", "transformers', wrong", marks=pytest.mark.slow),
        pytest.param("transformers'", "own, wrong", marks=pytest.mark.slow),
        pytest.param("own", "windows", marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_transformers(target, draft, networks, prompts, reference):
    engine = JaxDecoder(networks(target), draft=networks(draft))
    # The third prompt takes a row's place. Stop tokens lie inside runs.
    assert tokens(complete(engine, prompts, DRAFTED, batch_size=2)) == reference
    if draft != "windows":
        assert 1.2 < tokens_a_step(engine, prompts).mean() < 4.9
    stops = (reference[0][7], reference[1][12])
    cut = [next((r[: i + 1] for i, t in enumerate(r) if t in stops), r) for r in reference]
    run = complete(engine, prompts, DRAFTED, batch_size=2, stop_ids=stops)
    assert tokens(run) == cut and len(cut[0]) <= 8
    assert [done.finish for done in run.completions] == [
        "stop" if row[-1] in stops else "length" for row in cut
    ]


@pytest.mark.slow
def test_the_model_itself_is_always_right(networks, prompts, reference):
    engine = JaxDecoder(networks("own"), draft=networks("own"))
    assert tokens(complete(engine, prompts, DRAFTED, batch_size=3, padding="left")) == reference
    assert tokens_a_step(engine, prompts).tolist() == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["own", "transformers'"])
def test_a_mesh_and_deterministic_rows_change_nothing(target, networks, prompts, reference):
    network, draft = networks(target), networks("own, wrong")
    engine = JaxDecoder(network, draft=draft, mesh=tensor_mesh(4))
    assert tokens(complete(engine, prompts, DRAFTED, batch_size=3)) == reference
    engine = JaxDecoder(network, draft=draft)
    run = complete(engine, prompts, DRAFTED, batch_size=3, deterministic=True)
    assert tokens(run) == reference


def test_what_cannot_be_drafted_is_refused(networks, prompts, tmp_path):
    engine = JaxDecoder(networks("own"))
    with pytest.raises(InputError, match="num_draft_tokens=4 needs a draft model"):
        complete(engine, prompts, DRAFTED)
    with pytest.raises(InputError, match="num_draft_tokens=4 is for plain greedy decoding"):
        dataclasses.replace(DRAFTED, temperature=0.5)
    with pytest.raises(InputError, match="prompt_lookup=3 and a draft model both propose"):
        dataclasses.replace(DRAFTED, prompt_lookup=3)
    states = LibraryLM(tiny_model("mamba", tmp_path))
    with pytest.raises(InputError, match="mamba keeps states of convolutions or recurrences"):
        complete(JaxDecoder(networks("own"), draft=states), prompts, DRAFTED)
    short = copy.deepcopy(networks("own"))
    short.config = dataclasses.replace(short.config, max_position_embeddings=40)
    with pytest.raises(InputError, match="take 44 tokens, but the draft model's context holds 40"):
        complete(JaxDecoder(networks("own"), draft=short), prompts, DRAFTED)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_draft_tokens": 3}, "num_draft_tokens=3 needs a draft model; give --draft-model"),
        ({"draft_model": Path("x"), "temperature": 1.0}, "num_draft_tokens=4 is for plain greedy"),
        ({"draft_model": Path("x"), "engine": "torch"}, "num_draft_tokens=4 is for --engine jax"),
        (
            {"draft_model": Path("x"), "resume": Path("x")},
            "no cache of the draft model; leave --draft-model",
        ),
        ({"draft_model": Path("x"), "prompt_lookup": 2}, "both propose tokens"),
    ],
)
def test_options_that_exclude_each_other(fields, message):
    with pytest.raises(InputError, match=message):
        GenerateConfig(model=Path("model"), **fields)


def test_another_tokenizer_is_refused_by_a_token(model_folder, hf_tokenizer, tmp_path):
    folder = model_folder("llama")
    same = tmp_path / "same"
    shutil.copytree(folder, same)
    check_same_tokens(load_tokenizer(folder), load_tokenizer(same), same)
    other = copy.deepcopy(hf_tokenizer)
    other.add_tokens(["Paris"])
    other.save_pretrained(tmp_path / "other")
    message = r"other has other tokens than the model: 'Paris' is 320 there and no token in the"
    with pytest.raises(InputError, match=message):
        check_same_tokens(
            load_tokenizer(folder), load_tokenizer(tmp_path / "other"), tmp_path / "other"
        )
