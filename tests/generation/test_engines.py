"""Both engines against `transformers`' own generation, and against each other."""

import copy
import dataclasses
import json
import re
from collections import Counter

import numpy as np
import pytest
import torch

from jaxsr.generation import generate_loop
from jaxsr.generation.cache_file import load_snapshot, merged, save_snapshot
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.interop import out_of_memory
from jaxsr.interop.cpu_kernels import panel_product
from jaxsr.interop.weights import read_weights
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.loading import build, fingerprint
from jaxsr.models.llama.network import take_fewer_kernels
from jaxsr.models.llama.quantized import quantize

LENGTHS = (3, 17, 30, 16)
GREEDY = SamplingOptions(max_new_tokens=24)
LOOKUP = dataclasses.replace(GREEDY, prompt_lookup=3)
DRAWN = SamplingOptions(max_new_tokens=24, temperature=0.8, top_k=60, top_p=0.9, seed=3)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(3, 320, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def engines(network):
    made = {}

    def make(kind: str, family: str = "llama"):
        if (kind, family) not in made:
            if kind == "torch":
                made[kind, family] = TorchDecoder(network(family))
            else:
                mesh = tensor_mesh(8 if kind == "jax8" else 1)
                made[kind, family] = JaxDecoder(network(family), mesh=mesh)
        return made[kind, family]

    return make


def expected(model, prompts, count, stop=None):
    rows = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=0,
        )
        rows.append(out[0, len(prompt) :].tolist())
    return rows


def tokens(run):
    return [done.tokens for done in run.completions]


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", ["llama", "llama-plain", "qwen3"])
@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_greedy_matches_transformers(kind, family, engines, hf_model, prompts):
    want = expected(hf_model(family), prompts, 24)
    assert tokens(complete(engines(kind, family), prompts, GREEDY, batch_size=4)) == want


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_padding_side_and_batch_size_make_no_difference(kind, engines, hf_model, prompts):
    want = expected(hf_model("llama"), prompts, 24)
    engine = engines(kind)
    assert tokens(complete(engine, prompts, GREEDY, batch_size=4, padding="left")) == want
    assert tokens(complete(engine, prompts, GREEDY, batch_size=3)) == want  # the last is filled up
    assert tokens(complete(engine, prompts, GREEDY, batch_size=1)) == want


@pytest.mark.slow  # by default tests/generation/test_network.py compares their logits
@pytest.mark.parametrize(
    ("padding", "rows", "options"),
    [
        ("left", 3, GREEDY),
        ("left", 3, LOOKUP),
        ("right", 1, GREEDY),
        ("right", 1, LOOKUP),
    ],
)
def test_forms_for_gpus_give_the_same_tokens(padding, rows, options, network, hf_model, prompts):
    engine = JaxDecoder(network("llama"))
    engine._layout.writes_first = True
    take_fewer_kernels(engine._skeleton, join=True)
    want = expected(hf_model("llama"), prompts, 24)
    assert tokens(complete(engine, prompts, options, batch_size=rows, padding=padding)) == want


@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_rows_end_at_stop_tokens_and_others_go_on(kind, engines, hf_model, prompts):
    free = expected(hf_model("llama"), prompts, 24)
    stop = free[1][5]  # ends row 1 early; whatever it does to the others, transformers does too
    want = expected(hf_model("llama"), prompts, 24, stop)
    run = complete(engines(kind), prompts, GREEDY, batch_size=4, stop_ids=(stop,))
    assert tokens(run) == want
    assert len(want[1]) <= 6 < max(map(len, want))
    for done in run.completions:
        assert done.finish == ("stop" if done.tokens[-1] == stop else "length")


def test_streamed_chunks_join_to_the_whole(engines, prompts):
    chunks: dict[int, list[int]] = {}
    run = complete(
        engines("jax"),
        prompts,
        GREEDY,
        batch_size=4,
        chunk=5,
        on_tokens=lambda index, new: chunks.setdefault(index, []).extend(new),
    )
    assert [chunks[i] for i in range(4)] == tokens(run)


