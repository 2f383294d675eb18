"""Quantised folders against the dequantised model, packed as the libraries' own code does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file

from jaxsr.errors import InputError
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.language_models import load_language_model
from jaxsr.models.llama.group_formats import take_layer
from jaxsr.models.llama.quantized_folder import swap_quantized
from tests.oracles.language_models.tiny import tiny_model

TOKENS = torch.arange(4, 12)[None]
GENERATOR = torch.Generator().manual_seed(0)
GROUP = 16


def quantised(weight, bits, groups):
    """Levels from 0, zero points and scales (O, G), and the weight that they stand for."""
    outputs, inputs = weight.shape
    scales = torch.rand(outputs, groups, generator=GENERATOR).half() * 0.02 + 0.01
    zeros = torch.randint(0, 1 << bits, (outputs, groups), generator=GENERATOR)
    each = inputs // groups
    s, z = (t.float().repeat_interleave(each, 1) for t in (scales, zeros))
    levels = (weight / s + z).round().clamp(0, (1 << bits) - 1).int()
    return levels, zeros.int(), scales, (levels - z) * s


def packed_rows(numbers, bits):
    """int32 along the last axis, from the lowest bits on."""
    each = 32 // bits
    steps = torch.arange(0, 32, bits)
    words = (numbers.long().unflatten(-1, (-1, each)) << steps).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def gptq(weight, *, bits=4, order=False, version="gptq"):
    """GPTQModel's `pack`, and its `convert_gptq_v2_to_v1_format_module`, which takes ones from
    whole words: a zero point of 0 borrows from the next.
    """
    inputs = weight.shape[1]
    groups = inputs // GROUP
    index = torch.arange(inputs) // GROUP
    if order:
        index = index[torch.randperm(inputs, generator=GENERATOR)]
    by_group = index.argsort(stable=True)
    levels, zeros, scales, value = quantised(weight[:, by_group], bits, groups)
    back = by_group.argsort()
    ones = {4: 0x11111111, 8: 0x01010101}[bits] if version == "gptq" else 0
    tensors = {
        "qweight": packed_rows(levels[:, back], bits).T,
        "qzeros": packed_rows(zeros.T, bits) - ones,
        "scales": scales.T,
        "g_idx": index.int(),
    }
    return tensors, value[:, back]


def awq(weight):
    """`WQLinear_GEMM.from_linear` of AutoAWQ."""
    levels, zeros, scales, value = quantised(weight, 4, weight.shape[1] // GROUP)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def outputs(numbers):
        return packed_rows(numbers.T.unflatten(1, (-1, 8))[..., order].flatten(1), 4)

    return {"qweight": outputs(levels), "qzeros": outputs(zeros), "scales": scales.T}, value


def compressed(weight, *, bits=4, symmetric=False):
    """`PackedQuantizationCompressor.compress` of compressed-tensors."""
    levels, zeros, scales, value = quantised(weight, bits, weight.shape[1] // GROUP)
    if symmetric:
        value = (levels - (1 << bits - 1)) * scales.float().repeat_interleave(GROUP, 1)
    tensors = {
        "weight_packed": packed_rows(levels, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = packed_rows(zeros.T, bits).T
    return tensors, value


def int8(weight):
    """`Int8Params` of bitsandbytes."""
    largest = weight.abs().amax(1)
    levels = (weight * 127 / largest[:, None]).round().to(torch.int8)
    value = levels.float() * largest[:, None] / 127
    return {"weight": levels, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}, value  # fmt: skip  # noqa: E501


RECORDED = json.loads(Path(__file__).with_name("bitsandbytes_four_bits.json").read_text())["cases"]
BOOK = torch.tensor(RECORDED[0]["parts"]["weight.quant_map"][1])


def four_bits(weight, *, block=64):
    """`quantize_4bit` of bitsandbytes, on which the recorded tensors below are a check."""
    blocks = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % block)).view(-1, block)
    largest = blocks.abs().amax(1)
    numbers = (blocks[..., None] / largest[:, None, None] - BOOK).abs().argmin(-1)
    value = (BOOK[numbers] * largest[:, None]).flatten()[: weight.numel()].view(weight.shape)
    numbers = numbers.flatten()[: weight.numel()].to(torch.uint8)
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": weight.shape}
    return {
        "weight": (numbers[::2] << 4 | numbers[1::2])[:, None],
        "weight.absmax": largest,
        "weight.quant_map": BOOK.clone(),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor([*json.dumps(state).encode()],
                                                             dtype=torch.uint8),
    }, value  # fmt: skip


def four_bit_layer(parts) -> Any:
    return take_layer("four-bit", "layer", {f"layer.{name}": t for name, t in parts.items()})


@pytest.mark.parametrize("case", RECORDED, ids=lambda c: f"{c['kind']}{' nested' * c['nested']}")
def test_four_bits_are_those_of_bitsandbytes(case):
    parts = {
        name: torch.tensor(values, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for name, (dtype, values) in case["parts"].items()
    }
    layer = four_bit_layer(parts)
    torch.testing.assert_close(
        layer.dequantized(), torch.tensor(case["value"]), rtol=1e-6, atol=0.0
    )
    for name, other in (
        ("weight", torch.zeros(3, dtype=torch.uint8)),
        ("weight.absmax", torch.zeros(1, dtype=torch.uint8)),
        (f"weight.quant_state.bitsandbytes__{case['kind']}", torch.zeros(4, dtype=torch.uint8)),
    ):
        with pytest.raises(InputError, match="layer has tensors that do not fit each other"):
            four_bit_layer(parts | {name: other})


CT = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "quantization_status": "compressed", "kv_cache_scheme": None,
}  # fmt: skip


def scheme(**weights):
    common = {"type": "int", "strategy": "group", "group_size": GROUP, "dynamic": False}
    group = {"targets": ["Linear"], "weights": common | weights, "input_activations": None}
    return CT | {"config_groups": {"group_0": group}}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False}
CASES = {
    "gptq": (gptq, GPTQ | {"checkpoint_format": "gptq", "true_sequential": True}),
    "gptq, 8 bits": (lambda w: gptq(w, bits=8), GPTQ | {"bits": 8}),
    "gptq, second version": (
        lambda w: gptq(w, version="gptq_v2"), GPTQ | {"checkpoint_format": "gptq_v2"},
    ),
    "gptq, ordered": (lambda w: gptq(w, order=True), GPTQ | {"desc_act": True}),
    "awq": (
        awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
         "version": "gemm", "modules_to_not_convert": None},
    ),
    "compressed-tensors": (compressed, scheme(num_bits=4, symmetric=False)),
    "compressed-tensors, 8 bits": (
        lambda w: compressed(w, bits=8), scheme(num_bits=8, symmetric=False),
    ),
    "compressed-tensors, symmetric": (
        lambda w: compressed(w, symmetric=True), scheme(num_bits=4, symmetric=True),
    ),
    "bitsandbytes": (
        int8,
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False,
         "llm_int8_threshold": 6.0, "llm_int8_has_fp16_weight": False},
    ),
    "four bits": (
        four_bits,
        {"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": True,
         "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
    ),
}  # fmt: skip


def make_folder(family, case, tmp_path):
    """The folder, and transformers' model with the values that it stands for."""
    pack, stated = CASES[case]
    model = tiny_model(family, tmp_path)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    state = model.state_dict()
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and ".layers." in name:
            parts, value = pack(tensors.pop(f"{name}.weight"))
            tensors |= {f"{name}.{part}": t.contiguous() for part, t in parts.items()}
            with torch.no_grad():
                state[f"{name}.weight"].copy_(value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": stated}))
    return folder, model


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
@torch.no_grad()
def test_logits_are_those_of_the_dequantised_model(family, case, tmp_path):
    folder, model = make_folder(family, case, tmp_path)
    reference = model(TOKENS).logits[:, -1]
    network = load_language_model(folder, implementation="transformers").network
    torch.testing.assert_close(network(TOKENS)[0], reference, atol=2e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gptq, ordered", "awq", "compressed-tensors, 8 bits"])
@pytest.mark.parametrize("in_jax", ["own", pytest.param("transformers", marks=pytest.mark.slow)])
def test_both_engines_and_our_own_network_compute_them(in_jax, case, tmp_path):
    folder, _ = make_folder("llama", case, tmp_path)
    networks = {
        i: load_language_model(folder, implementation=i).network for i in ("own", "transformers")
    }
    options = SamplingOptions(max_new_tokens=8)
    prompts = [[5, 9, 31, 14], [61, 12]]
    engines = [*map(TorchDecoder, networks.values()), JaxDecoder(networks[in_jax])]
    tokens = [
        [c.tokens for c in complete(e, prompts, options, batch_size=2).completions] for e in engines
    ]
    assert all(one == tokens[0] for one in tokens)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("gptq", {"bits": 3}, "bits = 3, which is not computed here; 4, 8 is"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        ("gptq", {"dynamic": {"x": 1}}, "dynamic = "),
        ("gptq", {"lm_head": True}, "lm_head = True"),
        ("gptq", {"new": 1}, "new = 1, which is not understood"),
        ("awq", {"version": "gemv"}, "version = 'gemv'"),
        ("awq", {"bits": 8}, "bits = 8"),
        ("awq", {"zero_point": False}, "zero_point = False"),
        ("compressed-tensors", {"kv_cache_scheme": {}}, "kv_cache_scheme = "),
        ("bitsandbytes", {"load_in_4bit": True}, "load_in_8bit = True"),
        ("four bits", {"load_in_4bit": False}, "load_in_8bit = False"),
        ("bitsandbytes", {"quant_method": "hqq"}, "quant_method 'hqq'; fp8, fbgemm_fp8"),
        ("awq", {"quant_method": "gptq"}, "zero_point = True, which is not understood"),
        ("gptq", {"group_size": 64}, "group_size = 64, but .* has groups of 16 inputs"),
        ("compressed-tensors", scheme(num_bits=4, symmetric=False, group_size=8), "group_size = 8"),
        ("gptq", {"group_size": -1}, "group_size = all, but .* has groups of 16 inputs"),
        ("awq", {"group_size": 0}, "group_size = 0, which must be a positive"),
        ("gptq", {"sym": True}, "sym = True, but zero points other than the middle level"),
        ("gptq", {"desc_act": "yes"}, "desc_act = 'yes'"),
        (
            "compressed-tensors",
            scheme(num_bits=4, symmetric=False, strategy="channel", group_size=None),
            "group_size = all, but",
        ),
        (
            "compressed-tensors", scheme(num_bits=4, symmetric=True),
            "symmetric = True, but a weight_zero_point in model",
        ),
        (
            "compressed-tensors, symmetric", scheme(num_bits=4, symmetric=False),
            "symmetric = False, but no weight_zero_point in model",
        ),
    ],
)  # fmt: skip
def test_another_key_or_value_is_refused_by_name(case, change, message, tmp_path):
    folder, _ = make_folder("qwen2", case, tmp_path)
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    fields["quantization_config"] |= change
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match=message) as refusal:
        load_language_model(folder)
    assert "\n" not in str(refusal.value)


