"""Models of transformers' families by their own code: tokens equal those of `generate`."""

import copy
import dataclasses
import re
from inspect import Parameter, Signature, signature

import jax
import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.errors import InputError
from jaxsr.generation.cache_file import load_snapshot, save_snapshot
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.interop import to_jax
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.language_models import load_language_model
from jaxsr.models.llama.loading import fingerprint
from jaxsr.models.llama.quantized import QuantizedLinear
from tests.oracles.language_models.tiny import NEW_TOKENS, PROMPTS, reference_tokens, tiny_model

GREEDY = SamplingOptions(max_new_tokens=NEW_TOKENS)

FAMILIES = ("gemma2", "mamba2")  # a window, a recurrence
MORE = (
    "falcon_h1",  # attention and a recurrence
    "mixtral",  # experts
    "deepseek_v3",  # latent attention
    "bloom",  # biased scores
    "mamba",
    "deepseek_v32",
    "gpt2",
    "qwen3_next",
    "jamba",
    "gpt_oss",
    "falcon",
    "gptj",
    "phi3",
    "llama4_text",
    "zamba2",
    "lfm2",
    "mpt",  # Python's own number of filled slots
    "camembert",  # the head comes before the embedding that it shares
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """`models(family)`: the network and transformers' tokens."""
    folder, made = tmp_path_factory.mktemp("configurations"), {}

    def make(family):
        if family not in made:
            model = tiny_model(family, folder)
            made[family] = (LibraryLM(model).requires_grad_(False).eval(), reference_tokens(model))
        return made[family]

    return make


@pytest.fixture(scope="module")
def engines(models):
    """`engines(family)`: one engine for all tests, which share its programs."""
    made = {}

    def make(family, devices=1):
        if (family, devices) not in made:
            made[family, devices] = JaxDecoder(models(family)[0], mesh=tensor_mesh(devices))
        return made[family, devices]

    return make


def tokens_of(run):
    return [completion.tokens for completion in run.completions]


@pytest.mark.parametrize(
    "family",
    [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)],
)
def test_tokens_are_those_of_transformers(family, models, engines):
    run = complete(engines(family), PROMPTS, GREEDY, batch_size=2, padding="left")
    assert tokens_of(run) == models(family)[1]


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_goes_into_the_argument_that_forward_names(name, hf_model):
    # transformers 5.24 renamed it.
    model = copy.copy(hf_model("llama"))
    inner = next(
        n for n in ("cache", "past_key_values") if n in signature(model.forward).parameters
    )
    parameters = {n: p for n, p in signature(model.forward).parameters.items() if n != inner}
    renamed = Parameter(name, Parameter.KEYWORD_ONLY)

    def forward(*args, **kwargs):
        assert {name, inner} & {*kwargs} == {name}
        return type(model).forward(model, *args, **{inner: kwargs.pop(name)}, **kwargs)

    keywords = [
        p.replace(kind=Parameter.KEYWORD_ONLY) for n, p in parameters.items() if n != "kwargs"
    ]
    forward.__signature__ = Signature([*keywords, renamed])
    model.forward = forward
    LibraryLM(model).check_continues()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 1])
@pytest.mark.parametrize("family", ["gemma2", "falcon_h1"])
def test_padding_on_the_right_and_batches_of_one_change_nothing(family, rows, models, engines):
    network, reference = models(family)
    assert tokens_of(complete(engines(family), PROMPTS, GREEDY, batch_size=rows)) == reference
    assert tokens_of(complete(TorchDecoder(network), PROMPTS, GREEDY, batch_size=2)) == reference


@pytest.mark.parametrize("family", ["gemma2", pytest.param("deepseek_v32", marks=pytest.mark.slow)])
def test_entries_written_after_all_is_read_change_nothing(family, models):
    # As on a TPU.
    network, reference = models(family)
    engine = JaxDecoder(network)
    engine._layout.writes_aside = True
    assert tokens_of(complete(engine, PROMPTS, GREEDY, batch_size=2)) == reference


# gemma2 has 2 heads of keys: two devices share each.
@pytest.mark.parametrize(
    ("family", "devices"), [("gemma2", 4), pytest.param("deepseek_v3", 2, marks=pytest.mark.slow)]
)
def test_a_mesh_changes_nothing(family, devices, models, engines):
    run = complete(engines(family, devices), PROMPTS, GREEDY, batch_size=2)
    assert tokens_of(run) == models(family)[1]


