"""GGUF files of every architecture against the models of transformers that they were made from."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf

from jaxsr.errors import InputError
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.language_models import load_language_model
from jaxsr.models.llama.gguf_architectures import ARCHITECTURES
from jaxsr.models.llama.packed import BlockEmbedding, BlockLinear
from tests.generation import gguf_writer
from tests.generation.gguf_writer import K, load_values, write_gguf
from tests.oracles.language_models.tiny import tiny_model

TOKENS = torch.arange(4, 20)[None]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """`model(family)`: a tiny model whose constants are those that its files imply."""
    folder, made = tmp_path_factory.mktemp("configurations"), {}

    def make(family):
        if family not in made:
            made[family] = _made(family, folder)
        return made[family]

    return make


def _made(family, folder):
    model = tiny_model(family, folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 and "A_log" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    if family in ("gemma2", "gemma3_text"):
        model.config.query_pre_attn_scalar = model.config.head_dim
        for layer in model.model.layers:
            layer.self_attn.scaling = model.config.head_dim**-0.5
    if family == "gemma3_text":
        types = ["sliding_attention"] * model.config.num_hidden_layers
        for layer in model.model.layers:
            layer.self_attn.layer_type = layer.layer_type = types[0]
            layer.self_attn.is_sliding = True
            layer.self_attn.sliding_window = model.config.sliding_window
        model.config.layer_types = types
    if family == "qwen3_moe":
        for layer in model.model.layers:
            layer.mlp.gate.norm_topk_prob = True
    return model


def test_the_families_are_those_of_the_table():
    assert set(gguf_writer.ARCHITECTURES.values()) == set(ARCHITECTURES)


@pytest.mark.sample(6)
@pytest.mark.parametrize("family", gguf_writer.ARCHITECTURES)
@torch.no_grad()
def test_a_file_gives_the_logits_of_its_model(family, model, tmp_path):
    write_gguf(tmp_path / "m.gguf", model(family))
    network = load_language_model(tmp_path / "m.gguf", implementation="transformers").network
    reference = model(family)(TOKENS).logits[:, -1]
    torch.testing.assert_close(network(TOKENS)[0], reference, atol=1e-4, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "devices"),
    [
        ("falcon", 1),
        *(pytest.param(f, 2, marks=pytest.mark.slow) for f in ("falcon", "gemma2", "qwen2")),
    ],
)
def test_a_file_generates_by_either_engine_and_on_a_mesh(family, devices, model, tmp_path):
    write_gguf(tmp_path / "m.gguf", model(family), K.Q8_0)
    network = load_language_model(tmp_path / "m.gguf").network
    options = SamplingOptions(max_new_tokens=8)
    prompts = [[5, 9, 31, 14], [61, 12]]
    engines = [TorchDecoder(network), JaxDecoder(network, mesh=tensor_mesh(devices))]
    tokens = [
        [c.tokens for c in complete(e, prompts, options, batch_size=2).completions] for e in engines
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [K.Q4_0, K.Q4_1, K.Q5_0, K.Q5_1, K.Q8_0, K.MXFP4])
@torch.no_grad()
def test_weights_stay_in_their_blocks(kind, model, tmp_path):
    original = model("qwen2")
    used = write_gguf(tmp_path / "m.gguf", original, kind)
    loaded = load_language_model(tmp_path / "m.gguf", implementation="transformers")
    layers = [m for m in loaded.network.modules() if isinstance(m, BlockLinear)]
    assert layers and any(isinstance(m, BlockEmbedding) for m in loaded.network.modules())
    dense = load_language_model(
        tmp_path / "m.gguf", implementation="transformers", packed=False
    ).network
    assert not any(isinstance(m, BlockLinear) for m in dense.modules())
    state = dict(original.state_dict())
    try:
        load_values(original, used)
        reference = original(TOKENS).logits[:, -1]
    finally:
        original.load_state_dict({n: t.clone() for n, t in state.items()})
    torch.testing.assert_close(loaded.network(TOKENS)[0], reference, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(dense(TOKENS)[0], reference, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "extra", "message"),
    [
        ("qwen2", {"new_field": 3}, r"the field qwen2\.new_field = 3 is not understood"),
        ("llama", {"attention.causal": False}, r"llama\.attention\.causal is False"),
        ("llama", {"rope.scaling.type": "dynamic"}, "scales rotary positions by 'dynamic'"),
        ("llama", {"rope.scaling.factor": -4.0}, r"by 'linear' with factor -4\.0"),
        ("llama", {"rope.scaling.type": "yarn"}, "by 'yarn' with factor"),
        ("llama", {"rope.dimension_count": 4}, r"turns 4 of a head's \d+ features \(llama"),
        ("qwen3", {"rope.dimension_count": 1000}, r"turns 1000 of a head's \d+ features"),
        ("phi3", {"rope.dimension_count": 1000}, r"turns 1000 of a head's \d+ features"),
        ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual is True"),
        ("mamba", {"ssm.dt_b_c_rms": True}, "dt_b_c_rms is True"),
        ("gemma3_text", {"attention.sliding_window_pattern": 3}, "sliding_window_pattern is 3"),
        ("qwen3_moe", {"expert_weights_norm": False}, "expert_weights_norm is False"),
        ("qwen2", {"block_count": 3}, r"lacks model\.layers\.2"),
        ("qwen2", {"block_count": 1}, r"has a tensor 'blk\.1\."),
        (
            "qwen2",
            {"embedding_length": 64, "rope.dimension_count": 16},
            "but the configuration makes it",
        ),
        ("lfm2", {"attention.head_count_kv": 2}, "not a number for each block"),
        ("bloom", {"attention.head_count_kv": 2}, r"bloom\.attention\.head_count_kv is 2"),
    ],
)
def test_what_a_header_says_otherwise_is_refused_in_one_line(
    family, extra, message, model, tmp_path
):
    write_gguf(tmp_path / "m.gguf", model(family), extra=extra)
    with pytest.raises(InputError, match=message) as refusal:
        load_language_model(tmp_path / "m.gguf")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [("t5", "an encoder and a decoder"), ("deci", "no model of transformers"), ("x", "'x' model;")],
)
def test_architectures_that_are_not_read_are_named(name, why, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", name)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=why):
        load_language_model(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("extra", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.type": "linear"}, None),
    ],
)
@torch.no_grad()
def test_positions_are_scaled_as_llama_cpp_does(extra, factor, model, tmp_path):
    import transformers

    original = model("llama")
    fields = json.loads(original.config.to_json_string(use_diff=False))
    if factor:
        fields["rope_parameters"] |= {"rope_type": "linear", "factor": factor}
    scaled = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields)).eval()
    scaled.load_state_dict(original.state_dict())
    write_gguf(tmp_path / "m.gguf", original, extra=extra)
    logits = load_language_model(tmp_path / "m.gguf").network(TOKENS)[0]
    got = logits.reshape(1, -1, logits.shape[-1])[:, -1]  # jaxsr's own gives all positions
    torch.testing.assert_close(got, scaled(TOKENS).logits[:, -1], atol=1e-4, rtol=1e-5)
    assert torch.allclose(got, original(TOKENS).logits[:, -1], atol=1e-4) == (factor is None)


@torch.no_grad()
def test_rope_factors_become_longrope(model, tmp_path):
    import transformers

    original = model("phi3")
    size = original.config.hidden_size // original.config.num_attention_heads
    fields = json.loads(original.config.to_json_string(use_diff=False))
    fields["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 8,
        "attention_factor": 1.25,
        "factor": fields["max_position_embeddings"] / 8,
        "long_factor": [1.0 + i for i in range(size // 2)],
        "short_factor": [1.0] * (size // 2),
        "partial_rotary_factor": 1.0,
    }
    fields["original_max_position_embeddings"] = 8
    config = transformers.AutoConfig.for_model(**fields)
    scaled = transformers.AutoModelForCausalLM.from_config(config).eval()
    scaled.load_state_dict(original.state_dict())
    write_gguf(tmp_path / "factor.gguf", scaled, extra={"rope.scaling.factor": 4.0})
    with pytest.raises(InputError, match=r"phi3\.rope\.scaling\.factor is 4\.0, and only 1\.0"):
        load_language_model(tmp_path / "factor.gguf")
    write_gguf(tmp_path / "m.gguf", scaled)
    network = load_language_model(tmp_path / "m.gguf").network
    reference = scaled(TOKENS).logits[:, -1]
    torch.testing.assert_close(network(TOKENS)[0], reference, atol=1e-4, rtol=1e-5)