PROJECTION = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("gptq", {"scales": None}, r"lacks .*q_proj\.scales"),
        ("gptq", {"bias": None}, r"lacks .*q_proj\.bias"),
        ("gptq", {"bias": torch.zeros(1)}, r"q_proj: 32 outputs have a bias of shape \(1,\)"),
        ("gptq, ordered", {"g_idx": None}, r"desc_act = True, but no g_idx .* in .*q_proj"),
        ("gptq", {"g_idx": torch.full((32,), 9, dtype=torch.int32)}, "does not name a group"),
        ("gptq", {"g_idx": torch.zeros(32, dtype=torch.int32)}, "groups of 0 to 32 inputs"),
        ("gptq", {"scales": torch.ones(3, 32)}, "but scales"),
        ("awq", {"qweight": torch.ones(32, 4)}, r"qweight is torch.float32 .* where torch\.int32"),
        ("awq", {"qweight": torch.ones(64, 4, dtype=torch.int32)}, "but config.json makes it"),
        ("compressed-tensors", {"weight_shape": torch.tensor([32, 16])}, "16"),
        ("compressed-tensors", {"weight_g_idx": torch.zeros(32)}, "orders its inputs"),
        ("bitsandbytes", {"weight": torch.ones(32, 32)}, "has SCB but no int8 weight"),
        ("bitsandbytes", {"weight_format": torch.tensor(1)}, "weight_format other than rows"),
    ],
)
def test_tensors_that_do_not_fit_are_named(case, change, message, tmp_path):
    folder, _ = make_folder("qwen2", case, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for part, value in change.items():
        if value is None:
            del tensors[f"{PROJECTION}.{part}"]
        else:
            tensors[f"{PROJECTION}.{part}"] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=message) as refusal:
        load_language_model(folder)
    assert "\n" not in str(refusal.value)


FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
INT8 = {"type": "int", "num_bits": 8, "symmetric": True, "dynamic": False, "strategy": "channel"}


def scaled(weight, dtype):
    parts = {"weight": (weight * 100).to(dtype), "weight_scale": torch.full((32, 1), 0.01)}
    return parts | {"input_scale": torch.ones(())} if dtype.is_floating_point else parts


LAYERS = {
    **{case: (lambda w, pack=pack: pack(w)[0], stated) for case, (pack, stated) in CASES.items()},
    "float8": (lambda w: scaled(w, torch.float8_e4m3fn), FP8),
    "int8": (
        lambda w: scaled(w, torch.int8),
        {"quant_method": "compressed-tensors", "format": "int-quantized",
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT8}}},
    ),
}  # fmt: skip


def forms_of(tensor):
    """The tensor in forms that no library writes, and in some that one may."""
    plain = tensor.float()
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64,
              torch.bool, torch.uint8, torch.int8, torch.int64)  # fmt: skip
    shapes = (tensor.flatten(), tensor[None], tensor[..., None], tensor.flatten()[:1].squeeze(),
              tensor[:0] if tensor.ndim else tensor.reshape(1)[:0], tensor[..., :0]
              if tensor.ndim else tensor, tensor.T if tensor.ndim == 2 else tensor,
              torch.cat((tensor.reshape(-1), tensor.reshape(-1))))  # fmt: skip
    whole = not tensor.is_floating_point()
    values = (torch.zeros_like(tensor), plain * torch.nan, plain * torch.inf, -plain - 1)
    return [*map(plain.to, dtypes), *shapes, *(v.nan_to_num().to(tensor.dtype) if whole else
            v.to(tensor.dtype) for v in values)]  # fmt: skip