@pytest.mark.slow
def test_drawn_tokens_are_the_requests_own(engines, prompts):
    together = tokens(complete(engines("jax"), prompts, DRAWN, batch_size=4))
    alone = engines("jax").start(prompts[2:3], [2], DRAWN)
    engines("jax").advance(alone, 24)
    assert engines("jax").outputs(alone)[0].tolist() == together[2]
    assert tokens(complete(engines("torch"), prompts, DRAWN, batch_size=2)) == together
    other = dataclasses.replace(DRAWN, seed=4)
    assert tokens(complete(engines("jax"), prompts, other, batch_size=4)) != together


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["llama", "llama-plain"])
def test_eight_devices_give_the_tokens_of_one(family, engines, prompts):
    # Each device keeps one of llama-plain's 8 key-value heads; four devices share one of llama's 2.
    one = tokens(complete(engines("jax", family), prompts, GREEDY, batch_size=4))
    engine = engines("jax8", family)
    assert tokens(complete(engine, prompts, GREEDY, batch_size=4)) == one
    batch = engine.start(prompts, range(4), GREEDY)
    engine.advance(batch, 2)
    split = batch.state["cache"][0][0].sharding.shard_shape(batch.state["cache"][0][0].shape)
    assert split[1] == 1
    weight = engine._weights["model.layers.0.mlp.gate_proj.weight"]
    assert weight.sharding.shard_shape(weight.shape) == (64, 96 // 8)  # transposed on a CPU


def bits(engine, prompts, **how):
    """Each prompt's tokens and cache, bit for bit."""
    run = complete(engine, prompts, GREEDY, deterministic=True, keep_snapshots=True, **how)
    return [
        (done.tokens, *(t.tobytes() for t in snap.cache.values()))
        for done, snap in zip(run.completions, run.snapshots, strict=True)
    ]


FAMILIES = ("llama", "llama-plain", "qwen3")


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("torch", "qwen3"),
        pytest.param("jax", "llama", marks=pytest.mark.slow),
        pytest.param("jax", "qwen3", marks=pytest.mark.slow),
        pytest.param("torch", "llama", marks=pytest.mark.slow),
        pytest.param("jax", "llama-plain", marks=pytest.mark.slow),
        pytest.param("torch", "llama-plain", marks=pytest.mark.slow),
    ],
)
def test_deterministic_is_independent_of_company_bit_for_bit(kind, family, engines, prompts):
    engine = engines(kind, family)
    alone = [bits(engine, [prompt])[0] for prompt in prompts]
    assert bits(engine, prompts, batch_size=4) == alone
    assert bits(engine, prompts, batch_size=4, padding="left") == alone
    assert bits(engine, prompts, batch_size=2, padding="left", chunk=5) == alone
    assert bits(engine, prompts[::-1], batch_size=3, chunk=1) == alone[::-1]
    long = np.random.default_rng(1).integers(3, 320, 200).tolist()
    assert bits(engine, [long, prompts[0]], batch_size=2, padding="left")[1] == alone[0]