# transformers' plans split an untied head alone, and gpt2 has none; both heads are tied.
@pytest.mark.parametrize("family", ["gemma2", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_no_weights_and_caches_are_gathered_at_a_step(family, models, engines):
    network, _ = models(family)
    engine = engines(family, 4)
    embedding = network.inner.get_input_embeddings().weight
    assert embedding is network.inner.get_output_embeddings().weight
    names = ("wte.weight", "embed_tokens.weight", "lm_head.weight")
    tables = [w for name, w in engine._weights.items() if name.endswith(names)]
    of_devices = [shard.data.nbytes for table in tables for shard in table.addressable_shards]
    assert {*of_devices} == {embedding.nbytes // 4}
    batch = engine.start(PROMPTS, [0, 1], GREEDY)
    arguments = engine._loop_args(batch, 2)
    text = engine._decode_program(batch, *arguments).as_text()
    assert "all-reduce" in text
    # Of each row's logits, which are split, each device's largest and its token.
    gathered = re.findall(r"\[([\d,]*)\]\S* all-gather", text)
    assert gathered == ["2,4", "2,4"]


def test_a_plan_of_transformers_splits_the_weights(engines):
    engine = engines("gemma2", 4)
    split = [n for n, a in engine._weights.items() if not a.sharding.is_fully_replicated]
    assert any("q_proj" in name for name in split)
    assert any("down_proj" in name for name in split)


@pytest.mark.parametrize(
    ("family", "second"),
    [
        ("gemma2", JaxDecoder),
        pytest.param("falcon_h1", TorchDecoder, marks=pytest.mark.slow),
        pytest.param("gemma2", TorchDecoder, marks=pytest.mark.slow),
        pytest.param("falcon_h1", JaxDecoder, marks=pytest.mark.slow),
        pytest.param("mamba2", JaxDecoder, marks=pytest.mark.slow),
        pytest.param("mamba2", TorchDecoder, marks=pytest.mark.slow),
    ],
)
def test_a_saved_cache_goes_on_in_either_engine(family, second, models, engines, tmp_path):
    network, reference = models(family)
    begun = dataclasses.replace(GREEDY, max_new_tokens=9)
    run = complete(engines(family), PROMPTS, begun, batch_size=2, keep_snapshots=True)
    path, mark = tmp_path / "cache.safetensors", fingerprint(network)
    of_model = {"fingerprint": mark, "model": "tiny", "tokenizer": "t"}
    save_snapshot(path, run.snapshots[0], prompts=["a", "b"], **of_model)
    snapshot, _ = load_snapshot(path, network=network, **of_model)
    engine = engines(family) if second is JaxDecoder else second(network)
    assert tokens_of(continue_from(engine, snapshot, GREEDY)) == reference


def test_a_folder_is_loaded_and_the_own_network_can_be_left_out(hf_model, tmp_path):
    model = hf_model("llama")
    model.save_pretrained(tmp_path)
    own = load_language_model(tmp_path)
    library = load_language_model(tmp_path, implementation="transformers")
    assert isinstance(library.network, LibraryLM)
    outputs = [
        complete(TorchDecoder(m.network), PROMPTS, GREEDY, batch_size=2) for m in (own, library)
    ]
    assert tokens_of(outputs[0]) == tokens_of(outputs[1]) == reference_tokens(model)


@pytest.mark.parametrize("engine", [TorchDecoder, pytest.param(JaxDecoder, marks=pytest.mark.slow)])
def test_a_folder_in_bfloat16_stays_so(engine, hf_model, tmp_path):
    hf_model("qwen3").save_pretrained(tmp_path)
    network = load_language_model(
        tmp_path, dtype=torch.bfloat16, implementation="transformers"
    ).network
    assert network.dtype == torch.bfloat16
    options = SamplingOptions(max_new_tokens=3)
    run = complete(engine(network), PROMPTS, options, batch_size=2)
    assert all(len(t) == 3 for t in tokens_of(run))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("rwkv", "keeps its past in a way of its own"),
        ("minimax", "does not continue a cache of fixed size"),
        ("bart", "sees tokens to come, or counts padding"),
        ("deepseek_v4", "blocks of kind"),
    ],
)
def test_a_cache_that_is_not_known_is_refused(family, message, tmp_path):
    with pytest.raises(InputError, match=message):
        LibraryLM(tiny_model(family, tmp_path)).check_continues()


def test_an_encoder_is_refused_until_it_is_made_a_decoder(tmp_path):
    model = tiny_model("bert", tmp_path)
    LibraryLM(model).check_continues()
    model.config.is_decoder = False
    with pytest.raises(InputError, match=r'set "is_decoder": true in config\.json'):
        LibraryLM(type(model)(model.config).eval()).check_continues()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "nothing"}, "makes no causal language model"),
        ({"model_type": "resnet"}, "makes no causal language model"),
        ({"n_layer": 10**9}, "claims n_layer=1,000,000,000, more than its 28 tensors"),
        ({"hidden_size": 2**20, "head_dim": 2**20}, r"parameters, but the weights are|cannot"),
        ({"quantization_config": {"quant_method": "hqq"}}, "has quant_method 'hqq'"),
    ],
)
def test_a_folder_that_cannot_be_computed_is_refused_in_one_line(change, message, tmp_path):
    import json

    model = tiny_model("gpt2" if {"model_type", "n_layer"} & {*change} else "gemma2", tmp_path)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as refusal:
        load_language_model(tmp_path / "model")
    assert "\n" not in str(refusal.value)