def layer_of(stated, parts) -> Any:
    network = torch.nn.ModuleDict({"proj": torch.nn.Linear(32, 32, bias=False)})
    tensors = {f"proj.{name}": t for name, t in parts.items()}
    swap_quantized(network, tensors, stated)
    return network["proj"]


@pytest.mark.parametrize("case", LAYERS)
@torch.no_grad()
def test_a_layer_of_any_form_computes_or_is_named_in_one_line(case):
    weight = torch.randn(32, 32, generator=GENERATOR)
    pack, stated = LAYERS[case]
    parts = pack(weight)
    image = torch.randn(2, 32, generator=GENERATOR)
    assert torch.isfinite(layer_of(stated, parts)(image)).all()
    for name, tensor in parts.items():
        for other in [None, *forms_of(tensor)]:
            changed = {n: t for n, t in (parts | {name: other}).items() if t is not None}
            try:
                result = layer_of(stated, changed)(image)
            except InputError as error:
                assert "\n" not in str(error)
                assert "proj" in str(error) or "no layer has tensors" in str(error)
            else:
                assert result.shape == image.shape and torch.isfinite(result).all(), (name, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocksize": 0}, "0 is not a size"),
        ({"blocksize": 64.9}, "64.9 is not a size"),
        ({"blocksize": 1e400}, "inf is not a size"),
        ({"shape": [1e400, 1]}, "inf is not a size"),
        ({"shape": [32, 32, 1]}, "too many values"),
        ({"nested_blocksize": 10**9}, "2 nested blocks of 1000000000 for 16"),
        ({"nested_blocksize": 0}, "0 is not a size"),
        ({"nested_offset": 1e400}, "offset=inf"),
        ({"nested_offset": None}, "NoneType"),
    ],
)
def test_numbers_of_a_quant_state_are_compared_with_the_tensors(change, message):
    parts = four_bits(torch.randn(32, 32, generator=GENERATOR))[0]
    name = "weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(parts[name].tolist()))
    nested = {"nested_blocksize": 8, "nested_offset": 0.1}
    parts["weight.absmax"] = torch.zeros(16, dtype=torch.uint8)
    parts["weight.nested_absmax"] = torch.ones(2)
    parts["weight.nested_quant_map"] = torch.ones(256)

    def with_state(**changes):
        text = json.dumps(state | nested | changes).encode()
        return parts | {name: torch.tensor([*text], dtype=torch.uint8)}

    assert layer_of(CASES["four bits"][1], with_state()).weight_scale.shape == (16,)
    with pytest.raises(InputError, match=f"proj has tensors that do not fit .*{message}"):
        layer_of(CASES["four bits"][1], with_state(**change))