def test_deterministic_rows_of_wide_products_are_independent_of_company(prompts):
    # From 576 wide on, a CPU's product of one row sums in another order than that of four.
    transformers = pytest.importorskip("transformers")
    fields = {
        "vocab_size": 320,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 1,
        "num_attention_heads": 9,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    config = LlamaConfig.from_hf(json.loads(model.config.to_json_string(use_diff=False)))
    network = build(config, model.state_dict(), torch.float32).requires_grad_(False)
    engine = JaxDecoder(network)
    short = [prompt[:9] for prompt in prompts]
    alone = [bits(engine, [prompt])[0] for prompt in short]
    assert bits(engine, short, batch_size=4) == alone
    assert bits(engine, short * 4, batch_size=16) == alone * 4
    programs = [p for key, p in engine._programs.items() if key[0] == "decode"]
    if panel_product.available():
        assert all(panel_product.NAMES["float"] in p.as_text() for p in programs)
    mixed = [*short, short[1][:3]][::-1]
    assert bits(engine, mixed, batch_size=3, padding="left", chunk=5)[:0:-1] == alone


@pytest.fixture(scope="module")
def wide_heads():
    """A model of transformers whose heads compiled attention takes."""
    transformers = pytest.importorskip("transformers")
    if not panel_product.available():
        pytest.skip("needs llvmlite and a processor with AVX2")
    config = transformers.LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    model.generation_config.do_sample = False
    return model


@pytest.fixture(scope="module")
def wide_engines(wide_heads):
    config = LlamaConfig.from_hf(json.loads(wide_heads.config.to_json_string(use_diff=False)))
    own = build(config, wide_heads.state_dict(), torch.float32).requires_grad_(False)
    return {"own": JaxDecoder(own), "transformers": JaxDecoder(LibraryLM(wide_heads).eval())}


@pytest.mark.parametrize(
    ("kind", "padding", "options"),
    [
        ("own", "right", GREEDY),
        ("transformers", "left", GREEDY),
        pytest.param("own", "left", LOOKUP, marks=pytest.mark.slow),
        pytest.param("own", "left", GREEDY, marks=pytest.mark.slow),
        pytest.param("own", "right", LOOKUP, marks=pytest.mark.slow),
        pytest.param("transformers", "left", LOOKUP, marks=pytest.mark.slow),
    ],
)
def test_compiled_attention_gives_the_same_tokens(
    kind, padding, options, wide_engines, wide_heads, prompts
):
    engine = wide_engines[kind]
    run = complete(engine, prompts, options, batch_size=4, padding=padding)
    assert tokens(run) == expected(wide_heads, prompts, 24)
    programs = {key[0]: p.as_text() for key, p in engine._programs.items()}
    names = {"prefill": "attention", "decode": "attention_few"}
    for program, name in names.items():
        assert f'"{panel_product.NAMES[name]}"' in programs[program]
    if options is GREEDY:  # several tokens after a cache of transformers' are joined to it
        assert not re.findall(r"f32\[4,2,\d\d+,32\]\S* copy\(", programs["decode"])
    if kind == "own":
        # Of each of 2 blocks: queries, keys and values; output; gate and up; down. And the head.
        name = f'custom_call_target="{panel_product.NAMES["float"]}"'
        assert programs["decode"].count(name) == 2 * 4 + 1


def test_deterministic_on_several_devices_is_refused(engines, prompts):
    with pytest.raises(ValueError, match="needs an engine on one device, got 8"):
        complete(engines("jax8"), prompts, GREEDY, deterministic=True)


@pytest.mark.parametrize("kind", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_deterministic_draws_are_the_prompts_own(kind, engines, prompts):
    def drawn(chosen, size):
        run = complete(engines(kind), chosen, DRAWN, deterministic=True, batch_size=size)
        return tokens(run)

    alone = [drawn([prompt], 1)[0] for prompt in prompts[:2]]
    assert drawn(prompts[1::-1], 2) == alone[::-1]
    again = drawn([prompts[0], prompts[0]], 2)
    assert again[0] == alone[0] != again[1]  # an equal prompt draws anew


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ("torch", "jax", GREEDY),
        pytest.param("jax", "torch", GREEDY, marks=pytest.mark.slow),
        pytest.param("jax", "jax", DRAWN, marks=pytest.mark.slow),
        pytest.param("torch", "jax8", DRAWN, marks=pytest.mark.slow),
    ],
)
def test_saved_cache_goes_on_elsewhere(first, second, options, engines, network, prompts, tmp_path):
    whole = tokens(complete(engines("jax"), prompts, options, batch_size=4))
    begun = dataclasses.replace(options, max_new_tokens=7)
    padding = "left" if first == "jax" else "right"
    run = complete(
        engines(first), prompts, begun, batch_size=2, keep_snapshots=True, padding=padding
    )
    mark, path = fingerprint(network("llama")), tmp_path / "cache.safetensors"
    names = ["a", "b", "c", "d"]
    of_model = {"fingerprint": mark, "model": "small", "tokenizer": "t"}
    save_snapshot(path, merged(run.snapshots), prompts=names, **of_model)
    snapshot, kept = load_snapshot(path, network=network("llama"), **of_model)
    assert kept == names
    assert tokens(continue_from(engines(second), snapshot, options)) == whole


