"""Prompt lookup: the same greedy tokens in fewer steps."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from jaxsr.errors import InputError
from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxEngine
from jaxsr.generation.logits_processors import History
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.prompt_lookup import proposed
from jaxsr.generation.torch_decoder import TorchEngine
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
    return JaxEngine(repeating)


def tokens(run):
    return [completion.tokens for completion in run.completions]


def test_tokens_stay_the_same_in_fewer_steps(engine):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 64, n).tolist() for n in (5, 12, 3, 14)]
    for stops in ((), (7, 11, 30)):
        reference = complete(engine, prompts, GREEDY, batch_size=2, stop_ids=stops, padding="left")
        run = complete(engine, prompts, LOOKUP, batch_size=2, stop_ids=stops, padding="left")
        assert tokens(run) == tokens(reference)
        assert [c.finish for c in run.completions] == [c.finish for c in reference.completions]
    longer = dataclasses.replace(LOOKUP, max_new_tokens=150)
    batch = engine.start(prompts[:1], [0], longer)
    engine.advance(batch, 50)
    assert (engine.outputs(batch) != UNFILLED).sum() > 1.5 * 50


@pytest.mark.slow
def test_saved_batches_go_on(engine):
    from jaxsr.generation.generate_loop import continue_from

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


def test_engines_that_cannot_are_refused(repeating):
    with pytest.raises(InputError, match="for jaxsr's own networks"):
        complete(TorchEngine(repeating), [[5]], LOOKUP)