def test_a_block_larger_than_the_weight_takes_no_memory():
    weight = torch.randn(32, 32, generator=GENERATOR)
    parts, value = four_bits(weight, block=1024)
    name = "weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(parts[name].tolist())) | {"blocksize": 10**12}
    parts[name] = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    torch.testing.assert_close(layer_of(CASES["four bits"][1], parts).dequantized(), value)
    parts = {"weight": weight.to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(1, 1)}
    layer = layer_of({"quant_method": "fp8", "weight_block_size": [2**20, 32]}, parts)
    assert torch.equal(layer.dequantized(), parts["weight"].float())


def test_zero_points_in_the_middle_are_symmetric(tmp_path):
    folder, _ = make_folder("qwen2", "gptq", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    middle = {n: torch.full_like(t, 0x77777777) for n, t in tensors.items() if "qzeros" in n}
    save_file(tensors | middle, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"sym": false', '"sym": true'))
    assert load_language_model(folder).network


@pytest.mark.parametrize("in_jax", [False, True])
@torch.no_grad()
def test_gpt_oss_is_decoded_as_by_transformers(in_jax, tmp_path):
    from transformers import GptOssConfig, GptOssForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=2, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=8,
    )  # fmt: skip
    model = GptOssForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    state = model.state_dict()
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 126, blocks.shape[:-1], dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path / "config.json"
    stated = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": stated}))
    network = load_language_model(tmp_path).network
    if in_jax:
        options = SamplingOptions(max_new_tokens=6)
        (done,) = complete(JaxDecoder(network), [[5, 9, 31, 14]], options).completions
        tokens = model.generate(torch.tensor([[5, 9, 31, 14]]), max_new_tokens=6, do_sample=False)
        assert done.tokens == tokens[0, 4:].tolist()
        return
    torch.testing.assert_close(
        network(TOKENS)[0], model(TOKENS).logits[:, -1], rtol=1e-4, atol=1e-5
    )
    first = next(name for name in tensors if name.endswith("_scales"))
    save_file(tensors | {first: tensors[first][:1].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="_scales do not fit; get the folder again"):
        load_language_model(tmp_path)


def test_a_folder_without_such_tensors_is_refused(tmp_path):
    _, model = make_folder("qwen2", "gptq", tmp_path)
    model.save_pretrained(tmp_path / "plain")
    path = tmp_path / "plain" / "config.json"
    for stated, message in (
        (CASES["gptq"][1], "no layer has tensors"),
        (3, "not an object"),
    ):
        fields = json.loads(path.read_text()) | {"quantization_config": stated}
        path.write_text(json.dumps(fields))
        with pytest.raises(InputError, match=message):
            load_language_model(tmp_path / "plain")