@pytest.fixture
def saved(engines, network, prompts, tmp_path):
    """A snapshot of two rows, and a function that stores it changed and loads it."""
    begun = dataclasses.replace(GREEDY, max_new_tokens=2)
    run = complete(engines("torch"), prompts[:2], begun, batch_size=2, keep_snapshots=True)
    path, mark = tmp_path / "cache.safetensors", fingerprint(network("llama"))

    def store_and_load(snapshot=run.snapshots[0], model="small", **found):
        of_model = {"fingerprint": mark, "tokenizer": "t"}
        save_snapshot(path, snapshot, model="small", prompts=["a", "b"], **of_model)
        found = {"network": network("llama")} | of_model | found
        return load_snapshot(path, model=model, **found)[0]

    return run.snapshots[0], store_and_load


def test_saved_cache_of_another_model_is_refused(saved, engines, network):
    _, store_and_load = saved
    mark = fingerprint(network("qwen3"))
    with pytest.raises(ValueError, match="belongs to the model 'small', not to 'other'"):
        store_and_load(fingerprint=mark, model="other")
    with pytest.raises(ValueError, match="'small', with other weights, dtype or quantisation"):
        store_and_load(fingerprint=mark)
    begun = dataclasses.replace(GREEDY, max_new_tokens=2)
    with pytest.raises(ValueError, match="has 2 tokens already"):
        continue_from(engines("torch"), store_and_load(), begun)


def test_the_fingerprint_covers_every_weight_dtype_and_quantisation(network):
    marks = {fingerprint(network(family)) for family in ("llama", "llama-plain", "qwen3")}
    for change in (
        lambda n: n.model.layers[1].mlp.up_proj.weight.data.view(torch.int32)[3, 5].bitwise_xor_(1),
        lambda n: n.to(torch.bfloat16),
        lambda n: quantize(n, "int8"),
    ):
        changed = copy.deepcopy(network("llama"))
        change(changed)
        marks.add(fingerprint(changed))
    assert len(marks) == 6
    assert fingerprint(copy.deepcopy(network("llama"))) in marks


def changed_layer(snapshot, value):
    keys = snapshot.cache["layers.1.keys"].copy()
    keys[0, 0, 0, 0] = value
    return with_cache(snapshot, {"layers.1.keys": keys})


def with_cache(snapshot, entries):
    return dataclasses.replace(snapshot, cache=snapshot.cache | entries)


def first_block(snapshot):
    cache = {n: t for n, t in snapshot.cache.items() if n.startswith("layers.0.")}
    return dataclasses.replace(snapshot, cache=cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: changed_layer(s, np.nan), "layers.1.keys holds NaN or infinity"),
        (
            first_block,
            r"lacks layers\.1\.keys, layers\.1\.values, of a model of 2 layers",
        ),
        (
            lambda s: with_cache(s, {"layers.2.keys": s.cache["layers.1.keys"]}),
            "has layers.2.keys, which a model of 2 layers lacks",
        ),
        (lambda s: dataclasses.replace(s, token=s.token + 400), "token ids from .* of 320 known"),
        (lambda s: dataclasses.replace(s, outputs=s.outputs - 400), "token ids from -"),
        (lambda s: dataclasses.replace(s, filled=s.filled + 900), "filled slots of"),
        (lambda s: dataclasses.replace(s, filled=s.filled[:1]), r"filled is .* of shape \(1,\)"),
        (lambda s: with_cache(s, {"layers.0.values": s.cache["layers.0.values"][..., :-1]}),
         r"layers\.0\.values is float32 of shape"),
        (lambda s: dataclasses.replace(s, outputs=s.outputs[:, :0]), "has no output yet"),
    ],
)  # fmt: skip
def test_a_cache_that_cannot_be_this_model_s_is_refused(saved, change, message):
    snapshot, store_and_load = saved
    with pytest.raises(ValueError, match=message):
        store_and_load(change(snapshot))


