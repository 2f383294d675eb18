"""Blocks with a window of attention keep the window alone, and change nothing by it."""

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.generation.decoder import ending_at, from_slot_zero
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.generation.stop_text import StopText
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.hugging_face.network import LibraryLM
from tests.oracles.language_models import tiny

WINDOW = 8  # of `tiny_model`
GREEDY = SamplingOptions(max_new_tokens=20)
ENGINES = {
    "jax": JaxDecoder,
    "torch": TorchDecoder,
    "mesh": lambda network: JaxDecoder(network, mesh=tensor_mesh(2)),
}
LENGTHS = (20, 5, 11)  # a row longer than the window, one that grows past it, one in between


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """`models(family)`: the network, prompts and transformers' tokens."""
    folder, made = tmp_path_factory.mktemp("configurations"), {}
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 90, n).tolist() for n in LENGTHS]

    def make(family):
        if family not in made:
            model = tiny.tiny_model(family, folder)
            reference = tiny.reference_tokens(
                model, prompts=prompts, new_tokens=GREEDY.max_new_tokens
            )
            network = LibraryLM(model).requires_grad_(False).eval()
            made[family] = (network, prompts, reference)
        return made[family]

    return make


def tokens(run):
    return [completion.tokens for completion in run.completions]


@pytest.mark.parametrize("window", [None, 1, 8, 13, 64])
def test_a_ring_gives_back_what_it_was_made_of(window):
    rng = np.random.default_rng(1)
    filled, slots = np.array([40, 3, 17, 8]), 48
    whole = rng.random((4, 2, 40, 3), np.float32)
    for row, count in enumerate(filled):
        whole[row, :, count:] = 0
    held = min(window or 40, 40)
    last = np.zeros((4, 2, held, 3), np.float32)
    for row, count in enumerate(filled):
        tail = whole[row, :, max(0, count - held) : count]
        last[row, :, : tail.shape[1]] = tail
    ring = ending_at(last, filled, slots=slots, window=window)
    assert ring.shape == (4, 2, min(window or slots, slots), 3)
    np.testing.assert_array_equal(
        from_slot_zero(ring, 40 - filled, np.full(4, 40), window=window), last
    )


def test_rows_that_ended_keep_what_others_did_not_overwrite():
    # Slots 2 to 9 in a ring of 8, of which a row has filled those up to 7.
    ring = np.roll(np.arange(2, 10.0), 2)[None, None, :, None].repeat(2, 0)
    rows = from_slot_zero(ring, np.zeros(2, int), np.array([10, 7]), window=8)
    np.testing.assert_array_equal(rows[0, 0, :, 0], np.arange(2, 10))
    # Of its last 7 tokens, 0 and 1 are gone.
    np.testing.assert_array_equal(rows[1, 0, :, 0], [0, 0, 2, 3, 4, 5, 6, 0])


@pytest.mark.parametrize(
    ("kind", "family", "padding"),
    [
        ("torch", "gemma2", "left"),
        ("torch", "mistral", "right"),  # no block keeps all slots
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("jax", "gemma2", "left"),
                ("jax", "gemma2", "right"),
                ("mesh", "gemma2", "left"),
                ("mesh", "mistral", "right"),
                ("jax", "mistral", "right"),
                ("jax", "gemma3_text", "right"),
                ("jax", "gpt_oss", "left"),
                ("jax", "cohere2", "right"),
                ("jax", "ministral", "right"),
            )
        ),
    ],
)
def test_prompts_longer_than_the_window_and_saved_caches(kind, family, padding, models):
    network, prompts, reference = models(family)
    engine = ENGINES[kind](network)
    whole = complete(engine, prompts, GREEDY, batch_size=3, padding=padding, keep_snapshots=True)
    assert tokens(whole) == reference
    windows = network.cache_windows()
    assert windows and {*windows.values()} == {WINDOW}
    for name, array in whole.snapshots[0].cache.items():
        assert array.shape[2] == (WINDOW if name in windows else 39), name

    begun = dataclasses.replace(GREEDY, max_new_tokens=9)
    half = complete(engine, prompts, begun, batch_size=3, padding=padding, keep_snapshots=True)
    saved = half.snapshots[0]
    again = engine.snapshot(engine.resume(saved, GREEDY))
    for name, array in saved.cache.items():
        np.testing.assert_array_equal(again.cache[name], array)
    assert tokens(continue_from(engine, saved, GREEDY)) == reference


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_the_arrays_hold_the_window(family, models):
    network, _, _ = models(family)
    all_tokens = torch.arange(12)[None]
    _, whole = network(all_tokens)
    _, entries = network(all_tokens, slots=32)
    windows = network.cache_windows()
    for name, array in entries.items():
        if name in windows:
            assert array.shape[2] == WINDOW
            for slot in range(12 - WINDOW, 12):
                torch.testing.assert_close(array[:, :, slot % WINDOW], whole[name][:, :, slot])
        else:
            assert array.shape[2] == 32
    _, entries = network(torch.arange(4)[None], slots=6)  # fewer slots than the window
    assert {array.shape[2] for array in entries.values()} == {6}


@pytest.mark.parametrize(
    "kind", ["torch", *(pytest.param(k, marks=pytest.mark.slow) for k in ("jax", "mesh"))]
)
def test_places_are_taken_by_other_prompts(kind, models):
    network, prompts, reference = models("mistral")
    engine = ENGINES[kind](network)
    stop = StopText([chr(reference[0][6] + 1)], lambda ids: "".join(chr(i + 1) for i in ids))
    ended = [row[: row.index(reference[0][6]) + 1] if reference[0][6] in row else row
             for row in reference]  # fmt: skip
    many = [*prompts, *prompts[::-1], prompts[0]]
    run = complete(engine, many, GREEDY, batch_size=2, stop_text=stop)
    assert tokens(run) == [*ended, *ended[::-1], ended[0]]


def test_chunks_keep_all_slots(models):
    assert models("llama4_text")[0].cache_windows() == {}