def test_weights_that_lack_a_tensor_are_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    tiny_model("gemma2", tmp_path).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    weights.pop("model.layers.0.self_attn.q_proj.weight")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks .*q_proj"):
        load_language_model(tmp_path / "model")


def test_own_networks_are_asked_for_where_there_are_none(tmp_path):
    tiny_model("gemma2", tmp_path).save_pretrained(tmp_path / "model")
    with pytest.raises(
        InputError, match=r"model_type 'gemma2'.; use --implementation transformers"
    ):
        load_language_model(tmp_path / "model", implementation="own")


@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(f, marks=pytest.mark.slow) for f in ("gemma2", "bloom"))]
)
@torch.no_grad()
def test_weights_are_quantised_on_loading(family, tmp_path):
    model = tiny_model(family, tmp_path)
    model.save_pretrained(tmp_path / "model")
    network = load_language_model(tmp_path / "model", scheme="int8").network
    layers = [m for m in network.modules() if isinstance(m, QuantizedLinear)]
    assert layers and all(m.weight.dtype == torch.int8 for m in layers)
    tokens = torch.arange(4, 12)[None]
    reference = model(tokens).logits[:, -1]
    # int8 levels of weights about 0.15, in two blocks
    assert (network(tokens)[0] - reference).abs().max() < 0.05 * reference.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bloom"])
def test_quantised_weights_give_the_same_tokens_in_either_engine(family, tmp_path):
    tiny_model(family, tmp_path).save_pretrained(tmp_path / "model")
    network = load_language_model(tmp_path / "model", scheme="int8").network
    runs = [complete(e(network), PROMPTS, GREEDY, batch_size=2) for e in (JaxDecoder, TorchDecoder)]
    assert tokens_of(runs[0]) == tokens_of(runs[1])


@pytest.mark.slow
def test_cache_shapes_are_those_of_a_batch(models):
    network, _ = models("falcon_h1")
    begun = SamplingOptions(max_new_tokens=2)
    run = complete(JaxDecoder(network), PROMPTS, begun, batch_size=2, keep_snapshots=True)
    for name, array in run.snapshots[0].cache.items():
        expected = network.cache_shapes()[name]
        assert np.prod(array.shape) % np.prod(expected) == 0, name


def with_longrope(family):
    """A model that turns keys by other angles from 16 tokens on, and prompts around these."""
    import transformers

    factors = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [4.0, 2.0, 9.0, 5.0]}
    extra = {}
    if family == "phimoe":
        factors |= {"short_mscale": 1.0, "long_mscale": 1.3}
        extra = {"num_local_experts": 4, "num_experts_per_tok": 2}
    if family == "phi4_multimodal":  # its text alone is generated from
        other = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
        image = {"num_hidden_layers": 1, "image_size": 28, "crop_size": 28, "patch_size": 14}
        audio = {"num_blocks": 1, "ext_pw_out_channel": 16, "nemo_conv_channels": 16}
        extra = {"vision_config": {**other, **image}, "audio_config": {**other, **audio}}
    config = transformers.AutoConfig.for_model(
        family, vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        original_max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, **factors,
            "original_max_position_embeddings": 16,
        },
        **extra,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    rng = np.random.default_rng(0)
    return model, [rng.integers(3, 90, length).tolist() for length in (5, 30, 9, 17)]


