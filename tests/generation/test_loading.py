"""Hugging Face folders as `transformers` writes them, quantised ones, and broken ones."""

import json
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxsr.models.llama.quantized import ScaledLinear, W8A8Linear
from jaxsr.models.load import load_model

TOKENS = torch.randint(3, 320, (2, 20), generator=torch.Generator().manual_seed(0))
CLOSE: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-5}  # as in test_network.py


@pytest.mark.parametrize("family", ["llama", "llama-plain", "qwen3"])
@torch.no_grad()
def test_folder_gives_the_network_that_transformers_saved(family, model_folder, hf_model):
    folder = model_folder(family)
    assert len(list(folder.glob("*.safetensors"))) > 1  # shards
    model = load_model(folder)
    assert model.stop_ids == (2,)
    torch.testing.assert_close(model.network(TOKENS)[0], hf_model(family)(TOKENS).logits, **CLOSE)


def test_generation_config_is_read(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("qwen3"), tmp_path / "m")
    stated = {"eos_token_id": [2, 7], "do_sample": True, "temperature": 0.6, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(stated))
    model = load_model(folder)
    assert model.stop_ids == (2, 7)
    assert model.sampling == {"temperature": 0.6, "top_k": 20}


def single_file(model_folder, family, tmp_path):
    """A copy with all tensors in one file, to be changed."""
    folder = shutil.copytree(model_folder(family), tmp_path / "m")
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    return folder, tensors


def stated(folder, quantization):
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization})
    )


def projections(tensors):
    return [name for name in tensors if "_proj.weight" in name]


def reference(model, tensors):
    """`transformers` with other weights."""
    import copy

    model = copy.deepcopy(model)
    model.load_state_dict(tensors, strict=False)
    return model


FP8 = torch.float8_e4m3fn


@torch.no_grad()
def test_block_fp8_checkpoint(model_folder, hf_model, tmp_path):
    folder, tensors = single_file(model_folder, "qwen3", tmp_path)
    block, plain = (16, 32), dict(tensors)
    for name in projections(tensors):
        weight = tensors[name]
        blocks = weight.unfold(0, *block[:1] * 2).unfold(1, *block[1:] * 2)
        scale = blocks.abs().amax((-1, -2)) / 448
        spread = scale.repeat_interleave(16, 0).repeat_interleave(32, 1)
        tensors[name] = (weight / spread).to(FP8)
        tensors[f"{name}_scale_inv"] = scale
        plain[name] = tensors[name].float() * spread
    save_file(tensors, folder / "model.safetensors")
    stated(folder, {"quant_method": "fp8", "weight_block_size": list(block)})
    network: Any = load_model(folder).network
    layer = network.model.layers[0].self_attn.q_proj
    assert isinstance(layer, ScaledLinear)
    assert layer.weight.dtype == FP8
    want = reference(hf_model("qwen3"), plain)(TOKENS).logits
    torch.testing.assert_close(network(TOKENS)[0], want, **CLOSE)


@pytest.mark.parametrize("method", ["compressed-tensors", "fbgemm_fp8"])
@torch.no_grad()
def test_channel_fp8_checkpoint(method, model_folder, hf_model, tmp_path):
    folder, tensors = single_file(model_folder, "llama", tmp_path)
    plain = dict(tensors)
    for name in projections(tensors):
        scale = tensors[name].abs().amax(1, keepdim=True) / 448
        tensors[name] = (plain[name] / scale).to(FP8)
        tensors[f"{name}_scale"] = scale
        tensors[name.replace("weight", "input_scale")] = torch.ones(1)
        plain[name] = tensors[name].float() * scale
    save_file(tensors, folder / "model.safetensors")
    group = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}
    stated(folder, {"quant_method": method, "config_groups": {"group_0": group}})
    network = load_model(folder).network
    want = reference(hf_model("llama"), plain)(TOKENS).logits
    torch.testing.assert_close(network(TOKENS)[0], want, **CLOSE)