def test_a_cache_that_notes_no_tokenizer_is_read_with_a_line(saved, monkeypatch, caplog):
    _, store_and_load = saved

    def read_without(path):
        arrays, notes = read_weights(path)
        return arrays, {name: value for name, value in notes.items() if name != "tokenizer"}

    monkeypatch.setattr("jaxsr.generation.cache_file.read_weights", read_without)
    store_and_load()
    assert "is of a version that noted no tokenizer" in caplog.text


def test_a_cache_of_other_versions_is_named(saved, monkeypatch, caplog):
    _, store_and_load = saved
    store_and_load()
    assert not caplog.messages
    versions = iter([{"jax": "0.0"}, {"jax": "0.1"}, {"jax": "0.1"}])
    monkeypatch.setattr("jaxsr.generation.cache_file._versions", lambda: next(versions))
    store_and_load()
    assert "was written with jax 0.0, this is jax 0.1" in caplog.text


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "there is no prompt"),
        ([[3], []], "prompt 1 is empty"),
        ([[3] * 512], "context holds 512"),
        ([[3] * 500], "use --max-new-tokens 12 or fewer"),
        ([[3, 999]], "token id 999"),
    ],
)
def test_prompts_that_cannot_run_are_refused(prompts, message, engines):
    with pytest.raises(ValueError, match=message):
        complete(engines("torch"), prompts, GREEDY)


def test_decode_loop_updates_its_cache_in_place(engines, prompts):
    """No copy of a layer's cache, or every token would cost a pass over all of it."""
    engine = engines("jax")
    batch = engine.start(prompts, range(4), GREEDY)
    shapes = {
        "f32[" + ",".join(map(str, t.shape)) + "]" for pair in batch.state["cache"] for t in pair
    }
    program = engine._decode_program(batch, *engine._loop_args(batch, 2))
    text = program.as_text()
    assert all(shape in text for shape in shapes)
    copies = [
        line
        for line in text.splitlines()
        if any(f" {shape}" in line.split(" copy(")[0] for shape in shapes) and " copy(" in line
    ]
    assert not copies


def test_one_decode_program_serves_prompts_and_limits_of_a_cache_size(network):
    engine = JaxDecoder(network("llama"))
    for prompt, new in ((5, 4), (5, 90), (100, 30)):
        complete(engine, [[7] * prompt], SamplingOptions(max_new_tokens=new))
    kinds = Counter(key[0] for key in engine._programs)
    assert kinds["prefill"] == 2  # buckets of 16 and 128 tokens
    assert kinds["decode"] == kinds["first_token"] == 1


@pytest.mark.slow
def test_another_cache_size_is_another_decode_program(network):
    engine = JaxDecoder(network("llama"))
    for prompt, new in ((5, 4), (40, 4), (5, 90), (100, 30)):
        complete(engine, [[7] * prompt], SamplingOptions(max_new_tokens=new))
    kinds = Counter(key[0] for key in engine._programs)
    assert kinds["prefill"] == 3  # buckets of 16, 64 and 128 tokens
    assert kinds["decode"] == kinds["first_token"] == 1
    complete(engine, [[7] * 180], SamplingOptions(max_new_tokens=4))
    assert Counter(key[0] for key in engine._programs)["decode"] == 1  # 256 slots hold it as well
    complete(engine, [[7] * 5], SamplingOptions(max_new_tokens=300))
    assert Counter(key[0] for key in engine._programs)["decode"] == 2


def test_a_program_that_memory_cannot_hold_is_refused_before_it_runs(network, prompts, monkeypatch):
    engine = JaxDecoder(network("llama"))
    monkeypatch.setattr(out_of_memory, "free_memory_bytes", lambda: 1)
    monkeypatch.setattr(generate_loop, "check_fits", lambda *_, **__: None)  # caches come first
    with pytest.raises(out_of_memory.OutOfMemoryError, match=r"the values of .* --batch-size"):
        complete(engine, prompts[:1], GREEDY, batch_size=1)
