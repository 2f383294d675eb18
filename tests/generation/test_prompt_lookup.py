"""Prompt lookup: the same greedy tokens in fewer steps."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from jaxsr.errors import InputError
from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.logits_processors import History
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.prompt_lookup import proposed
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.loading import build

GREEDY = SamplingOptions(max_new_tokens=40)
LOOKUP = dataclasses.replace(GREEDY, prompt_lookup=5)


@pytest.fixture(scope="module")
def repeating():
    """A network whose greedy outputs soon repeat themselves."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    fields = json.loads(config.to_json_string(use_diff=False))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = build(LlamaConfig.from_hf(fields), state, torch.float32)
    return network.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def engine(repeating):
    return JaxDecoder(repeating)


def tokens(run):
    return [completion.tokens for completion in run.completions]


@pytest.mark.slow  # by default of a network of transformers, below
def test_tokens_stay_the_same(engine):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 64, n).tolist() for n in (5, 17, 3, 30)]
    for stops in ((), (7, 11, 30)):
        reference = complete(engine, prompts, GREEDY, batch_size=2, stop_ids=stops, padding="left")
        run = complete(engine, prompts, LOOKUP, batch_size=2, stop_ids=stops, padding="left")
        assert tokens(run) == tokens(reference)
        assert [c.finish for c in run.completions] == [c.finish for c in reference.completions]


def test_steps_are_fewer_than_tokens(engine):
    prompt = np.random.default_rng(0).integers(3, 64, 5).tolist()
    longer = dataclasses.replace(LOOKUP, max_new_tokens=150)
    batch = engine.start([prompt], [0], longer)
    engine.advance(batch, 50)
    assert (engine.outputs(batch) != UNFILLED).sum() > 1.5 * 50


@pytest.mark.slow
def test_saved_batches_go_on(engine):
    begun = dataclasses.replace(LOOKUP, max_new_tokens=9)
    run = complete(engine, [[5, 6, 7], [9] * 8], begun, batch_size=2, keep_snapshots=True)
    reference = tokens(complete(engine, [[5, 6, 7], [9] * 8], GREEDY, batch_size=2))
    assert tokens(continue_from(engine, run.snapshots[0], LOOKUP)) == reference


@pytest.mark.parametrize(
    ("prompt", "output", "continuation"),
    [
        ([1, 2, 3, 4, 9, 1, 2], [3], [4, 9, 1, 2]),  # after three tokens that came before
        ([8, 5, 6, 7, 5, 9], [5], [9, 5, 9, 5]),  # the latest of two, and on from its beginning
        ([1, 2, 3], [4], [0, 0, 0, 0]),  # no match
        ([4], [4, 4], [4, 4, 4, 4]),
    ],
)
def test_proposals_follow_the_longest_match(prompt, output, continuation):
    prompt_BT = np.full((1, 10), UNFILLED, np.int32)
    outputs_BN = np.full((1, 6), UNFILLED, np.int32)
    prompt_BT[0, 10 - len(prompt) :] = prompt
    outputs_BN[0, : len(output)] = output
    history = History(prompt_BT, outputs_BN, np.array([len(output)], np.int32))
    assert proposed(history, 4)[0].tolist() == continuation


@pytest.mark.parametrize(
    "fields", [{"temperature": 1.0}, {"repetition_penalty": 1.1}, {"logprobs": 1}, {"num_beams": 2}]
)
def test_other_ways_of_choosing_are_refused(fields):
    with pytest.raises(InputError, match="prompt_lookup=3 is for plain greedy decoding"):
        SamplingOptions(prompt_lookup=3, **fields)
    with pytest.raises(InputError, match="prompt_lookup must be at least 1"):
        SamplingOptions(prompt_lookup=0)


def test_torch_is_refused(repeating):
    with pytest.raises(InputError, match="prompt_lookup=5 is for --engine jax"):
        complete(TorchDecoder(repeating), [[5]], LOOKUP)


# A window, experts, latent attention, sparse attention, chunks and biases by place, …
FAMILIES = ("gemma2", "mixtral", "deepseek_v3", "deepseek_v32", "llama4_text", "mpt", "mistral")
FAMILIES += ("bloom", "gpt2", "gpt_oss", "falcon", "gptj", "phi3", "cohere2", "gemma3_text")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """`library(family)`: the network, prompts and transformers' tokens."""
    pytest.importorskip("transformers")
    from jaxsr.models.hugging_face.network import LibraryLM
    from tests.oracles.language_models.tiny import reference_tokens, tiny_model

    folder, rng = tmp_path_factory.mktemp("configurations"), np.random.default_rng(0)
    # Longer than windows, growing past them, and one that repeats itself.
    prompts = [rng.integers(3, 90, n).tolist() for n in (20, 5)] + [[7, 8, 9, 10] * 3]

    made = {}

    def make(family):
        if family not in made:
            model = tiny_model(family, folder)
            reference = reference_tokens(model, prompts=prompts, new_tokens=23)
            made[family] = (LibraryLM(model).requires_grad_(False).eval(), prompts, reference)
        return made[family]

    return make


OF_LIBRARY = dataclasses.replace(LOOKUP, max_new_tokens=23)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_networks_of_transformers_have_their_tokens(family, library):
    network, prompts, reference = library(family)
    network.check_verifies()
    engine = JaxDecoder(network)
    # The third prompt takes a row's place.
    assert tokens(complete(engine, prompts, OF_LIBRARY, batch_size=2)) == reference
    stop = reference[0][9]
    cut = [row[: row.index(stop) + 1] if stop in row else row for row in reference]
    run = complete(engine, prompts, OF_LIBRARY, batch_size=2, stop_ids=(stop,))
    assert tokens(run) == cut


@pytest.mark.slow
def test_their_saved_batches_go_on(library):
    network, prompts, reference = library("gemma2")
    begun = dataclasses.replace(OF_LIBRARY, max_new_tokens=12)
    plain = dataclasses.replace(begun, prompt_lookup=None)
    engine = JaxDecoder(network)
    saved, of_torch = (
        complete(each, prompts, options, batch_size=3, keep_snapshots=True).snapshots[0]
        for each, options in ((engine, begun), (TorchDecoder(network), plain))
    )
    np.testing.assert_array_equal(saved.outputs, of_torch.outputs)
    for name, array in of_torch.cache.items():
        np.testing.assert_allclose(saved.cache[name], array, atol=1e-5)  # of values about 1
    assert tokens(continue_from(engine, saved, OF_LIBRARY)) == reference


def test_states_are_refused_by_name(tmp_path):
    pytest.importorskip("transformers")
    from jaxsr.models.hugging_face.network import LibraryLM
    from tests.oracles.language_models.tiny import tiny_model

    network = LibraryLM(tiny_model("mamba", tmp_path))
    message = "mamba keeps states of convolutions or recurrences, from which proposed tokens cannot"
    with pytest.raises(InputError, match=message):
        network.check_verifies()
    with pytest.raises(InputError, match=message):
        complete(JaxDecoder(network), [[5]], LOOKUP)


def test_code_that_sees_other_tokens_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from jaxsr.models.hugging_face import network as library_network
    from tests.oracles.language_models.tiny import tiny_model

    network = library_network.LibraryLM(tiny_model("gpt2", tmp_path))
    network.check_verifies()
    monkeypatch.setattr(
        library_network, "mask_of_appended", lambda cache, first, length, count: torch.ones(1, 7)
    )
    with pytest.raises(InputError, match=r"gpt2's own code .* several tokens: logits differ by"):
        network.check_verifies()
