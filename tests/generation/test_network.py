"""The network against `transformers`: whole prompts, cached steps, left padding, and under JAX."""

import copy
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.models.language_models import load_language_model
from jaxsr.models.llama.network import take_fewer_kernels

FAMILIES = ("llama", "llama-plain", "qwen3")
# Logits reach about 20; float32 sums of at most 96 terms in another order.
CLOSE: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-5}


def grown(cache, slots):
    return [tuple(F.pad(t, (0, 0, 0, slots - t.shape[2])) for t in pair) for pair in cache]


@pytest.fixture
def tokens():
    # 100 tokens: past the original context of the scaled rope.
    return torch.randint(3, 320, (2, 100), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_and_cached_steps_match_transformers(family, hf_model, network, tokens):
    want = hf_model(family)(tokens).logits
    got, cache = network(family)(tokens[:, :90])
    torch.testing.assert_close(got, want[:, :90], **CLOSE)
    filled = torch.full((2,), 90)
    got, _ = network(family)(tokens[:, 90:], grown(cache, 128), filled_B=filled)
    torch.testing.assert_close(got, want[:, 90:], **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_left_padding_matches_transformers_with_a_mask(family, hf_model, network, tokens):
    pad = torch.tensor([7, 0])
    mask = (torch.arange(100) >= pad[:, None]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    want = hf_model(family)(tokens, attention_mask=mask, position_ids=positions).logits
    got, cache = network(family)(tokens[:, :99], first_B=pad)
    torch.testing.assert_close(got[0, 7:], want[0, 7:99], **CLOSE)
    torch.testing.assert_close(got[1], want[1, :99], **CLOSE)
    assert got.isfinite().all()
    filled = torch.full((2,), 99)
    last, _ = network(family)(
        tokens[:, 99:],
        grown(cache, 128),
        filled_B=filled,
        first_B=pad,
        read_B=torch.zeros(2).long(),
    )
    torch.testing.assert_close(last, want[:, 99], **CLOSE)


@torch.no_grad()
def test_texts_in_one_row_do_not_see_each_other(hf_model, network, tokens):
    texts = [tokens[0, :41], tokens[1, :7], tokens[1, 7:60]]
    first = torch.cat([torch.full((len(t),), b) for t, b in zip(texts, (0, 41, 48), strict=True)])
    last = torch.tensor([[40, 47, 100]])
    got, cache = network("llama")(torch.cat(texts)[None], first_B=first[None], read_B=last)
    want = torch.stack([hf_model("llama")(text[None]).logits[0, -1] for text in texts])
    torch.testing.assert_close(got[0], want, **CLOSE)
    keys = network("llama")(texts[2][None])[1][1][0]
    torch.testing.assert_close(cache[1][0][:, :, 48:], keys, **CLOSE)


@torch.no_grad()
def test_rows_stand_at_their_own_slots(network, tokens):
    alone, _ = network("llama")(tokens[:1, :31])
    _, cache = network("llama")(tokens[:, :30])
    filled = torch.tensor([30, 12])  # the second row's later slots must not be seen
    both, _ = network("llama")(tokens[:, 30:31], grown(cache, 64), filled_B=filled)
    torch.testing.assert_close(both[0, 0], alone[0, 30], **CLOSE)
    short, _ = network("llama")(torch.cat((tokens[1:, :12], tokens[1:, 30:31]), 1))
    torch.testing.assert_close(both[1, 0], short[0, 12], **CLOSE)


@pytest.mark.parametrize("first", [None, (4, 0)])
@pytest.mark.parametrize("count", [1, 3])
@torch.no_grad()
def test_entries_written_first_give_what_entries_beside_the_cache_give(
    first, count, network, tokens
):
    first = None if first is None else torch.tensor(first)
    _, entries = network("qwen3")(tokens[:, :30], first_B=first)
    cache, filled, new = grown(entries, 64), torch.tensor([30, 12]), tokens[:, 30 : 30 + count]
    options = {"filled_B": filled, "first_B": first}
    beside, entries = network("qwen3")(new, cache, **options)
    logits, written = network("qwen3")(new, cache, write=True, **options)
    torch.testing.assert_close(logits, beside, **CLOSE)
    for old, pair, out in zip(cache, entries, written, strict=True):
        for before, entry, after in zip(old, pair, out, strict=True):
            want = before.clone()
            for row, slot in enumerate(filled):
                want[row, :, slot : slot + count] = entry[row]
            torch.testing.assert_close(after, want, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_forms_for_gpus_compute_the_same(family, network, tokens):
    ours = copy.deepcopy(network(family))
    take_fewer_kernels(ours, join=True)
    for fed in (tokens, tokens[:1, :1]):
        want, kept = network(family)(fed)
        got, cache = ours(fed)
        torch.testing.assert_close(got, want, **CLOSE)
        torch.testing.assert_close(cache[1], kept[1], **CLOSE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_jax_computes_what_torch_computes(family, network, tokens):
    import jax
    import numpy as np

    from jaxsr.interop import to_jax

    model = to_jax(network(family))

    def run(params, buffers, tokens, read):
        return model.apply(params, buffers, tokens, read_B=read)[0]

    read = np.array([5, 99], np.int32)
    logits, cache = jax.jit(run)(model.params, model.buffers, tokens.numpy().astype("i4"), read)
    want, kept = network(family)(tokens, read_B=torch.from_numpy(read).long())
    np.testing.assert_allclose(logits, want, **CLOSE)
    np.testing.assert_allclose(cache[1][0], kept[1][0], atol=1e-4)


@torch.no_grad()
def test_bfloat16_stays_near_float32(network, hf_model, tokens):
    ours = copy.deepcopy(network("qwen3"))
    inverse = ours.model.rotary_emb.inv_freq
    ours = ours.bfloat16()
    ours.model.rotary_emb.inv_freq = inverse  # angles stay float32, as in transformers
    want = hf_model("qwen3")(tokens).logits
    theirs = copy.deepcopy(hf_model("qwen3")).bfloat16()(tokens).logits.float()
    got, _ = ours(tokens)
    # No further from float32 than transformers' own bfloat16 is, with a half for luck.
    assert (got - want).abs().mean() < 1.5 * (theirs - want).abs().mean()


def test_configuration_says_what_is_wrong():
    from jaxsr.models.llama.config import LlamaConfig

    sizes = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    with pytest.raises(ValueError, match='model_type must be one of llama, qwen3, got "gpt2"'):
        LlamaConfig.from_hf({"model_type": "gpt2", **sizes})
    with pytest.raises(ValueError, match="vocab_size is missing"):
        LlamaConfig.from_hf({"model_type": "llama"})
    with pytest.raises(ValueError, match="rope type 'yarn', which jaxsr's own network does not"):
        LlamaConfig.from_hf({"model_type": "llama", **sizes, "rope_scaling": {"type": "yarn"}})
    with pytest.raises(ValueError, match="multiple of num_key_value_heads=3"):
        LlamaConfig.from_hf({"model_type": "llama", **sizes, "num_key_value_heads": 3})
    with pytest.raises(ValueError, match="use_sliding_window"):
        LlamaConfig.from_hf({"model_type": "qwen3", **sizes, "use_sliding_window": True})


def test_the_older_rotary_field_comes_first_as_in_transformers():
    import transformers

    from jaxsr.models.language_models import choose

    plain = {"rope_type": "default", "rope_theta": 10000.0}
    linear = {"type": "linear", "factor": 4.0}
    fields = {"model_type": "llama", "rope_parameters": plain, "rope_scaling": linear}
    theirs = transformers.LlamaConfig.from_dict(fields).to_dict()
    assert theirs["rope_parameters"]["rope_type"] == "linear"
    assert choose(fields) == "transformers"
    assert choose(fields | {"rope_scaling": None}) == "own"


@torch.no_grad()
def test_float64_network_stays_float64(network, tokens):
    """A comparison takes this network for the truth, which must not be rounded on the way."""
    import copy

    exact = copy.deepcopy(network("qwen3")).double()
    logits, cache = exact(tokens)
    assert logits.dtype == cache[0][0].dtype == torch.float64
    nudged = copy.deepcopy(exact)
    nudged.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-11  # lost in float32
    moved = (nudged(tokens)[0] - logits).abs().max()
    assert 0 < moved < 1e-8


@pytest.mark.parametrize("implementation", ["own", "transformers"])
@torch.no_grad()
def test_dynamic_frequencies_are_those_of_transformers(implementation, hf_model, tokens, tmp_path):
    from transformers import AutoModelForCausalLM

    hf_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    fields.pop("rope_parameters", None)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    path.write_text(json.dumps(fields | {"rope_parameters": rope}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert model.model.rotary_emb.rope_type == "dynamic"
    network = load_language_model(tmp_path, implementation=implementation).network
    last = network(tokens)[0].reshape(len(tokens), -1, 320)[:, -1]
    torch.testing.assert_close(last, model(tokens).logits[:, -1], **CLOSE)
    prompt = tokens[0].tolist()
    want = model.generate(tokens[:1], max_new_tokens=5, do_sample=False)[0, len(prompt) :]
    options = SamplingOptions(max_new_tokens=5)
    (done,) = complete(JaxDecoder(network), [prompt], options).completions
    assert done.tokens == want.tolist()