@torch.no_grad()
def test_w8a8_checkpoint(model_folder, hf_model, tmp_path):
    folder, tensors = single_file(model_folder, "llama", tmp_path)
    plain = dict(tensors)
    for name in projections(tensors):
        scale = tensors[name].abs().amax(1, keepdim=True) / 127
        tensors[name] = (plain[name] / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale.bfloat16()
        plain[name] = tensors[name].float() * scale.bfloat16().float()
    save_file(tensors, folder / "model.safetensors")
    group = {
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    }
    stated(folder, {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}})
    network: Any = load_model(folder).network
    assert isinstance(network.model.layers[1].mlp.down_proj, W8A8Linear)
    want = reference(hf_model("llama"), plain)(TOKENS).logits
    got = network(TOKENS)[0]
    # Rounding activations to 8 bits moves the logits (spread about 4); the ranking stays alike.
    assert torch.corrcoef(torch.stack((got.flatten(), want.flatten())))[0, 1] > 0.995


def broken(folder, how, tensors):
    if how == "no config":
        (folder / "config.json").unlink()
    elif how == "config not JSON":
        (folder / "config.json").write_text("{")
    elif how == "architecture":
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "mamba"}))
    elif how == "shard":
        next(folder.glob("model-00002*")).unlink()
    elif how == "truncated shard":
        path = next(folder.glob("model-00002*"))
        path.write_bytes(path.read_bytes()[:-10])
    elif how == "no weights":
        for path in folder.glob("model*"):
            path.unlink()
        (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("no config", FileNotFoundError, "no config.json in"),
        ("config not JSON", ValueError, "config.json is not JSON"),
        ("architecture", ValueError, "model_type 'mamba'"),
        ("shard", FileNotFoundError, "lacks 1 of"),
        ("truncated shard", ValueError, "not a whole safetensors file"),
        ("no weights", FileNotFoundError, "pickles, which are never opened"),
    ],
)
def test_broken_folders_are_named(how, error, message, model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    broken(folder, how, {})
    with pytest.raises(error, match=message) as caught:
        load_model(folder, kind="language model")
    assert "\n" not in str(caught.value)


def test_wrong_tensors_are_named(model_folder, tmp_path):
    folder, tensors = single_file(model_folder, "llama", tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    for changed, message in (
        ({n: t for n, t in tensors.items() if n != name}, f"lacks {name}"),
        ({**tensors, "model.extra": tensors[name].clone()}, "this network lacks: model.extra"),
        ({**tensors, name: tensors[name][:-1].clone()}, "but config.json makes it"),
        ({**tensors, name: tensors[name].to(torch.int8)}, "states no quantisation"),
    ):
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            load_model(folder)


def test_schemes_that_are_not_computed_are_refused(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    stated(folder, {"quant_method": "gptq"})
    with pytest.raises(ValueError, match="quant_method 'gptq'"):
        load_model(folder)
    group = {"weights": {"num_bits": 4, "type": "int", "symmetric": True}}
    stated(folder, {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}})
    with pytest.raises(ValueError, match="other than symmetric 8 bits"):
        load_model(folder)


def test_nothing_at_the_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model '.*absent'"):
        load_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "../outside.safetensors"}}, "no safetensors file of its folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "no safetensors file of its folder"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "no safetensors file of its folder"),
        ({"weight_map": {"a": ["x"]}}, "no safetensors file of its folder"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": "model.safetensors"}, "no weight_map"),
        ({}, "no weight_map"),
    ],
)
def test_an_index_names_files_of_its_folder_alone(tmp_path, index, reason):
    from jaxsr.models.llama.hf_folder import weight_files

    (tmp_path / "outside.safetensors").write_bytes(b"")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=reason):
        weight_files(folder)


def test_json_that_nests_without_end(tmp_path):
    from jaxsr.models.llama.hf_folder import read_json

    for text in ("[" * 100_000, "1" * 10_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="is not JSON"):
            read_json(tmp_path / "config.json")