@pytest.mark.parametrize(
    ("family", "engine"),
    [
        ("phi3", TorchDecoder),
        pytest.param("phi3", JaxDecoder, marks=pytest.mark.slow),
        ("phimoe", TorchDecoder),
        pytest.param("phimoe", JaxDecoder, marks=pytest.mark.slow),
        ("phi4_multimodal", TorchDecoder),
        pytest.param("phi4_multimodal", JaxDecoder, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_short_texts_beside_long_ones_under_longrope(family, engine, deterministic):
    model, prompts = with_longrope(family)
    alone = [reference_tokens(model, prompts=[p], new_tokens=8)[0] for p in prompts]
    network = LibraryLM(model).requires_grad_(False).eval()
    options = SamplingOptions(max_new_tokens=8)
    run = complete(engine(network), prompts, options, batch_size=4, deterministic=deterministic)
    assert [list(c.tokens) for c in run.completions] == alone


def test_phimoes_angles_are_traced_and_those_of_its_own_code():
    model, _ = with_longrope("phimoe")
    transformers_rotary = model.model.rotary_emb
    rotary = LibraryLM(model).inner.model.rotary_emb
    apply = jax.jit(lambda *args: to_jax(rotary).apply({}, {}, *args)[0])
    x = torch.zeros(1, 1, 32)
    for length in (16, 17):
        positions = torch.arange(length)[None]
        reference = transformers_rotary(x, positions)
        for angles, traced, expected in zip(
            rotary(x, positions), apply(x.numpy(), positions.numpy()), reference, strict=True
        ):
            assert torch.equal(angles, expected)
            np.testing.assert_allclose(traced, expected, atol=1e-6)


def test_an_output_that_passes_longropes_short_context_is_refused():
    model, prompts = with_longrope("phi3")
    network = LibraryLM(model).requires_grad_(False).eval()
    engine = TorchDecoder(network)
    most = SamplingOptions(max_new_tokens=12)
    tokens = complete(engine, [prompts[0]], most).completions[0].tokens
    assert list(tokens) == reference_tokens(model, prompts=[prompts[0]], new_tokens=12)[0]
    with pytest.raises(InputError, match=r"would pass 16, .*fewer --max-new-tokens, by 1,"):
        complete(engine, [prompts[0]], SamplingOptions(max_new_tokens=13))
    with pytest.raises(InputError, match=r"would pass 16, .*, by 2,"):  # proposals are fed as well
        complete(
            engine, [prompts[0]], dataclasses.replace(most, max_new_tokens=11, prompt_lookup=3)
        )
    saved = complete(engine, [prompts[0]], SamplingOptions(max_new_tokens=4), keep_snapshots=True)
    (snapshot,) = saved.snapshots
    assert list(continue_from(engine, snapshot, most).completions[0].tokens) == list(tokens)
    with pytest.raises(InputError, match=r"row 0 of the saved batch .*, by 1,"):
        continue_from(engine, snapshot, SamplingOptions(max_new_tokens=13))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("qwen3", {"head_dim": None}),
        ("llama", {"sliding_window": 4}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_theta": 1e4,
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8,
                    "partial_rotary_factor": 1.0,
                }
            },
        ),
    ],
)
def test_forms_of_llama_and_qwen3_that_jaxsrs_own_networks_lack(family, fields, tmp_path):
    import json

    import transformers

    config = transformers.AutoConfig.for_model(
        family, vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        **{name: value for name, value in fields.items() if value is not None},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
    model.save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    stated |= fields
    for name in (name for name, value in fields.items() if value is None):
        del stated[name]
    (tmp_path / "config.json").write_text(json.dumps(stated))
    network = load_language_model(tmp_path).network
    run = complete(JaxDecoder(network), [PROMPTS[0]], SamplingOptions(max_new_tokens=8))
    want = reference_tokens(model, prompts=PROMPTS[:1], new_tokens=8)
    assert [list(c.tokens) for c in run.completions] == want
